package core

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// TestBooking writes a service several times and looks what is reserved.
func TestBooking(t *testing.T) {
	type write struct {
		change   func(s *corev1.Service)
		dryRun   bool
		fails    bool // the write is not committed
		lost     bool // the store does not answer
		remove   bool
		err      string
		families []corev1.IPFamily // want
		ips      int               // want reserved
		ports    []int32           // want reserved, apart from those given at random
		random   int
	}
	v4, v6 := corev1.IPv4Protocol, corev1.IPv6Protocol
	port := func(n int32) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, n }
	}
	policy := func(p corev1.IPFamilyPolicy) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.IPFamilyPolicy = &p }
	}
	kind := func(k corev1.ServiceType) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.Type = k }
	}
	none := func(*corev1.Service) {}
	tests := map[string][]write{
		"cluster IP": {
			{change: none, families: []corev1.IPFamily{v4}, ips: 1},
			{change: none, families: []corev1.IPFamily{v4}, ips: 1},
			{remove: true, dryRun: true, ips: 1},
			{remove: true, fails: true, ips: 1},
			{remove: true},
		},
		"not committed": {{change: port(30005), fails: true, families: []corev1.IPFamily{v4}}},
		"dry run":       {{change: port(30005), dryRun: true, families: []corev1.IPFamily{v4}}},
		"node ports come and go": {
			{change: port(30005), families: []corev1.IPFamily{v4}, ips: 1, ports: []int32{30005}},
			{change: port(30006), families: []corev1.IPFamily{v4}, ips: 1, ports: []int32{30006}},
			{change: port(0), families: []corev1.IPFamily{v4}, ips: 1, ports: []int32{30006}},
			{change: port(30007), fails: true, families: []corev1.IPFamily{v4}, ips: 1, ports: []int32{30006}},
			{change: kind(corev1.ServiceTypeClusterIP), families: []corev1.IPFamily{v4}, ips: 1},
			{change: port(0), families: []corev1.IPFamily{v4}, ips: 1, random: 1},
			{remove: true},
		},
		"the store does not answer": {
			{change: port(30008), lost: true, families: []corev1.IPFamily{v4}, ips: 1, ports: []int32{30008}},
			{change: port(30009), families: []corev1.IPFamily{v4}, ips: 2, ports: []int32{30008, 30009}},
			// The service has one of the two, and nobody knows which.
			{change: port(30010), lost: true, families: []corev1.IPFamily{v4}, ips: 2, ports: []int32{30008, 30009, 30010}},
			{change: kind(corev1.ServiceTypeClusterIP), lost: true, families: []corev1.IPFamily{v4}, ips: 2, ports: []int32{30008, 30009, 30010}},
			{remove: true, lost: true, ips: 2, ports: []int32{30008, 30009, 30010}},
		},
		"port out of range": {{change: port(80), err: `Service "s" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is 30000-32767`}},
		"external name": {
			{change: kind(corev1.ServiceTypeExternalName)},
			{change: none, families: []corev1.IPFamily{v4}, ips: 1},
			{change: kind(corev1.ServiceTypeExternalName)},
		},
		"headless": {{change: func(s *corev1.Service) { s.Spec.ClusterIP = "None" }, families: []corev1.IPFamily{v4, v6}}},
		"two families": {
			{change: none, families: []corev1.IPFamily{v4}, ips: 1},
			{change: policy(corev1.IPFamilyPolicyRequireDualStack), families: []corev1.IPFamily{v4, v6}, ips: 2},
			{change: policy(corev1.IPFamilyPolicySingleStack), families: []corev1.IPFamily{v4}, ips: 1},
			{change: policy(corev1.IPFamilyPolicyPreferDualStack), families: []corev1.IPFamily{v4, v6}, ips: 2},
			{remove: true},
		},
		"the second family first": {{
			change:   func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{v6} },
			families: []corev1.IPFamily{v6}, ips: 1,
		}},
		"health check port": {
			{change: func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			}, families: []corev1.IPFamily{v4}, ips: 1, random: 2},
			{change: kind(corev1.ServiceTypeLoadBalancer), families: []corev1.IPFamily{v4}, ips: 1, random: 1},
			{remove: true},
		},
		"load balancer without node ports": {{change: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(false)
		}, families: []corev1.IPFamily{v4}, ips: 1}},
	}
	for name, writes := range tests {
		t.Run(name, func(t *testing.T) {
			alloc := NewMemoryAllocator(MemoryAllocatorConfig{ServiceCIDRs: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/112"),
			}})
			book := booking{alloc: alloc, log: slog.Default()}
			var live *corev1.Service
			for i, w := range writes {
				var s *corev1.Service
				if !w.remove {
					s = &corev1.Service{
						ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
						Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
					}
					w.change(s)
					defaultService(s)
				}
				ctx := request.With(context.Background(), &request.Request{DryRun: w.dryRun})
				end, err := book.begin(ctx, s, live)
				if (err == nil) != (w.err == "") || err != nil && err.Error() != w.err {
					t.Fatalf("write %d: %v, want %q", i, err, w.err)
				}
				if err == nil {
					outcome := resource.Written
					switch {
					case w.lost:
						outcome = resource.Unknown
					case w.fails || w.dryRun:
						outcome = resource.NotWritten
					}
					end(outcome)
					if s != nil && !slices.Equal(s.Spec.IPFamilies, w.families) {
						t.Errorf("write %d: families %v, want %v", i, s.Spec.IPFamilies, w.families)
					}
					if outcome == resource.Written {
						if live = s; s != nil && wantsNodePorts(s) && getsNodePorts(s) && s.Spec.Ports[0].NodePort == 0 {
							t.Errorf("write %d: no node port", i)
						}
					}
				}
				ips := len(alloc.addresses[v4].used) + len(alloc.addresses[v6].used)
				if ips != w.ips {
					t.Errorf("write %d: %d addresses reserved, want %d", i, ips, w.ips)
				}
				var ports []int32
				for n := range maps.Keys(alloc.nodePorts.used) {
					if p := alloc.nodePorts.value(n); p < 30086 {
						ports = append(ports, p)
					}
				}
				slices.Sort(ports)
				if !slices.Equal(ports, w.ports) || len(alloc.nodePorts.used)-len(ports) != w.random {
					t.Errorf("write %d: ports %v and %d others reserved, want %v and %d", i, ports, len(alloc.nodePorts.used)-len(ports), w.ports, w.random)
				}
			}
		})
	}
}

// silentAllocator is an allocator whose store does not answer when a value is reserved.
type silentAllocator struct {
	Allocator
	addresses, ports error
}

func (a silentAllocator) Addresses(family corev1.IPFamily) Pool[netip.Addr] {
	return silentPool[netip.Addr]{a.Allocator.Addresses(family), a.addresses}
}

func (a silentAllocator) NodePorts() Pool[int32] {
	return silentPool[int32]{a.Allocator.NodePorts(), a.ports}
}

type silentPool[V any] struct {
	Pool[V]
	err error
}

func (p silentPool[V]) Reserve(ctx context.Context, owner types.NamespacedName, v V) error {
	if p.err != nil {
		return p.err
	}
	return p.Pool.Reserve(ctx, owner, v)
}

func (p silentPool[V]) ReserveAny(ctx context.Context, owner types.NamespacedName) (v V, err error) {
	if p.err != nil {
		return v, p.err
	}
	return p.Pool.ReserveAny(ctx, owner)
}

// A service is not at fault if the store does not answer a reservation: its client gets 503
// and is told to send it again.
func TestReservationWithoutAnswer(t *testing.T) {
	timeout, away := apierrors.NewTimeoutError("no answer", 0), apierrors.NewServiceUnavailable("no connection")
	memory := func() Allocator {
		return NewMemoryAllocator(MemoryAllocatorConfig{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}})
	}
	for name, c := range map[string]struct {
		alloc silentAllocator
		ip    string
		port  int32
	}{
		"any address": {alloc: silentAllocator{memory(), timeout, nil}},
		"an address":  {alloc: silentAllocator{memory(), away, nil}, ip: "10.0.0.7"},
		"any port":    {alloc: silentAllocator{memory(), nil, away}},
		"a port":      {alloc: silentAllocator{memory(), nil, timeout}, port: 30007},
	} {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: c.ip, Ports: []corev1.ServicePort{{Port: 80, NodePort: c.port}}},
			}
			defaultService(s)
			_, err := (&booking{alloc: c.alloc, log: slog.Default()}).begin(request.With(t.Context(), &request.Request{}), s, nil)
			if seconds, ok := apierrors.SuggestsClientDelay(err); !apierrors.IsServiceUnavailable(err) || !ok || seconds != 1 {
				t.Errorf("got %v, want 503 with Retry-After: 1", err)
			}
		})
	}
}
