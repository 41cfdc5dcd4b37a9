package authn

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/resource"
)

// Live reads the objects that tokens refer to from the resources of the server. It
// implements serviceaccount.Objects.
type Live func(group, resource string) resource.Objects

var _ serviceaccount.Objects = Live(nil)

// ServiceAccount implements serviceaccount.Objects.
func (l Live) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return readLive[*corev1.ServiceAccount](ctx, l, "serviceaccounts", namespace, name)
}

// Secret implements serviceaccount.Objects.
func (l Live) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return readLive[*corev1.Secret](ctx, l, "secrets", namespace, name)
}

// Pod implements serviceaccount.Objects.
func (l Live) Pod(ctx context.Context, namespace, name string) (metav1.Object, error) {
	return readLive[metav1.Object](ctx, l, "pods", namespace, name)
}

// Node implements serviceaccount.Objects.
func (l Live) Node(ctx context.Context, name string) (metav1.Object, error) {
	return readLive[metav1.Object](ctx, l, "nodes", "", name)
}

// WebhookConfiguration implements serviceaccount.Objects.
func (l Live) WebhookConfiguration(ctx context.Context, resource, name string) (metav1.Object, error) {
	return readLiveOf[metav1.Object](ctx, l(admissionregistrationv1.GroupName, resource), resource, "", name)
}

// Exists implements serviceaccount.Objects.
func (l Live) Exists(ctx context.Context, ref serviceaccount.Reference) bool {
	return l(ref.Group, ref.Resource).Has(ctx, ref.Namespace, ref.Name)
}

// LabelSecret implements serviceaccount.Objects.
func (l Live) LabelSecret(ctx context.Context, namespace, name string, uid types.UID, key, value string) error {
	return l("", "secrets").Update(ctx, namespace, name, func(obj resource.Object) error {
		if obj.GetUID() != uid {
			return apierrors.NewConflict(corev1.Resource("secrets"), name, fmt.Errorf("it is another one"))
		}
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = value
		obj.SetLabels(labels)
		return nil
	})
}

// readLive reads an object of the core group.
func readLive[T metav1.Object](ctx context.Context, l Live, resource, namespace, name string) (obj T, err error) {
	return readLiveOf[T](ctx, l("", resource), resource, namespace, name)
}

// readLiveOf reads an object from the cache. A token is often used right after its objects
// were created, perhaps by another server: an object that is not in the cache is read
// again, consistently.
func readLiveOf[T metav1.Object](ctx context.Context, objects resource.Objects, resource, namespace, name string) (obj T, err error) {
	found, err := objects.Cached().Get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		found, err = objects.Get(ctx, namespace, name)
	}
	if err != nil {
		return obj, err
	}
	obj, ok := found.(T)
	if !ok {
		return obj, fmt.Errorf("%s %s/%s is a %T", resource, namespace, name, found)
	}
	return obj, nil
}
