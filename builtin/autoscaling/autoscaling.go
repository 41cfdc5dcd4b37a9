// Package autoscaling is the API group autoscaling, in the versions v1 and v2, of which v2 is
// stored. Start at Group; v1.go converts.
package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: autoscalingv2.GroupName, Resources: []resource.Definition{HorizontalPodAutoscalers()}}
}
