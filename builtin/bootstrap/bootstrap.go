// Package bootstrap has the objects that a cluster starts with: RBAC roles and bindings,
// priority classes, flow schemas and priority levels. Start at RBAC and FlowSchemas; the
// Reconcile functions compute how existing objects are updated. The package never writes
// objects and keeps no state.
package bootstrap

import (
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// Action is what has to be done to an existing object.
type Action int

const (
	// Keep leaves it unchanged.
	Keep Action = iota
	// Update updates it.
	Update
	// Recreate deletes and creates it, because an immutable field has to change.
	Recreate
)

// PriorityClasses returns the priority classes of system components. Existing ones are
// left alone.
func PriorityClasses() []resource.Object {
	class := func(name string, value int32, description string) resource.Object {
		return &schedulingv1.PriorityClass{
			TypeMeta:         metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1", Kind: "PriorityClass"},
			ObjectMeta:       metav1.ObjectMeta{Name: name},
			Value:            value,
			Description:      description,
			PreemptionPolicy: new(corev1.PreemptLowerPriority),
		}
	}
	return []resource.Object{
		class("system-node-critical", 2_000_001_000, "Used for system critical pods that must not be moved from their current node."),
		class("system-cluster-critical", 2_000_000_000, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
	}
}
