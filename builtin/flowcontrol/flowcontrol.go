// Package flowcontrol is the API group flowcontrol.apiserver.k8s.io: flow schemas classify
// requests into priority levels, which share the concurrency of the server. Start at Group;
// mandatory.go has the objects that always exist.
package flowcontrol

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: flowcontrolv1.GroupName, Resources: []resource.Definition{
		FlowSchemas(),
		PriorityLevels(),
	}}
}

// statusPart makes the status subresource of a kind, which changes neither spec nor metadata.
// keep restores the spec.
func statusPart[T resource.Object](meta func(T) *metav1.ObjectMeta, keep func(obj, old T), validate func(T) field.ErrorList) resource.Subresource {
	s := resource.Rules[T]{
		PrepareUpdate: func(_ context.Context, obj, old T) {
			fields := obj.GetManagedFields()
			*meta(obj) = *meta(old)
			obj.SetManagedFields(fields)
			keep(obj, old)
		},
		ValidateUpdate: func(_ context.Context, obj, _ T) field.ErrorList { return validate(obj) },
	}.Strategy()
	s.Resets = []string{"metadata", "spec"}
	return resource.Subresource{Name: "status", Part: &s}
}

// validateConditionTypes checks that condition types are unique.
func validateConditionTypes[C any, T ~string](conditions []C, kind func(C) T) field.ErrorList {
	var errs field.ErrorList
	seen := map[T]bool{}
	for i, c := range conditions {
		t, path := kind(c), field.NewPath("status", "conditions").Index(i).Child("type")
		if seen[t] {
			errs = append(errs, field.Duplicate(path, t))
		}
		seen[t] = true
		if t == "" {
			errs = append(errs, field.Required(path, ""))
		}
	}
	return errs
}
