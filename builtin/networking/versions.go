package networking

import (
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/resource"
)

// Older versions.

func beta(kind string) schema.GroupVersionKind {
	return networkingv1beta1.SchemeGroupVersion.WithKind(kind)
}

func extensions(kind string) schema.GroupVersionKind {
	return extensionsv1beta1.SchemeGroupVersion.WithKind(kind)
}

func oldIngresses() []resource.Version {
	old := resource.AlikeVersion[networkingv1beta1.Ingress, networkingv1beta1.IngressList](beta("Ingress"), defaultPathTypes,
		func(in *networkingv1beta1.Ingress, hub *networkingv1.Ingress) {
			if b := in.Spec.Backend; b != nil {
				hub.Spec.DefaultBackend = &networkingv1.IngressBackend{Resource: b.Resource}
			}
			eachBackend(in, hub, toBackend)
		},
		func(hub *networkingv1.Ingress, in *networkingv1beta1.Ingress) {
			if b := hub.Spec.DefaultBackend; b != nil {
				in.Spec.Backend = &networkingv1beta1.IngressBackend{Resource: b.Resource}
			}
			eachBackend(in, hub, fromBackend)
		})
	// extensions/v1beta1 converts through v1beta1.
	older := resource.AlikeVersion[extensionsv1beta1.Ingress, extensionsv1beta1.IngressList](extensions("Ingress"),
		func(in *networkingv1beta1.Ingress) { old.Default(in) }, nil, nil)
	older.ToHub, older.FromHub = chain(older.ToHub, old.ToHub), chain(old.FromHub, older.FromHub)
	return []resource.Version{old, older}
}

// chain returns the composition of two conversions.
func chain(first, second func(resource.Object) (resource.Object, error)) func(resource.Object) (resource.Object, error) {
	return func(obj resource.Object) (resource.Object, error) {
		between, err := first(obj)
		if err != nil {
			return nil, err
		}
		return second(between)
	}
}

func oldIngressClasses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[networkingv1beta1.IngressClass, networkingv1beta1.IngressClassList](beta("IngressClass"), defaultIngressClass, nil, nil),
	}
}

func oldIPAddresses() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[networkingv1beta1.IPAddress, networkingv1beta1.IPAddressList, networkingv1.IPAddress](beta("IPAddress"), nil, nil, nil),
	}
}

func oldServiceCIDRs() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[networkingv1beta1.ServiceCIDR, networkingv1beta1.ServiceCIDRList, networkingv1.ServiceCIDR](beta("ServiceCIDR"), nil, nil, nil),
	}
}

func oldNetworkPolicies() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[extensionsv1beta1.NetworkPolicy, extensionsv1beta1.NetworkPolicyList](extensions("NetworkPolicy"), defaultPolicy, nil, nil),
	}
}

// defaultPathTypes sets pathType, which was optional before v1.
func defaultPathTypes(in *networkingv1.Ingress) {
	for i := range in.Spec.Rules {
		if http := in.Spec.Rules[i].HTTP; http != nil {
			for j := range http.Paths {
				if p := &http.Paths[j]; p.PathType == nil {
					p.PathType = new(networkingv1.PathTypeImplementationSpecific)
				}
			}
		}
	}
}

// eachBackend calls f for the backends of an ingress in both forms.
func eachBackend(in *networkingv1beta1.Ingress, hub *networkingv1.Ingress, f func(*networkingv1beta1.IngressBackend, *networkingv1.IngressBackend)) {
	if in.Spec.Backend != nil {
		f(in.Spec.Backend, hub.Spec.DefaultBackend)
	}
	for i := range in.Spec.Rules {
		if http := in.Spec.Rules[i].HTTP; http != nil {
			for j := range http.Paths {
				f(&http.Paths[j].Backend, &hub.Spec.Rules[i].HTTP.Paths[j].Backend)
			}
		}
	}
}

// toBackend sets the service of a backend, after all else has been copied. Before v1 a port was
// a number or a name.
func toBackend(b *networkingv1beta1.IngressBackend, hub *networkingv1.IngressBackend) {
	if b.ServiceName == "" && b.ServicePort == (intstr.IntOrString{}) {
		return
	}
	hub.Service = &networkingv1.IngressServiceBackend{Name: b.ServiceName}
	if b.ServicePort.Type == intstr.String {
		hub.Service.Port.Name = b.ServicePort.StrVal
	} else {
		hub.Service.Port.Number = b.ServicePort.IntVal
	}
}

func fromBackend(b *networkingv1beta1.IngressBackend, hub *networkingv1.IngressBackend) {
	if hub.Service == nil {
		return
	}
	b.ServiceName, b.ServicePort = hub.Service.Name, intstr.FromInt32(hub.Service.Port.Number)
	if name := hub.Service.Port.Name; name != "" {
		b.ServicePort = intstr.FromString(name)
	}
}
