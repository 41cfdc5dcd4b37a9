package builtin

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"

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

// relaxedServiceNames is the feature gate of names of services that begin with a digit.
const relaxedServiceNames = "RelaxedServiceNameValidation"

// restrictServiceNames has the names of services begin with a letter.
func restrictServiceNames(g resource.Group) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "" && d.Resource == "services" {
			d.Strategy.ValidateName = apivalidation.NameIsDNS1035Label
			for j := range d.Subresources {
				if part := d.Subresources[j].Part; part != nil {
					part.ValidateName = apivalidation.NameIsDNS1035Label
				}
			}
		}
	}
}
