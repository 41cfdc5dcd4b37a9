package core

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	apinet "k8s.io/apimachinery/pkg/util/net"
	utilnet "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/resource"
)

// proxied is the name segment of a proxy path: name, name:port or scheme:name:port.
type proxied struct{ scheme, name, port string }

// proxy makes the subresource proxy. path returns the option path.
func proxy[O runtime.Object](kind, what string, options func() O, path func(O) string,
	locate func(ctx context.Context, target resource.Target, to proxied) (*resource.Location, error),
) resource.Subresource {
	return resource.Subresource{
		Name: "proxy",
		Kind: corev1.SchemeGroupVersion.WithKind(kind),
		Connect: &resource.Connect{
			Methods: []string{
				http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions,
			},
			Options: func() runtime.Object { return options() },
			Path:    true,
			Locate: func(ctx context.Context, target resource.Target, o runtime.Object) (*resource.Location, error) {
				scheme, name, port, ok := apinet.SplitSchemeNamePort(target.Name())
				if !ok {
					return nil, errors.NewBadRequest(fmt.Sprintf("invalid %s request %q", what, target.Name()))
				}
				to, err := locate(ctx, target, proxied{scheme, name, port})
				if err == nil {
					to.URL.Path = apinet.JoinPreservingTrailingSlash(to.URL.Path, path(o.(O)))
				}
				return to, err
			},
		},
	}
}

// nodeProxy proxies to the kubelet, or to another port of the node.
func nodeProxy(k kubelets) resource.Subresource {
	return proxy("NodeProxyOptions", "node",
		func() *corev1.NodeProxyOptions { return &corev1.NodeProxyOptions{} },
		func(o *corev1.NodeProxyOptions) string { return o.Path },
		func(ctx context.Context, target resource.Target, to proxied) (*resource.Location, error) {
			at, _, err := k.locate(ctx, target, "nodes", to.name)
			if err != nil {
				return nil, err
			}
			if err := checkProxyable(ctx, at.URL.Hostname()); err != nil {
				return nil, err
			}
			at.Routable = true
			if to.port == "" || to.port == at.URL.Port() {
				return at, nil
			}
			return &resource.Location{URL: &url.URL{Scheme: to.scheme, Host: net.JoinHostPort(at.URL.Hostname(), to.port)}, Routable: true}, nil
		})
}

// podProxy proxies to a port of the pod, by default the first that it declares.
func podProxy() resource.Subresource {
	return proxy("PodProxyOptions", "pod",
		func() *corev1.PodProxyOptions { return &corev1.PodProxyOptions{} },
		func(o *corev1.PodProxyOptions) string { return o.Path },
		func(ctx context.Context, target resource.Target, to proxied) (*resource.Location, error) {
			pod, err := other[*corev1.Pod](ctx, target, "pods", to.name)
			if err != nil {
				return nil, err
			}
			if i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return len(c.Ports) > 0 }); to.port == "" && i >= 0 {
				to.port = strconv.Itoa(int(pod.Spec.Containers[i].Ports[0].ContainerPort))
			}
			address := ""
			if len(pod.Status.PodIPs) > 0 {
				address = pod.Status.PodIPs[0].IP
			}
			ip := utilnet.ParseIPSloppy(address)
			if ip == nil || !ip.IsGlobalUnicast() {
				return nil, errors.NewBadRequest("address not allowed")
			}
			host := net.JoinHostPort(address, to.port)
			if to.port == "" {
				host = host[:len(host)-1]
			}
			return &resource.Location{URL: &url.URL{Scheme: to.scheme, Host: host}}, nil
		})
}

// serviceProxy proxies to a random ready endpoint of the service.
func serviceProxy(alloc Allocator) resource.Subresource {
	return proxy("ServiceProxyOptions", "service",
		func() *corev1.ServiceProxyOptions { return &corev1.ServiceProxyOptions{} },
		func(o *corev1.ServiceProxyOptions) string { return o.Path },
		func(ctx context.Context, target resource.Target, to proxied) (*resource.Location, error) {
			if number, err := strconv.ParseInt(to.port, 10, 64); err == nil {
				// Endpoints have the names of service ports, not their numbers.
				service, err := other[*corev1.Service](ctx, target, "services", to.name)
				if err != nil {
					return nil, err
				}
				i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == number })
				if i < 0 {
					return nil, errors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, to.name))
				}
				to.port = service.Spec.Ports[i].Name
			}
			endpoints, err := serviceEndpoints(ctx, target, to, alloc.Families()[0])
			if err != nil {
				return nil, err
			}
			for _, i := range rand.Perm(len(endpoints)) {
				if e := endpoints[i]; isPodAddress(ctx, target, e.pod, e.address) {
					return &resource.Location{URL: &url.URL{Scheme: to.scheme, Host: net.JoinHostPort(e.address, strconv.Itoa(int(e.port)))}}, nil
				}
			}
			return nil, errors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", to.name))
		})
}

// endpoint is an address and port behind a service.
type endpoint struct {
	address string
	port    int32
	pod     *corev1.ObjectReference
}

// serviceEndpoints returns the ready endpoints behind the port of a service: those of the
// preferred IP family if there are any, otherwise of the other.
func serviceEndpoints(ctx context.Context, target resource.Target, to proxied, family corev1.IPFamily) ([]endpoint, error) {
	lister, err := target.Other(discoveryv1.GroupName, "endpointslices")
	if err != nil {
		return nil, nil // endpointslices are not served
	}
	objs, err := lister.List(ctx, target.Namespace())
	if err != nil {
		return nil, errors.NewInternalError(err)
	}
	var preferred, others []endpoint
	for _, obj := range objs {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != to.name {
			continue
		}
		list := &others
		if slice.AddressType == discoveryv1.AddressType(family) {
			list = &preferred
		}
		for _, port := range slice.Ports {
			if port.Name == nil || *port.Name != to.port || port.Port == nil {
				continue
			}
			for _, e := range slice.Endpoints {
				if ptr.Deref(e.Conditions.Ready, true) && len(e.Addresses) > 0 {
					*list = append(*list, endpoint{e.Addresses[0], *port.Port, e.TargetRef})
				}
			}
		}
	}
	if len(preferred) > 0 {
		return preferred, nil
	}
	return others, nil
}

// isPodAddress reports whether an endpoint has the address of its pod. Others are not
// proxied to: users can write endpoints, and the server may reach what they cannot.
func isPodAddress(ctx context.Context, target resource.Target, ref *corev1.ObjectReference, address string) bool {
	if ref == nil || ref.Namespace != target.Namespace() {
		return false
	}
	pod, err := other[*corev1.Pod](ctx, target, "pods", ref.Name)
	return err == nil && slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == address })
}

// other reads an object of the core group in the namespace of a target.
func other[T resource.Object](ctx context.Context, target resource.Target, resource, name string) (T, error) {
	var none T
	lister, err := target.Other("", resource)
	if err != nil {
		return none, err
	}
	obj, err := lister.Get(ctx, target.Namespace(), name)
	if err != nil {
		return none, err
	}
	return obj.(T), nil
}
