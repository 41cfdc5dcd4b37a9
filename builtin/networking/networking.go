// Package networking is the API group networking.k8s.io: a file a kind.
package networking

import (
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/apikeel/kelson/resource"
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: networkingv1.GroupName, Resources: []resource.Definition{
		IngressClasses(),
		Ingresses(),
		IPAddresses(),
		NetworkPolicies(),
		ServiceCIDRs(),
	}}
}
