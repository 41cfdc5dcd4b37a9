package core

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

var somebody = types.NamespacedName{Namespace: "ns", Name: "svc"}

func TestMemoryAllocatorAddresses(t *testing.T) {
	ctx := context.Background()
	tests := []struct {
		cidr        string
		first, last string
		// before and after are the nearest addresses that are not given.
		before, after string
		usable        int
		static        uint64
	}{
		{cidr: "10.0.0.0/24", first: "10.0.0.1", last: "10.0.0.254", before: "10.0.0.0", after: "10.0.0.255", usable: 254, static: 16},
		{cidr: "192.168.1.128/28", first: "192.168.1.129", last: "192.168.1.142", before: "192.168.1.128", after: "192.168.1.143", usable: 14},
		{cidr: "10.0.0.0/16", first: "10.0.0.1", last: "10.0.255.254", before: "10.0.0.0", after: "10.0.255.255", static: 256},
		{cidr: "fd00::/120", first: "fd00::1", last: "fd00::ff", before: "fd00::", after: "fd00::100", usable: 255, static: 16},
		{cidr: "fd00::/64", first: "fd00::1", last: "fd00::ffff:ffff:ffff:fffe", before: "fd00::", after: "fd00:0:0:1::", static: 256},
	}
	for _, tt := range tests {
		t.Run(tt.cidr, func(t *testing.T) {
			a := NewMemoryAllocator(MemoryAllocatorConfig{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix(tt.cidr)}})
			pool := a.Addresses(a.Families()[0]).(*memoryPool[netip.Addr])
			if pool.static != tt.static {
				t.Errorf("%d addresses are for those who choose, want %d", pool.static, tt.static)
			}
			for _, ip := range []string{tt.before, tt.after} {
				if err := pool.Reserve(ctx, somebody, netip.MustParseAddr(ip)); err == nil || !strings.Contains(err.Error(), "does not match the current range") {
					t.Errorf("reserving %s: %v", ip, err)
				}
				if err := pool.Check(ctx, netip.MustParseAddr(ip)); err == nil || !strings.HasSuffix(err.Error(), "The range of valid IPs is "+tt.cidr) {
					t.Errorf("checking %s: %v", ip, err)
				}
			}
			for _, text := range []string{tt.first, tt.last} {
				ip := netip.MustParseAddr(text)
				if i, ok := pool.index(ip); !ok || pool.value(i) != ip {
					t.Errorf("%s is number %d, %v, which is %s", ip, i, ok, pool.value(i))
				}
				if err := pool.Reserve(ctx, somebody, ip); err != nil {
					t.Errorf("reserving %s: %v", ip, err)
				}
				if err := pool.Reserve(ctx, somebody, ip); !errors.Is(err, ErrAllocated) || err.Error() != "provided IP is already allocated" {
					t.Errorf("reserving %s again: %v", ip, err)
				}
				if err := pool.Release(ctx, somebody, ip); err != nil {
					t.Errorf("releasing %s: %v", ip, err)
				}
			}
			if tt.usable == 0 {
				return
			}
			got := map[netip.Addr]bool{}
			for n := range tt.usable {
				ip, err := pool.ReserveAny(ctx, somebody)
				if err != nil || got[ip] {
					t.Fatalf("address %d: %s, %v", n, ip, err)
				}
				got[ip] = true
				if i, _ := pool.index(ip); i < tt.static && n < tt.usable-int(tt.static) {
					t.Fatalf("%s was given although there are others", ip)
				}
			}
			if _, err := pool.ReserveAny(ctx, somebody); !errors.Is(err, ErrFull) {
				t.Errorf("an address too many: %v", err)
			}
		})
	}
}

func TestMemoryAllocatorPorts(t *testing.T) {
	ctx := context.Background()
	a := NewMemoryAllocator(MemoryAllocatorConfig{})
	pool := a.NodePorts().(*memoryPool[int32])
	if pool.size != 2768 || pool.static != 86 {
		t.Errorf("%d ports, %d of them for those who choose", pool.size, pool.static)
	}
	for _, port := range []int32{29999, 32768} {
		if err := pool.Reserve(ctx, somebody, port); err == nil || err.Error() != "provided port is not in the valid range. The range of valid ports is 30000-32767" {
			t.Errorf("port %d: %v", port, err)
		}
		if err := pool.Check(ctx, port); err != nil {
			t.Errorf("a dry run with port %d: %v", port, err)
		}
	}
	if err := pool.Reserve(ctx, somebody, 30000); err != nil {
		t.Error(err)
	}
	if err := pool.Check(ctx, 30000); !errors.Is(err, ErrAllocated) {
		t.Errorf("a dry run with a port in use: %v", err)
	}
	if port, err := pool.ReserveAny(ctx, types.NamespacedName{}); err != nil || port < 30086 || port > 32767 {
		t.Errorf("any port: %d, %v", port, err)
	}
}

func TestMemoryAllocatorExisting(t *testing.T) {
	ctx := context.Background()
	calls := 0
	a := NewMemoryAllocator(MemoryAllocatorConfig{Existing: func(context.Context) ([]*corev1.Service, error) {
		if calls++; calls == 1 {
			return nil, errors.New("not yet")
		}
		return []*corev1.Service{
			{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.7", ClusterIPs: []string{"10.0.0.7", "fd00::1"},
				ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30002, Ports: []corev1.ServicePort{{NodePort: 30001}}}},
			{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.8"}},
			{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "None"}},
		}, nil
	}})
	ips := a.Addresses(corev1.IPv4Protocol)
	if err := ips.Reserve(ctx, somebody, netip.MustParseAddr("10.0.0.7")); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("before the services are known: %v", err)
	}
	for _, ip := range []string{"10.0.0.7", "10.0.0.8"} {
		if err := ips.Reserve(ctx, somebody, netip.MustParseAddr(ip)); !errors.Is(err, ErrAllocated) {
			t.Errorf("%s: %v", ip, err)
		}
	}
	for _, port := range []int32{30001, 30002} {
		if err := a.NodePorts().Reserve(ctx, somebody, port); !errors.Is(err, ErrAllocated) {
			t.Errorf("%d: %v", port, err)
		}
	}
	if calls != 2 {
		t.Errorf("the services were read %d times", calls)
	}
}

func TestMemoryAllocatorConcurrently(t *testing.T) {
	a := NewMemoryAllocator(MemoryAllocatorConfig{})
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[netip.Addr]bool{}
	for range 8 {
		wg.Go(func() {
			for range 31 {
				ip, err := a.Addresses(corev1.IPv4Protocol).ReserveAny(context.Background(), somebody)
				mu.Lock()
				if err != nil || got[ip] {
					t.Errorf("%s twice, or %v", ip, err)
				}
				got[ip] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// TestLastAddressOfALargeRange: a /64 ends with an address that a service may have.
func TestLastAddressOfALargeRange(t *testing.T) {
	for _, c := range []struct {
		cidr, ip string
		want     bool
	}{
		{"2001:db8::/64", "2001:db8::ffff:ffff:ffff:ffff", true},
		{"2001:db8::/64", "2001:db8::", false},
		{"2001:db8::/112", "2001:db8::ffff", true},
		{"10.0.0.0/24", "10.0.0.255", false},
		{"10.0.0.0/24", "10.0.0.254", true},
	} {
		s, err := addressSpan(netip.MustParsePrefix(c.cidr))
		if err != nil {
			t.Fatal(err)
		}
		i, got := s.index(netip.MustParseAddr(c.ip))
		if got != c.want {
			t.Errorf("%s in %s: got %v, want %v", c.ip, c.cidr, got, c.want)
		}
		if back := s.value(i); got && back.String() != c.ip {
			t.Errorf("%s in %s: got %s for its index", c.ip, c.cidr, back)
		}
	}
}
