// Package policy is the API group policy: pod disruption budgets. Start at Group.
package policy

import (
	policyv1 "k8s.io/api/policy/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: policyv1.GroupName, Resources: []resource.Definition{PodDisruptionBudgets()}}
}
