// Package bootstrap has the objects that a cluster starts with: roles and their
// bindings, priority classes, flow schemas and priority levels. It only knows
// what they are, and how those that exist already are brought up to date;
// writing them is the business of others.
//
// Nothing is made before a function is called, and nothing is kept.
package bootstrap

import (
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// Action is what has to be done to an object that exists already.
type Action int

const (
	// Keep it as it is.
	Keep Action = iota
	// Update it.
	Update
	// Recreate it: what has to change cannot be changed.
	Recreate
)

// PriorityClasses returns the priorities of what the cluster itself runs.
// Existing ones are left alone.
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
