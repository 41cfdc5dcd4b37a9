package core

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Namespaces defines namespaces. A delete makes one Terminating; it is removed when
// spec.finalizers, which only the finalize subresource changes, is empty.
func Namespaces() resource.Definition {
	return resource.Definition{
		Resource:   "namespaces",
		Kind:       "Namespace",
		ShortNames: []string{"ns"},
		Verbs:      []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		Versions:   []resource.Version{resource.VersionOf[corev1.Namespace, corev1.NamespaceList]("v1", defaultNamespace)},
		Strategy: namespaceRules(resource.Rules[*corev1.Namespace]{
			NameOnUpdate: true,
			PrepareCreate: func(_ context.Context, ns *corev1.Namespace) {
				labelWithName(ns)
				ns.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
				if !slices.Contains(ns.Spec.Finalizers, corev1.FinalizerKubernetes) {
					ns.Spec.Finalizers = append(ns.Spec.Finalizers, corev1.FinalizerKubernetes)
				}
			},
			PrepareUpdate: func(_ context.Context, ns, old *corev1.Namespace) {
				labelWithName(ns)
				ns.Spec.Finalizers = old.Spec.Finalizers
				ns.Status = old.Status
			},
			Validate: func(_ context.Context, ns *corev1.Namespace) field.ErrorList {
				path := field.NewPath("spec", "finalizers")
				return validateNamespaceFinalizers(ns, func(int) *field.Path { return path })
			},
		}),
		Subresources: []resource.Subresource{{
			Name: "finalize", NoTable: true,
			Verbs: []string{"update"},
			Part: new(namespaceRules(resource.Rules[*corev1.Namespace]{
				PrepareUpdate: func(_ context.Context, ns, old *corev1.Namespace) {
					labelWithName(ns)
					ns.Status = old.Status
				},
				ValidateUpdate: func(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList {
					return validateNamespaceFinalizers(ns, field.NewPath("spec", "finalizers").Index)
				},
				Resets: []string{"status"},
			})),
		}, {
			Name: "status",
			Part: new(namespaceRules(resource.Rules[*corev1.Namespace]{
				PrepareUpdate: func(_ context.Context, ns, old *corev1.Namespace) {
					labelWithName(ns)
					ns.Spec = old.Spec
				},
				ValidateUpdate: func(_ context.Context, ns, _ *corev1.Namespace) field.ErrorList { return validateNamespacePhase(ns) },
			})),
		}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Status", Type: "string", Description: "The status of the namespace"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(ns *corev1.Namespace) []any {
			return []any{ns.Name, string(ns.Status.Phase), resource.Since(ns.CreationTimestamp.Time)}
		}),
		Fields: []resource.Field{
			resource.FieldFunc("status.phase", func(ns *corev1.Namespace) string { return string(ns.Status.Phase) }),
		},
	}
}

// namespaceRules adds the rules that the namespace and its subresources share.
func namespaceRules(r resource.Rules[*corev1.Namespace]) resource.Strategy {
	r.ValidateName = apivalidation.NameIsDNSLabel
	r.ReturnDeleted = true
	// The deletion of a namespace has no grace period, not even zero.
	r.BeforeDelete = func(ns *corev1.Namespace) {
		ns.Status.Phase = corev1.NamespaceTerminating
		ns.DeletionGracePeriodSeconds = nil
	}
	r.Held = func(ns *corev1.Namespace) bool { return len(ns.Spec.Finalizers) > 0 }
	return r.Strategy()
}

func defaultNamespace(ns *corev1.Namespace) {
	labelWithName(ns)
	if ns.Status.Phase == "" {
		ns.Status.Phase = corev1.NamespaceActive
	}
}

// labelWithName adds the label kubernetes.io/metadata.name. It does not for a generated name
// that is not a valid label value: only the name is then reported as invalid.
func labelWithName(ns *corev1.Namespace) {
	generated := ns.GenerateName != "" && len(content.IsLabelValue(ns.Name)) > 0
	if ns.Name == "" || generated {
		return
	}
	if ns.Labels == nil {
		ns.Labels = map[string]string{}
	}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
}

func validateNamespaceFinalizers(ns *corev1.Namespace, path func(int) *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, f := range ns.Spec.Finalizers {
		errs = append(errs, apivalidation.ValidateFinalizerName(string(f), path(i))...)
		errs = append(errs, rules.ValidateFinalizerDomain(string(f), path(i))...)
	}
	return errs
}

func validateNamespacePhase(ns *corev1.Namespace) field.ErrorList {
	path := field.NewPath("status", "Phase")
	switch deleting := ns.DeletionTimestamp != nil; {
	case !deleting && ns.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case deleting && ns.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(path, ns.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}
