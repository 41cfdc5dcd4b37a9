package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// everyNamespace is a controller that keeps an object of a name in every
// namespace that is not being deleted.
type everyNamespace struct {
	queue    *Queue[string]
	resource string
	name     string
}

// Observe implements Observer.
func (e *everyNamespace) Observe(changes []Change) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Kind.Is("", "namespaces"):
			if !c.Gone && !c.Deleting {
				e.queue.Add(c.Name)
			}
		case c.Name == e.name && c.Kind.Is("", e.resource):
			e.queue.Add(c.Namespace)
		}
	}
}

// defaultAccount is the service account that pods have unless they say
// otherwise.
const defaultAccount = "default"

// ServiceAccounts makes the service account default in every namespace.
func ServiceAccounts() Controller {
	return Controller{Name: "serviceaccount-controller", Alias: "serviceaccount", Account: "service-account-controller", Start: func(env *Env) Observer {
		return &everyNamespace{resource: "serviceaccounts", name: defaultAccount, queue: NewQueue(env, 4, func(ctx context.Context, namespace string) error {
			kind := env.Kind("v1", "ServiceAccount")
			if ending, err := env.ending(ctx, namespace); ending || err != nil {
				return err
			}
			if _, err := env.Metadata(ctx, kind, namespace, defaultAccount); !apierrors.IsNotFound(err) {
				return err
			}
			return made(env.Create(ctx, kind, namespace, &corev1.ServiceAccount{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
				ObjectMeta: metav1.ObjectMeta{Name: defaultAccount, Namespace: namespace},
			}))
		})}
	}}
}

// ending reports whether a namespace is being deleted, or gone.
func (e *Env) ending(ctx context.Context, namespace string) (bool, error) {
	ns, err := e.Metadata(ctx, e.Kind("v1", "Namespace"), "", namespace)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && ns.DeletionTimestamp != nil, err
}

// made drops errors by which an object need not be made any more: it is there,
// or its namespace is not, or not for long.
func made(err error) error {
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

const (
	rootCA            = "kube-root-ca.crt"
	rootCADescription = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
	descriptionKey = "kubernetes.io/description"
)

// RootCA keeps the certificates by which clients know the server in a config map
// of every namespace.
func RootCA(certificates []byte) Controller {
	return Controller{Name: "root-ca-certificate-publisher-controller", Alias: "root-ca-cert-publisher", Account: "root-ca-cert-publisher", Start: func(env *Env) Observer {
		return &everyNamespace{resource: "configmaps", name: rootCA, queue: NewQueue(env, 4, func(ctx context.Context, namespace string) error {
			kind := env.Kind("v1", "ConfigMap")
			data := map[string]string{corev1.ServiceAccountRootCAKey: string(certificates)}
			var m corev1.ConfigMap
			err := env.Get(ctx, kind, namespace, rootCA, &m)
			switch {
			case apierrors.IsNotFound(err):
				if ending, err := env.ending(ctx, namespace); ending || err != nil {
					return err
				}
				return made(env.Create(ctx, kind, namespace, &corev1.ConfigMap{
					TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
					ObjectMeta: metav1.ObjectMeta{Name: rootCA, Namespace: namespace, Annotations: map[string]string{descriptionKey: rootCADescription}},
					Data:       data,
				}))
			case err != nil:
				return err
			case len(m.Data) == 1 && m.Data[corev1.ServiceAccountRootCAKey] == string(certificates) && m.Annotations[descriptionKey] != "":
				return nil
			}
			if m.Annotations == nil {
				m.Annotations = map[string]string{}
			}
			m.Annotations[descriptionKey], m.Data = rootCADescription, data
			return ignoreNotFound(env.Update(ctx, kind, namespace, rootCA, "", &m, nil))
		})}
	}}
}
