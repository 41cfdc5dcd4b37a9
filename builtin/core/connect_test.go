package core

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/resource"
)

// place is a target among objects, by resource. Its methods for changes are not
// there.
type place struct {
	resource.Target
	name    string
	objects map[string][]resource.Object
}

func (p place) Namespace() string { return "ns" }
func (p place) Name() string      { return p.name }

func (p place) Get(ctx context.Context) (resource.Object, error) {
	return placeLister{p, "pods"}.Get(ctx, "ns", p.name)
}

func (p place) Other(_, resource string) (resource.Others, error) {
	if p.objects[resource] == nil {
		return nil, fmt.Errorf("no %s", resource)
	}
	return placeLister{p, resource}, nil
}

type placeLister struct {
	place
	resource string
}

func (l placeLister) Get(_ context.Context, _, name string) (resource.Object, error) {
	for _, obj := range l.objects[l.resource] {
		if obj.GetName() == name {
			return obj, nil
		}
	}
	return nil, errors.NewNotFound(corev1.Resource(l.resource), name)
}

func (l placeLister) List(context.Context, string) ([]resource.Object, error) {
	return l.objects[l.resource], nil
}

func (l placeLister) Update(context.Context, string, string, func(resource.Object) error) (resource.Object, error) {
	panic("nothing is changed to connect")
}

func TestLocations(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: "ns"} }
	pod := func(name, node, ip string, containers ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: meta(name), Spec: corev1.PodSpec{NodeName: node}}
		for _, c := range containers {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Ports: []corev1.ContainerPort{{ContainerPort: 8080}}})
		}
		if ip != "" {
			p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		}
		return p
	}
	node := func(name string, port int32, features []string, addresses ...corev1.NodeAddress) *corev1.Node {
		return &corev1.Node{ObjectMeta: meta(name), Status: corev1.NodeStatus{
			Addresses: addresses, DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: port}}, DeclaredFeatures: features,
		}}
	}
	inside := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}
	endpoints := func(addressType discoveryv1.AddressType, list ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta("s"), AddressType: addressType, Endpoints: list,
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}}}
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "s"}
		return s
	}
	behind := func(pod, address string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			TargetRef: &corev1.ObjectReference{Name: pod, Namespace: "ns"}}
	}
	objects := map[string][]resource.Object{
		"nodes": {
			node("plain", 0, nil, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, inside),
			node("modern", 1234, []string{"ExtendWebSocketsToKubelet"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "modern"}, inside),
			node("nowhere", 0, nil, corev1.NodeAddress{Type: "Strange", Address: "x"}),
			node("itself", 0, nil, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}),
		},
		"pods": {
			pod("one", "plain", "192.0.2.1", "c"), pod("two", "modern", "2001:db8::1", "c", "d"), pod("none", "", "", "c"),
			pod("ghost", "gone", "", "c"), pod("lost", "nowhere", "127.0.0.1", "c"),
		},
		"services": {&corev1.Service{ObjectMeta: meta("s"), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, Name: "http"}}}}},
		"endpointslices": {
			endpoints(discoveryv1.AddressTypeIPv6, behind("two", "2001:db8::1", true)),
			endpoints(discoveryv1.AddressTypeIPv4, behind("one", "192.0.2.66", true), behind("one", "192.0.2.1", false),
				behind("one", "192.0.2.1", true), behind("two", "192.0.2.1", true), discoveryv1.Endpoint{Addresses: []string{"192.0.2.67"}}),
		},
	}
	group := Group(Config{})
	for _, test := range []struct {
		resource, name, sub string
		options             runtime.Object
		want                string
	}{
		{"pods", "one", "exec", &corev1.PodExecOptions{Command: []string{"a", "b"}, Stdin: true, TTY: true}, "https://192.0.2.7:10250/exec/ns/one/c?command=a&command=b&input=1&tty=1 kubelet upgrade translate1"},
		{"pods", "two", "exec", &corev1.PodExecOptions{Container: "d"}, "https://modern:1234/exec/ns/two/d kubelet upgrade"},
		{"pods", "two", "exec", &corev1.PodExecOptions{}, "a container name must be specified for pod two, choose one of: [c d]"},
		{"pods", "one", "attach", &corev1.PodAttachOptions{Container: "x"}, "container x is not valid for pod one"},
		{"pods", "none", "attach", &corev1.PodAttachOptions{}, "pod none does not have a host assigned"},
		{"pods", "ghost", "attach", &corev1.PodAttachOptions{}, `pods "gone" not found`},
		{"pods", "lost", "attach", &corev1.PodAttachOptions{}, "no preferred addresses found; known addresses: [{Strange x}]"},
		{"pods", "one", "portforward", &corev1.PodPortForwardOptions{Ports: []int32{1, 2}}, "https://192.0.2.7:10250/portForward/ns/one?port=1%2C2 kubelet upgrade translate2"},
		{"pods", "none", "log", &corev1.PodLogOptions{}, "nothing"},
		{"pods", "one", "log", &corev1.PodLogOptions{Follow: true, InsecureSkipTLSVerifyBackend: true}, "https://192.0.2.7:10250/containerLogs/ns/one/c?follow=true kubelet unverified flush"},
		{"pods", "one", "log", &corev1.PodLogOptions{LimitBytes: ptr.To(int64(0))}, `PodLogOptions "one" is invalid: limitBytes: Invalid value: 0: must be greater than 0`},
		{"pods", "one", "proxy", &corev1.PodProxyOptions{Path: "/a/"}, "//192.0.2.1:8080/a/"},
		{"pods", "https:two:web", "proxy", &corev1.PodProxyOptions{}, "https://[2001:db8::1]:web"},
		{"pods", "lost", "proxy", &corev1.PodProxyOptions{}, "address not allowed"},
		{"pods", "ftp:one:1", "proxy", &corev1.PodProxyOptions{}, `invalid pod request "ftp:one:1"`},
		{"nodes", "plain", "proxy", &corev1.NodeProxyOptions{Path: "/metrics"}, "https://192.0.2.7:10250/metrics kubelet"},
		{"nodes", "plain:10250", "proxy", &corev1.NodeProxyOptions{}, "https://192.0.2.7:10250 kubelet"},
		{"nodes", "http:plain:9100", "proxy", &corev1.NodeProxyOptions{}, "http://192.0.2.7:9100"},
		{"nodes", "itself", "proxy", &corev1.NodeProxyOptions{}, "address not allowed"},
		{"nodes", "gone", "proxy", &corev1.NodeProxyOptions{}, `nodes "gone" not found`},
		{"services", "s:http", "proxy", &corev1.ServiceProxyOptions{Path: "/x"}, "//192.0.2.1:8080/x"},
		{"services", "https:s:80", "proxy", &corev1.ServiceProxyOptions{}, "https://192.0.2.1:8080"},
		{"services", "s:81", "proxy", &corev1.ServiceProxyOptions{}, `no service port 81 found for service "s"`},
		{"services", "gone", "proxy", &corev1.ServiceProxyOptions{}, `no endpoints available for service "gone"`},
		{"services", "gone:80", "proxy", &corev1.ServiceProxyOptions{}, `services "gone" not found`},
	} {
		at := slices.IndexFunc(group.Resources, func(d resource.Definition) bool { return d.Resource == test.resource })
		sub, ok := group.Resources[at].Subresource(test.sub)
		if !ok {
			t.Fatalf("%s has no %s", test.resource, test.sub)
		}
		to, err := sub.Connect.Locate(t.Context(), place{name: test.name, objects: objects}, test.options)
		if got := describe(to, err); got != test.want {
			t.Errorf("%s %s %s: %s, want %s", test.resource, test.name, test.sub, got, test.want)
		}
	}
}

func describe(to *resource.Location, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case to == nil:
		return "nothing"
	}
	words := []string{to.URL.String()}
	for _, word := range []struct {
		is   bool
		text string
	}{{to.Kubelet, "kubelet"}, {to.Unverified, "unverified"}, {to.Upgrade, "upgrade"}, {to.Flush, "flush"}} {
		if word.is {
			words = append(words, word.text)
		}
	}
	if to.Translate != resource.NoTranslation {
		words = append(words, fmt.Sprint("translate", to.Translate))
	}
	return strings.Join(words, " ")
}
