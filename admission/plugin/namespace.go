package plugin

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
)

func isNamespace(t admission.Target) bool { return t.Group == "" && t.Resource == "namespaces" }

// namespace reads a namespace. Who asks for a missing one hears that from the
// newest state. Other errors are the store's, which have answers of their own: it
// cannot be reached, or the time of the request is over.
func namespace(ctx context.Context, objects admission.Objects, name string) (*corev1.Namespace, error) {
	return newest[*corev1.Namespace](ctx, objects, "", "namespaces", "", name)
}

// lifecycle keeps objects out of namespaces that are not there or going, and
// some namespaces from going.
type lifecycle struct {
	base
	objects admission.Objects
}

func newLifecycle(b *builder) admission.Plugin {
	return &lifecycle{base{"NamespaceLifecycle", func(t admission.Target) bool {
		if isNamespace(t) {
			return t.Operation == admission.Delete
		}
		// To hear whether a namespace exists would tell too much.
		review := t.Group == "authorization.k8s.io" && t.Resource == "localsubjectaccessreviews"
		return t.Operation == admission.Create && !review
	}}, b.Objects}
}

// Admit implements admission.Mutator.
func (l *lifecycle) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.Operation == admission.Delete {
		switch a.Name {
		case metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic:
			return a.Forbidden(errors.New("this namespace may not be deleted"))
		}
		return nil
	}
	if a.Namespace == "" {
		return nil
	}
	ns, err := namespace(ctx, l.objects, a.Namespace)
	if err != nil || ns.Status.Phase != corev1.NamespaceTerminating {
		return err
	}
	err = a.Forbidden(fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.Namespace))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type: corev1.NamespaceTerminatingCause, Field: "metadata.namespace",
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		})
	}
	return err
}

// exists keeps all writes out of namespaces that are not there.
type exists struct {
	base
	objects admission.Objects
}

func newExists(b *builder) admission.Plugin {
	return &exists{base{"NamespaceExists", func(t admission.Target) bool {
		return t.Operation != admission.Connect && !isNamespace(t)
	}}, b.Objects}
}

// Validate implements admission.Validator.
func (e *exists) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Namespace == "" {
		return nil
	}
	_, err := namespace(ctx, e.objects, a.Namespace)
	return err
}

// provision makes the namespaces that somebody creates objects in.
type provision struct {
	base
	objects Objects
}

func newProvision(b *builder) admission.Plugin {
	return &provision{base{"NamespaceAutoProvision", func(t admission.Target) bool {
		return t.Operation == admission.Create && !isNamespace(t)
	}}, b.Objects}
}

// Admit implements admission.Mutator.
func (p *provision) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.DryRun || a.Namespace == "" {
		return nil
	}
	_, err := get[*corev1.Namespace](ctx, p.objects, "", "namespaces", "", a.Namespace)
	if apierrors.IsNotFound(err) {
		err = p.objects.Create(ctx, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.Namespace}})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	}
	if err != nil {
		return a.Forbidden(err)
	}
	return nil
}
