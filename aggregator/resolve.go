package aggregator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
)

// This file finds the addresses of a backend, and of other services.

// service returns the Service of the backend, from the cache.
func (b *backend) service(ctx context.Context) (*corev1.Service, error) {
	obj, err := b.server.Objects("", "services").Get(ctx, b.spec.Service.Namespace, b.spec.Service.Name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Service), nil
}

// endpoints returns the endpoint slices of the Service.
func (b *backend) endpoints(ctx context.Context) ([]*discoveryv1.EndpointSlice, error) {
	return endpointSlices(ctx, b.server.Objects, b.spec.Service.Namespace, b.spec.Service.Name)
}

// resolve returns the URL of the backend; a random one if there are several.
func (b *backend) resolve(ctx context.Context) (*url.URL, error) {
	ref := b.spec.Service
	if b.server.Resolve != nil {
		return b.server.Resolve(ctx, ref.Namespace, ref.Name, servicePort(ref))
	}
	targets := b.target.Load()
	if targets == nil {
		found, err := b.find(ctx)
		if err != nil {
			return nil, err
		}
		targets = &found
		b.target.Store(targets)
	}
	return (*targets)[rand.IntN(len(*targets))], nil
}

// find looks up the addresses of the Service; there is at least one.
func (b *backend) find(ctx context.Context) ([]*url.URL, error) {
	ref := b.spec.Service
	hosts, err := (&Resolver{Objects: b.server.Objects, Endpoints: b.server.EndpointRouting}).Addresses(ctx, ref.Namespace, ref.Name, servicePort(ref))
	if err != nil {
		return nil, err
	}
	targets := make([]*url.URL, len(hosts))
	for i, host := range hosts {
		targets[i] = &url.URL{Scheme: "https", Host: host}
	}
	return targets, nil
}

// Resolver finds the addresses of Services.
type Resolver struct {
	// Objects reads Services and EndpointSlices from the cache.
	Objects func(group, resource string) resource.Lister
	// Endpoints finds endpoints of services instead of cluster IPs:
	// --enable-aggregator-routing.
	Endpoints bool
}

// Addresses returns the host:port of a Service, any of which can be asked; there is at
// least one.
func (r *Resolver) Addresses(ctx context.Context, namespace, name string, number int32) ([]string, error) {
	obj, err := r.Objects("", "services").Get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "service"}, name)
	}
	if err != nil {
		return nil, err
	}
	service := obj.(*corev1.Service)
	at := func(host string) []string { return []string{net.JoinHostPort(host, strconv.Itoa(int(number)))} }
	switch {
	case service.Spec.Type == corev1.ServiceTypeExternalName && r.Endpoints:
		return nil, fmt.Errorf("unsupported service type %q", service.Spec.Type)
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return at(service.Spec.ExternalName), nil
	case !r.Endpoints && (service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone):
		return nil, fmt.Errorf("cannot route to service with ClusterIP %q", service.Spec.ClusterIP)
	}
	port := findPort(service, number)
	if port == nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
	}
	if !r.Endpoints {
		return at(service.Spec.ClusterIP), nil
	}
	found, err := endpointSlices(ctx, r.Objects, namespace, name)
	if err != nil {
		return nil, err
	}
	// Endpoints of the first family of the service are preferred.
	var preferred []*discoveryv1.EndpointSlice
	if families := service.Spec.IPFamilies; len(families) > 0 {
		for _, slice := range found {
			if string(slice.AddressType) == string(families[0]) {
				preferred = append(preferred, slice)
			}
		}
	}
	hosts := readyHosts(preferred, port.Name)
	if len(hosts) == 0 {
		hosts = readyHosts(found, port.Name)
	}
	if len(hosts) == 0 {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
	}
	return hosts, nil
}

// endpointSlices returns the slices of a Service.
func endpointSlices(ctx context.Context, objects func(group, resource string) resource.Lister, namespace, service string) ([]*discoveryv1.EndpointSlice, error) {
	objs, err := objects("discovery.k8s.io", "endpointslices").List(ctx, namespace)
	if err != nil {
		return nil, err
	}
	var found []*discoveryv1.EndpointSlice
	for _, obj := range objs {
		if slice := obj.(*discoveryv1.EndpointSlice); slice.Labels[discoveryv1.LabelServiceName] == service {
			found = append(found, slice)
		}
	}
	return found, nil
}

func findPort(service *corev1.Service, number int32) *corev1.ServicePort {
	for i := range service.Spec.Ports {
		if service.Spec.Ports[i].Port == number {
			return &service.Spec.Ports[i]
		}
	}
	return nil
}

// readyHosts returns the host:port of the endpoints that are ready, for a named port.
func readyHosts(slices []*discoveryv1.EndpointSlice, portName string) []string {
	var hosts []string
	for _, slice := range slices {
		for _, port := range slice.Ports {
			if port.Port == nil || port.Name == nil || *port.Name != portName {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if ready := endpoint.Conditions.Ready; (ready == nil || *ready) && len(endpoint.Addresses) > 0 {
					hosts = append(hosts, net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*port.Port))))
				}
			}
		}
	}
	return hosts
}
