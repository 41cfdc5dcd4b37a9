package aggregator

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
)

// network has Services and EndpointSlices.
type network map[string][]resource.Object

func (n network) objects(_, name string) resource.Lister { return shelf{objs: n[name]} }

type shelf struct {
	resource.Lister
	objs []resource.Object
}

func (s shelf) Get(_ context.Context, namespace, name string) (resource.Object, error) {
	for _, obj := range s.objs {
		if obj.GetNamespace() == namespace && obj.GetName() == name {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
}

func (s shelf) List(context.Context, string) ([]resource.Object, error) { return s.objs, nil }

// TestAddresses has services of all types, with the errors of kube-apiserver for those
// that cannot be reached.
func TestAddresses(t *testing.T) {
	n := network{}
	service := func(name string, spec corev1.ServiceSpec) {
		spec.Ports = []corev1.ServicePort{{Name: "https", Port: 443}}
		n["services"] = append(n["services"], &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: spec})
	}
	slice := func(service string, family discoveryv1.AddressType, port string, ready bool, ips ...string) {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: new(int32(8443))}},
		}
		for _, ip := range ips {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
		}
		n["endpointslices"] = append(n["endpointslices"], s)
	}
	both := []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	service("plain", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.1"})
	slice("plain", discoveryv1.AddressTypeIPv4, "https", true, "192.0.2.1", "192.0.2.2")
	slice("plain", discoveryv1.AddressTypeIPv4, "https", false, "192.0.2.3")
	slice("plain", discoveryv1.AddressTypeIPv4, "other", true, "192.0.2.4")
	service("dual", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "fd00::1", IPFamilies: both})
	slice("dual", discoveryv1.AddressTypeIPv4, "https", true, "192.0.2.5")
	slice("dual", discoveryv1.AddressTypeIPv6, "https", true, "2001:db8::1")
	service("fallback", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "fd00::2", IPFamilies: both})
	slice("fallback", discoveryv1.AddressTypeIPv4, "https", true, "192.0.2.6")
	slice("fallback", discoveryv1.AddressTypeIPv6, "https", false, "2001:db8::2")
	service("headless", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone})
	service("elsewhere", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"})

	const noEndpoints = `no endpoints available for service "headless"`
	for _, c := range []struct {
		name               string
		port               int32
		cluster, endpoints string // addresses or the error
	}{
		{"plain", 443, "10.0.0.1:443", "192.0.2.1:8443 192.0.2.2:8443"},
		{"plain", 444, `no service port 444 found for service "plain"`, `no service port 444 found for service "plain"`},
		{"dual", 443, "[fd00::1]:443", "[2001:db8::1]:8443"},
		{"fallback", 443, "[fd00::2]:443", "192.0.2.6:8443"},
		{"headless", 443, `cannot route to service with ClusterIP "None"`, noEndpoints},
		{"elsewhere", 444, "example.com:444", `unsupported service type "ExternalName"`},
		{"missing", 443, `service "missing" not found`, `service "missing" not found`},
	} {
		for endpoints, want := range map[bool]string{false: c.cluster, true: c.endpoints} {
			found, err := (&Resolver{Objects: n.objects, Endpoints: endpoints}).Addresses(t.Context(), "ns", c.name, c.port)
			slices.Sort(found)
			got := strings.Join(found, " ")
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s:%d, endpoints %v: got %s, want %s", c.name, c.port, endpoints, got, want)
			}
		}
	}
}
