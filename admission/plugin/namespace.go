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

// namespace reads a namespace. If the watch cache does not have it, it makes a consistent
// read. Errors other than NotFound are those of the store.
func namespace(ctx context.Context, objects admission.Objects, name string) (*corev1.Namespace, error) {
	return newest[*corev1.Namespace](ctx, objects, "", "namespaces", "", name)
}

// lifecycle is NamespaceLifecycle: it refuses creates in missing and Terminating namespaces,
// and deletions of the system namespaces.
type lifecycle struct {
	base
	objects admission.Objects
}

func newLifecycle(b *builder) admission.Plugin {
	return &lifecycle{base{"NamespaceLifecycle", func(t admission.Target) bool {
		if isNamespace(t) {
			return t.Operation == admission.Delete
		}
		// A LocalSubjectAccessReview must not reveal whether a namespace exists.
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

// exists is NamespaceExists: it refuses all writes in missing namespaces.
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

// provision is NamespaceAutoProvision: it creates missing namespaces.
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
