// Package policy is the API group policy: what the evictions of pods must leave
// running.
package policy

import (
	policyv1 "k8s.io/api/policy/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: policyv1.GroupName, Resources: []resource.Definition{PodDisruptionBudgets()}}
}
