// Package apps is the API group apps: workload controllers. Start at Group; each kind is a
// file, and workload.go and scale.go have what the kinds share. It must not import other
// groups: shared rules are in builtin/rules and builtin/podspec.
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
