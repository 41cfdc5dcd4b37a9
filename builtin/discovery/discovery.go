// Package discovery is the API group discovery.k8s.io.
package discovery

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: discoveryv1.GroupName, Resources: []resource.Definition{EndpointSlices()}}
}
