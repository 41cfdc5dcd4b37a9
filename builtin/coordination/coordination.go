// Package coordination is the API group coordination.k8s.io.
package coordination

import (
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: coordinationv1.GroupName, Resources: []resource.Definition{Candidates(), Leases()}}
}
