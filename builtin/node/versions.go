package node

import (
	nodev1 "k8s.io/api/node/v1"
	nodev1alpha1 "k8s.io/api/node/v1alpha1"
	nodev1beta1 "k8s.io/api/node/v1beta1"

	"github.com/apikeel/kelson/resource"
)

// oldRuntimeClasses returns the older versions. v1alpha1 has a spec around all fields.
func oldRuntimeClasses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[nodev1beta1.RuntimeClass, nodev1beta1.RuntimeClassList, nodev1.RuntimeClass](
			nodev1beta1.SchemeGroupVersion.WithKind("RuntimeClass"), nil, nil, nil),
		resource.AlikeVersion[nodev1alpha1.RuntimeClass, nodev1alpha1.RuntimeClassList](
			nodev1alpha1.SchemeGroupVersion.WithKind("RuntimeClass"), nil,
			func(c *nodev1alpha1.RuntimeClass, hub *nodev1.RuntimeClass) {
				hub.Handler = c.Spec.RuntimeHandler
				if o := c.Spec.Overhead; o != nil {
					hub.Overhead = &nodev1.Overhead{PodFixed: o.PodFixed}
				}
				if s := c.Spec.Scheduling; s != nil {
					hub.Scheduling = &nodev1.Scheduling{NodeSelector: s.NodeSelector, Tolerations: s.Tolerations}
				}
			},
			func(hub *nodev1.RuntimeClass, c *nodev1alpha1.RuntimeClass) {
				c.Spec.RuntimeHandler = hub.Handler
				if o := hub.Overhead; o != nil {
					c.Spec.Overhead = &nodev1alpha1.Overhead{PodFixed: o.PodFixed}
				}
				if s := hub.Scheduling; s != nil {
					c.Spec.Scheduling = &nodev1alpha1.Scheduling{NodeSelector: s.NodeSelector, Tolerations: s.Tolerations}
				}
			}),
	}
}
