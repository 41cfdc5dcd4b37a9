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
)

// This file finds the addresses of a backend.

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
	objs, err := b.server.Objects("discovery.k8s.io", "endpointslices").List(ctx, b.spec.Service.Namespace)
	if err != nil {
		return nil, err
	}
	var slices []*discoveryv1.EndpointSlice
	for _, obj := range objs {
		if slice := obj.(*discoveryv1.EndpointSlice); slice.Labels[discoveryv1.LabelServiceName] == b.spec.Service.Name {
			slices = append(slices, slice)
		}
	}
	return slices, nil
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
	service, err := b.service(ctx)
	if err != nil {
		return nil, err
	}
	number := servicePort(b.spec.Service)
	at := func(host string, port int32) *url.URL {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		if b.server.EndpointRouting {
			return nil, fmt.Errorf("unsupported service type %q", service.Spec.Type)
		}
		return []*url.URL{at(service.Spec.ExternalName, number)}, nil
	}
	port := findPort(service, number)
	if port == nil {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, service.Name))
	}
	if !b.server.EndpointRouting {
		if service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone {
			return nil, fmt.Errorf("cannot route to service with ClusterIP %q", service.Spec.ClusterIP)
		}
		return []*url.URL{at(service.Spec.ClusterIP, number)}, nil
	}
	slices, err := b.endpoints(ctx)
	if err != nil {
		return nil, err
	}
	var targets []*url.URL
	for _, host := range readyHosts(slices, port.Name) {
		targets = append(targets, &url.URL{Scheme: "https", Host: host})
	}
	if len(targets) == 0 {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, service.Name)
	}
	return targets, nil
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
