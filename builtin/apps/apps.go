// Package apps is the API group apps: controllers that keep pods running from a
// template. A file is a kind; what they have in common is in workload.go and
// scale.go.
package apps

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: appsv1.GroupName, Resources: []resource.Definition{
		ControllerRevisions(),
		DaemonSets(),
		Deployments(),
		ReplicaSets(),
		StatefulSets(),
	}}
}
