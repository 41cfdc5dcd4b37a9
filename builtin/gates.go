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
	addDefaults(g, func(pod *corev1.Pod) { podspec.DefaultProbeProtocols(&pod.Spec) })
}

// defaultResourcesEarly adds defaulting of the resources of a pod as a whole to pods.
func defaultResourcesEarly(g resource.Group) {
	addDefaults(g, func(pod *corev1.Pod) { podspec.DefaultRequests(&pod.Spec) })
}

// addDefaults adds defaulting to pods, not to templates.
func addDefaults(g resource.Group, more func(*corev1.Pod)) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "" && d.Resource == "pods" {
			before := d.Versions[0].Default
			d.Versions[0].Default = func(obj resource.Object) {
				before(obj)
				more(obj.(*corev1.Pod))
			}
		}
	}
}

// generationOfAutoscalers is the feature gate of metadata.generation of
// HorizontalPodAutoscalers.
const generationOfAutoscalers = "HPAGeneration"

// dropGeneration has clients set metadata.generation of HorizontalPodAutoscalers, as they
// could before the server did.
func dropGeneration(g resource.Group) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "autoscaling" && d.Resource == "horizontalpodautoscalers" {
			d.Strategy.Generation = nil
		}
	}
}

// createToConnect is the feature gate of the right to create that opening a stream to a pod
// takes, also with GET, as WebSockets do.
const createToConnect = "AuthorizePodWebsocketUpgradeCreatePermission"

// connectByMethod has streams to pods need only the verb of their method.
func connectByMethod(g resource.Group) {
	for i := range g.Resources {
		if d := &g.Resources[i]; g.Name == "" && d.Resource == "pods" {
			for j := range d.Subresources {
				if c := d.Subresources[j].Connect; c != nil {
					c.Verb = ""
				}
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
