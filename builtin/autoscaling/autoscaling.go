// Package autoscaling is the API group autoscaling. Its versions v1 and v2 show
// the same objects; v2 is what is stored.
package autoscaling

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: autoscalingv2.GroupName, Resources: []resource.Definition{HorizontalPodAutoscalers()}}
}
