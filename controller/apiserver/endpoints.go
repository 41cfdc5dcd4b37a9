package apiserver

//lint:file-ignore SA1019 kube-apiserver still makes Endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// How the endpoints of the service kubernetes follow the servers that there are.
const (
	// EndpointLeases keeps a key for every server, which expires with it. It is
	// the default where several servers can share a store, which is etcd; servers
	// that are kube-apiserver keep such keys too.
	EndpointLeases = "lease"
	// EndpointCount keeps the addresses of as many servers as there are said to be.
	EndpointCount = "master-count"
	// EndpointNone leaves the endpoints to somebody else.
	EndpointNone = "none"
)

// The times are those of kube-apiserver.
const (
	leasePrefix    = storage.Root + "masterleases/"
	leaseTTL       = 15 * time.Second
	endpointsEvery = 10 * time.Second
)

// CheckEndpoints returns an error unless how is one of the constants above, or empty.
func CheckEndpoints(how string) error {
	switch how {
	case "", EndpointLeases, EndpointCount, EndpointNone:
		return nil
	}
	return fmt.Errorf("unknown way to keep endpoints %q: it is %s, %s or %s", how, EndpointLeases, EndpointCount, EndpointNone)
}

// startEndpoints points to this server: at once if it is alone, and else when it is
// ready, and again and again until ctx ends.
func (s *Service) startEndpoints(ctx context.Context) error {
	switch s.Endpoints {
	case EndpointNone:
		return nil
	case "":
		err := s.pointHere(ctx)
		if apierrors.IsInvalid(err) {
			// An address that only this machine knows cannot be an endpoint, but is
			// what tests advertise.
			s.Logger.Warn("the service kubernetes has no endpoints", "error", err)
			return nil
		}
		if err != nil {
			return err
		}
		clock.Background(ctx, s.Running, endpointsEvery, func() {
			if err := s.pointHere(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Warn("the endpoints of the service kubernetes could not be brought up to date", "error", err)
			}
		})
		return nil
	}
	// One that died here may have left its address. One that this server replaces without
	// a gap still needs it.
	if !s.Replaces {
		if err := s.removeEndpoint(ctx); err != nil {
			s.Logger.Warn("the old endpoint of the service kubernetes is still there", "error", err)
		}
	}
	s.Running.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-s.Ready:
		}
		s.endpoint.keep(ctx, endpointsEvery, s.renewEndpoint)
	})
	return nil
}

// pointHere makes this server the only endpoint.
func (s *Service) pointHere(ctx context.Context) error {
	return s.point(ctx, func([]string) ([]string, error) { return []string{s.IP}, nil })
}

// renewEndpoint makes this server one of those that there are.
func (s *Service) renewEndpoint(ctx context.Context) error {
	if s.Endpoints == EndpointLeases {
		if err := s.renewLease(ctx); err != nil {
			return err
		}
	}
	return s.point(ctx, func(now []string) ([]string, error) {
		if s.Endpoints == EndpointLeases {
			ips, err := s.leases(ctx)
			if err == nil && len(ips) == 0 {
				err = errors.New("no server has a lease, not even this one")
			}
			return ips, err
		}
		others := slices.DeleteFunc(now, func(ip string) bool { return ip == s.IP })
		return append(others[max(0, len(others)+1-max(s.Servers, 1)):], s.IP), nil
	})
}

// removeEndpoint takes this server out.
func (s *Service) removeEndpoint(ctx context.Context) error {
	if s.Endpoints == EndpointLeases {
		if err := s.endpoint.remove(ctx); err != nil {
			return err
		}
	}
	return s.point(ctx, func(now []string) ([]string, error) {
		if s.Endpoints == EndpointLeases {
			return s.leases(ctx)
		}
		return slices.DeleteFunc(now, func(ip string) bool { return ip == s.IP }), nil
	})
}

// renewLease writes the key that says that this server lives.
func (s *Service) renewLease(ctx context.Context) error {
	return s.endpoint.renew(ctx, leaseTTL, func(lease *corev1.Endpoints) {
		lease.Subsets = []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: s.IP}}}}
	})
}

// readLease reads the key of a server. What cannot be read is empty.
func readLease(value []byte) *corev1.Endpoints {
	lease := &corev1.Endpoints{}
	if _, _, raw, ok := wire.OpenEnvelope(value); !ok || lease.Unmarshal(bytes.Clone(raw)) != nil {
		return &corev1.Endpoints{}
	}
	return lease
}

// leases returns the addresses of the servers that live.
func (s *Service) leases(ctx context.Context) ([]string, error) {
	page, err := s.Leases.List(ctx, leasePrefix, storage.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ips []string
	for _, kv := range page.Items {
		if ip := addresses(readLease(kv.Value)); len(ip) > 0 {
			ips = append(ips, ip[0])
		}
	}
	return ips, nil
}

func addresses(e *corev1.Endpoints) []string {
	var ips []string
	if len(e.Subsets) > 0 {
		for _, a := range e.Subsets[0].Addresses {
			ips = append(ips, a.IP)
		}
	}
	return ips
}

// point makes the endpoints have those addresses that choose returns for those
// that they have.
func (s *Service) point(ctx context.Context, choose func(now []string) ([]string, error)) error {
	ports := []corev1.EndpointPort{{Name: "https", Port: s.Port, Protocol: corev1.ProtocolTCP}}
	var now []string
	existing, err := s.Objects(serverManager, "", "endpoints").Get(ctx, metav1.NamespaceDefault, kubernetes)
	if err == nil {
		is := existing.(*corev1.Endpoints)
		now = addresses(is)
		if len(is.Subsets) == 1 && len(is.Subsets[0].Ports) > 0 && s.Endpoints != "" {
			ports = is.Subsets[0].Ports
		}
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	ips, err := choose(now)
	if err != nil {
		return err
	}
	slices.SortFunc(ips, strings.Compare)
	if len(ips) == 1 && ips[0] == s.IP { // nobody else can say what port it is
		ports = []corev1.EndpointPort{{Name: "https", Port: s.Port, Protocol: corev1.ProtocolTCP}}
	}
	wanted := endpointsTo(slices.Compact(ips), ports)
	return s.Ensure(ctx, []resource.Object{sliceOf(wanted), wanted}, pointed)
}

func endpointsTo(ips []string, ports []corev1.EndpointPort) *corev1.Endpoints {
	e := &corev1.Endpoints{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
	}
	if len(ips) > 0 {
		e.Subsets = []corev1.EndpointSubset{{Ports: ports}}
		for _, ip := range ips {
			e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: ip})
		}
	}
	return e
}

// sliceOf returns the slice of endpoints. It has addresses of one family, IPv6
// only if there is no other.
func sliceOf(e *corev1.Endpoints) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: kubernetes},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
	}
	ips := addresses(e)
	is6 := func(ip string) bool {
		a, err := netip.ParseAddr(ip)
		return err == nil && a.Is6()
	}
	if len(ips) > 0 && !slices.ContainsFunc(ips, func(ip string) bool { return !is6(ip) }) {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, ip := range ips {
		if is6(ip) == (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			})
		}
	}
	if len(e.Subsets) > 0 {
		for _, p := range e.Subsets[0].Ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: new(p.Port), Protocol: new(p.Protocol)})
		}
	}
	return slice
}

// pointed brings endpoints that are there up to date.
func pointed(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
	switch wanted := wanted.(type) {
	case *discoveryv1.EndpointSlice:
		now := existing.(*discoveryv1.EndpointSlice)
		if now.AddressType != wanted.AddressType {
			return wanted, bootstrap.Recreate
		}
		if equality.Semantic.DeepEqual(now.Endpoints, wanted.Endpoints) && equality.Semantic.DeepEqual(now.Ports, wanted.Ports) &&
			equality.Semantic.DeepEqual(now.Labels, wanted.Labels) {
			return existing, bootstrap.Keep
		}
		now = now.DeepCopy()
		now.Endpoints, now.Ports, now.Labels = wanted.Endpoints, wanted.Ports, wanted.Labels
		return now, bootstrap.Update
	case *corev1.Endpoints:
		now := existing.(*corev1.Endpoints)
		if now.Labels[discoveryv1.LabelSkipMirror] == "true" && equality.Semantic.DeepEqual(now.Subsets, wanted.Subsets) {
			return existing, bootstrap.Keep
		}
		now = now.DeepCopy()
		if now.Labels == nil {
			now.Labels = map[string]string{}
		}
		now.Subsets, now.Labels[discoveryv1.LabelSkipMirror] = wanted.Subsets, "true"
		return now, bootstrap.Update
	}
	return existing, bootstrap.Keep
}
