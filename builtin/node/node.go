// Package node is the API group node.k8s.io.
package node

import (
	nodev1 "k8s.io/api/node/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: nodev1.GroupName, Resources: []resource.Definition{RuntimeClasses()}}
}
