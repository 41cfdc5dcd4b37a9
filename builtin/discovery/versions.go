package discovery

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"

	"github.com/apikeel/kelson/resource"
)

// oldEndpointSlices returns the older versions. v1beta1 has the zone of an endpoint in its
// topology.
func oldEndpointSlices() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[discoveryv1beta1.EndpointSlice, discoveryv1beta1.EndpointSliceList](
			discoveryv1beta1.SchemeGroupVersion.WithKind("EndpointSlice"), defaultSlice,
			func(s *discoveryv1beta1.EndpointSlice, hub *discoveryv1.EndpointSlice) {
				for i := range s.Endpoints {
					e := &hub.Endpoints[i]
					e.DeprecatedTopology = maps.Clone(s.Endpoints[i].Topology)
					if zone, ok := e.DeprecatedTopology[corev1.LabelTopologyZone]; ok {
						delete(e.DeprecatedTopology, corev1.LabelTopologyZone)
						e.Zone = &zone
					}
				}
			},
			func(hub *discoveryv1.EndpointSlice, s *discoveryv1beta1.EndpointSlice) {
				for i := range hub.Endpoints {
					e := &s.Endpoints[i]
					e.Topology = maps.Clone(hub.Endpoints[i].DeprecatedTopology)
					if zone := hub.Endpoints[i].Zone; zone != nil {
						if e.Topology == nil {
							e.Topology = map[string]string{}
						}
						e.Topology[corev1.LabelTopologyZone] = *zone
					}
				}
			}),
	}
}
