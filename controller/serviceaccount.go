package controller

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// everyNamespace keeps an object of a given name in every namespace that is not being
// deleted. The feed tells where it is missing, so no requests are made where it exists.
type everyNamespace struct {
	queue          *Queue[string]
	resource, name string
	compared       bool // existing objects are compared with what they should be

	mu         sync.Mutex
	namespaces map[string]presence
	synced     bool
}

// presence says whether a namespace is not being deleted, and whether it has the object.
type presence struct{ alive, there bool }

// Observe implements Observer.
func (e *everyNamespace) Observe(changes []Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Kind.Is("", "namespaces"):
			p := e.namespaces[c.Name]
			was := p.alive
			p.alive = !c.Gone && !c.Deleting
			if e.set(c.Name, p); !was {
				e.look(c.Name, p)
			}
		case c.Name == e.name && c.Kind.Is("", e.resource):
			p := e.namespaces[c.Namespace]
			p.there = !c.Gone
			e.set(c.Namespace, p)
			e.look(c.Namespace, p)
		}
	}
}

func (e *everyNamespace) set(namespace string, p presence) {
	if p == (presence{}) {
		delete(e.namespaces, namespace)
	} else {
		e.namespaces[namespace] = p
	}
}

// look queues a namespace if the object may have to be created or changed.
func (e *everyNamespace) look(namespace string, p presence) {
	if e.synced && p.alive && (!p.there || e.compared) {
		e.queue.Add(namespace)
	}
}

// Synced implements Starter.
func (e *everyNamespace) Synced() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.synced = true
	for namespace, p := range e.namespaces {
		e.look(namespace, p)
	}
}

// get returns the presence of a namespace.
func (e *everyNamespace) get(namespace string) presence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.namespaces[namespace]
}

// keepEverywhere creates the object where it is missing; change, unless it is nil, is
// called for namespaces that have it.
func keepEverywhere(env *Env, kind, resource, name string, missing func(namespace string) any, change func(ctx context.Context, kind *Kind, namespace string) error) *everyNamespace {
	e := &everyNamespace{resource: resource, name: name, compared: change != nil, namespaces: map[string]presence{}}
	e.queue = NewQueue(env, 4, func(ctx context.Context, namespace string) error {
		k := env.Kind("v1", kind)
		switch p := e.get(namespace); {
		case !p.alive:
			return nil
		case !p.there:
			return ignoreNotNeeded(env.Create(ctx, k, namespace, missing(namespace)))
		case change != nil:
			return change(ctx, k, namespace)
		}
		return nil
	})
	return e
}

// defaultAccount is the service account of pods that name none.
const defaultAccount = "default"

// ServiceAccountsName is the name of the controller ServiceAccounts.
const ServiceAccountsName = "serviceaccount-controller"

// ServiceAccounts creates the service account "default" in every namespace.
func ServiceAccounts() Controller {
	return Controller{Name: ServiceAccountsName, Alias: "serviceaccount", Account: "service-account-controller", Start: func(env *Env) Observer {
		return keepEverywhere(env, "ServiceAccount", "serviceaccounts", defaultAccount, func(namespace string) any {
			return &corev1.ServiceAccount{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
				ObjectMeta: metav1.ObjectMeta{Name: defaultAccount, Namespace: namespace},
			}
		}, nil)
	}}
}

// ignoreNotNeeded returns nil for errors after which an object need not be created: it exists, or
// its namespace is gone or Terminating.
func ignoreNotNeeded(err error) error {
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

// RootCA keeps the CA bundle of the server in a ConfigMap of every namespace.
func RootCA(certificates []byte) Controller {
	return Controller{Name: "root-ca-certificate-publisher-controller", Alias: "root-ca-cert-publisher", Account: "root-ca-cert-publisher", Start: func(env *Env) Observer {
		data := map[string]string{corev1.ServiceAccountRootCAKey: string(certificates)}
		missing := func(namespace string) any {
			return &corev1.ConfigMap{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{Name: rootCA, Namespace: namespace, Annotations: map[string]string{descriptionKey: rootCADescription}},
				Data:       data,
			}
		}
		return keepEverywhere(env, "ConfigMap", "configmaps", rootCA, missing, func(ctx context.Context, kind *Kind, namespace string) error {
			var m corev1.ConfigMap
			if err := env.Get(ctx, kind, namespace, rootCA, &m); err != nil {
				return ignoreNotFound(err) // the feed will report the deletion
			}
			if maps.Equal(m.Data, data) && m.Annotations[descriptionKey] != "" {
				return nil
			}
			if m.Annotations == nil {
				m.Annotations = map[string]string{}
			}
			m.Annotations[descriptionKey], m.Data = rootCADescription, data
			return ignoreNotFound(env.Update(ctx, kind, namespace, rootCA, "", &m, nil))
		})
	}}
}
