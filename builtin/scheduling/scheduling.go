// Package scheduling is the API group scheduling.k8s.io.
package scheduling

import (
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group(gates features.Gates) resource.Group {
	return resource.Group{Name: schedulingv1.GroupName, Resources: []resource.Definition{
		PriorityClasses(), Workloads(), PodGroups(gates), CompositePodGroups(gates),
	}}
}
