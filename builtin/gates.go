package builtin

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/resource"
)

// h2cProbes is the feature gate of the field protocol of HTTP probes.
const h2cProbes = "H2CContainerProbe"

// defaultProtocols adds defaulting of the probe protocol to pods. Templates do not get it.
func defaultProtocols(g resource.Group) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "" && d.Resource == "pods" {
			before := d.Versions[0].Default
			d.Versions[0].Default = func(obj resource.Object) {
				before(obj)
				podspec.DefaultProbeProtocols(&obj.(*corev1.Pod).Spec)
			}
		}
	}
}
