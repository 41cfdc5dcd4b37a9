// Package flowcontrol is the API group flowcontrol.apiserver.k8s.io: flow
// schemas sort requests into priority levels, which share out the capacity of
// the server.
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

// statusPart is the status of a kind: everything but the status stays, the
// metadata too. keep copies the specification of the old object.
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

// validateConditionTypes wants conditions to have a type each of their own.
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
