package apps

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// ReplicaSets defines replicasets.
func ReplicaSets() resource.Definition {
	status := resource.Rules[*appsv1.ReplicaSet]{
		PrepareUpdate: func(_ context.Context, r, old *appsv1.ReplicaSet) { r.Spec = old.Spec },
		ValidateUpdate: func(_ context.Context, r, _ *appsv1.ReplicaSet) field.ErrorList {
			return validateReplicaSetStatus(&r.Status, field.NewPath("status"))
		},
	}.Strategy()
	spec, observed := appsv1.ReplicaSetSpec{}.SwaggerDoc(), appsv1.ReplicaSetStatus{}.SwaggerDoc()
	return resource.Definition{
		Group:      appsv1.GroupName,
		Resource:   "replicasets",
		Kind:       "ReplicaSet",
		ShortNames: []string{"rs"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "replicasets",
		GatedFields: []resource.GatedField{
			{Path: "status.terminatingReplicas", Gate: "DeploymentReplicaSetTerminatingReplicas"},
		},
		Bookmark: func(obj resource.Object) { obj.(*appsv1.ReplicaSet).Spec.Replicas = new(int32) },
		Versions: append([]resource.Version{resource.VersionOf[appsv1.ReplicaSet, appsv1.ReplicaSetList]("v1", defaultReplicaSet)}, oldReplicaSets()...),
		Strategy: resource.Rules[*appsv1.ReplicaSet]{
			PrepareCreate: func(ctx context.Context, r *appsv1.ReplicaSet) {
				r.Status = appsv1.ReplicaSetStatus{}
				podspec.DropDisabledTemplateFields(ctx, &r.Spec.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, r, old *appsv1.ReplicaSet) {
				r.Status = old.Status
				podspec.DropDisabledTemplateFields(ctx, &r.Spec.Template, &old.Spec.Template)
			},
			Validate: func(ctx context.Context, r *appsv1.ReplicaSet) field.ErrorList {
				return validateReplicaSet(ctx, r, nil)
			},
			ValidateUpdate: func(ctx context.Context, r, old *appsv1.ReplicaSet) field.ErrorList {
				errs := validateReplicaSet(ctx, r, old)
				return append(errs, validation.ValidateImmutableField(r.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
			},
			Generation: replicaSetChanged,
			Warnings: func(_ context.Context, r, old *appsv1.ReplicaSet) []string {
				path := field.NewPath("spec", "template")
				switch {
				case old == nil:
					return append(podspec.NameWarnings(r.Name), podspec.TemplateWarnings(&r.Spec.Template, nil, path)...)
				case replicaSetChanged(r, old):
					return podspec.TemplateWarnings(&r.Spec.Template, &old.Spec.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{
			{Name: "status", Part: &status},
			scale(func(r *appsv1.ReplicaSet) scalable {
				return scalable{wanted: &r.Spec.Replicas, seen: r.Status.Replicas, selector: r.Spec.Selector}
			}),
		},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Desired", Type: "integer", Description: spec["replicas"]},
			{Name: "Current", Type: "integer", Description: observed["replicas"]},
			{Name: "Ready", Type: "integer", Description: observed["readyReplicas"]},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(spec["selector"])...),
		Cells: resource.CellsFunc(func(r *appsv1.ReplicaSet) []any {
			names, images := podspec.ContainerCells(r.Spec.Template.Spec.Containers)
			return []any{
				r.Name, int64(deref(r.Spec.Replicas)), int64(r.Status.Replicas), int64(r.Status.ReadyReplicas),
				resource.Since(r.CreationTimestamp.Time), names, images, metav1.FormatLabelSelector(r.Spec.Selector),
			}
		}),
	}
}

func defaultReplicaSet(r *appsv1.ReplicaSet) {
	rules.DefaultPointer(&r.Spec.Replicas, 1)
	podspec.DefaultTemplate(&r.Spec.Template)
}

func replicaSetChanged(r, old *appsv1.ReplicaSet) bool {
	return !equality.Semantic.DeepEqual(r.Spec, old.Spec)
}

// validateReplicaSet validates the specification; old is nil on create.
func validateReplicaSet(ctx context.Context, r, old *appsv1.ReplicaSet) field.ErrorList {
	spec, path := &r.Spec, field.NewPath("spec")
	errs := nonnegative(deref(spec.Replicas), path.Child("replicas"))
	errs = append(errs, nonnegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	if old == nil {
		return append(errs, validateSelected(ctx, spec.Selector, &spec.Template, nil, path)...)
	}
	return append(errs, validateSelected(ctx, spec.Selector, &spec.Template, &old.Spec.Template, path)...)
}

func validateReplicaSetStatus(s *appsv1.ReplicaSetStatus, path *field.Path) field.ErrorList {
	errs := nonnegative(s.Replicas, path.Child("replicas"))
	errs = append(errs, nonnegative(s.FullyLabeledReplicas, path.Child("fullyLabeledReplicas"))...)
	errs = append(errs, nonnegative(s.ReadyReplicas, path.Child("readyReplicas"))...)
	errs = append(errs, nonnegative(s.AvailableReplicas, path.Child("availableReplicas"))...)
	errs = append(errs, nonnegative(s.ObservedGeneration, path.Child("observedGeneration"))...)
	errs = append(errs, nonnegativeIfSet(s.TerminatingReplicas, path.Child("terminatingReplicas"))...)
	errs = append(errs, atMost(s.FullyLabeledReplicas, s.Replicas, "status.replicas", path.Child("fullyLabeledReplicas"))...)
	errs = append(errs, atMost(s.ReadyReplicas, s.Replicas, "status.replicas", path.Child("readyReplicas"))...)
	errs = append(errs, atMost(s.AvailableReplicas, s.Replicas, "status.replicas", path.Child("availableReplicas"))...)
	errs = append(errs, atMost(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas", path.Child("availableReplicas"))...)
	return errs
}
