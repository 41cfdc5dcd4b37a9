package controlplane

import (
	"context"
	"math"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/store"
)

// measuredAllocator counts the addresses and ports that services get.
type measuredAllocator struct {
	*core.ClusterAllocator
	resources *rest.Handler
	metrics   measure.Sink
}

// Addresses implements core.Allocator.
func (m *measuredAllocator) Addresses(family corev1.IPFamily) core.Pool[netip.Addr] {
	return measuredPool[netip.Addr]{m.ClusterAllocator.Addresses(family), func(ip netip.Addr, scope string, began time.Time, err error) {
		cidr := m.serviceRange(ip)
		if err != nil {
			measure.Count(m.metrics, measure.IPAllocationErrors, cidr, scope)
			return
		}
		measure.Count(m.metrics, measure.IPAllocations, cidr, scope)
		measure.Since(m.metrics, began, measure.IPAllocationDuration, cidr)
	}}
}

// NodePorts implements core.Allocator.
func (m *measuredAllocator) NodePorts() core.Pool[int32] {
	return measuredPool[int32]{m.ClusterAllocator.NodePorts(), func(_ int32, scope string, _ time.Time, err error) {
		if err != nil {
			measure.Count(m.metrics, measure.PortAllocationErrors, scope)
			return
		}
		measure.Count(m.metrics, measure.PortAllocations, scope)
	}}
}

// measuredPool tells what is reserved: a static value, or a dynamic one.
type measuredPool[V any] struct {
	core.Pool[V]
	reserved func(v V, scope string, began time.Time, err error)
}

// Reserve implements core.Pool.
func (p measuredPool[V]) Reserve(ctx context.Context, owner k8stypes.NamespacedName, v V) error {
	began := time.Now()
	err := p.Pool.Reserve(ctx, owner, v)
	p.reserved(v, "static", began, err)
	return err
}

// ReserveAny implements core.Pool.
func (p measuredPool[V]) ReserveAny(ctx context.Context, owner k8stypes.NamespacedName) (V, error) {
	began := time.Now()
	v, err := p.Pool.ReserveAny(ctx, owner)
	p.reserved(v, "dynamic", began, err)
	return v, err
}

// serviceRanges returns the ranges from which services get their cluster IPs.
func (m *measuredAllocator) serviceRanges() (all []netip.Prefix) {
	objects, err := m.resources.Objects(networkingv1.GroupName, "servicecidrs").List(context.Background(), "")
	if err != nil {
		return nil
	}
	for _, obj := range objects {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			if cidr, err := netip.ParsePrefix(text); err == nil {
				all = append(all, cidr)
			}
		}
	}
	return all
}

// serviceRange is the smallest one that has an address; the first if none has.
func (m *measuredAllocator) serviceRange(ip netip.Addr) string {
	all := m.serviceRanges()
	best := -1
	for i, cidr := range all {
		if cidr.Contains(ip) && (best < 0 || cidr.Bits() > all[best].Bits()) {
			best = i
		}
	}
	if len(all) == 0 {
		return ""
	}
	return all[max(best, 0)].String()
}

// collect tells how many addresses and ports are in use.
func (m *measuredAllocator) collect(gauge func(name string, value float64, labels ...string)) {
	ctx := context.Background()
	if used, all, err := m.PortsInUse(ctx); err == nil {
		gauge("kube_apiserver_nodeport_allocator_allocated_ports", float64(used))
		gauge("kube_apiserver_nodeport_allocator_available_ports", float64(all-used))
	}
	addresses, ok := m.resources.Stored(networkingv1.GroupName, "ipaddresses")
	if !ok {
		return
	}
	snapshot, err := addresses.Snapshot(ctx, store.Read{Any: true})
	if err != nil {
		return
	}
	ranges := m.serviceRanges()
	used, prefix := make([]int, len(ranges)), addresses.Key("", "")
	snapshot.Range(prefix, "", func(r *store.Record) bool {
		if ip, err := netip.ParseAddr(r.Key[len(prefix):]); err == nil {
			for i, cidr := range ranges {
				if cidr.Contains(ip) {
					used[i]++
				}
			}
		}
		return true
	})
	for i, cidr := range ranges {
		gauge("kube_apiserver_clusterip_allocator_allocated_ips", float64(used[i]), cidr.String())
		gauge("kube_apiserver_clusterip_allocator_available_ips", usable(cidr)-float64(used[i]), cidr.String())
	}
}

// usable is how many addresses of a range services can have: not the first one, and
// with IPv4 not the last. kube-apiserver counts no further than 64 bits.
func usable(cidr netip.Prefix) float64 {
	bits := cidr.Addr().BitLen() - cidr.Bits()
	if bits >= 63 {
		return math.MaxInt64
	}
	n := float64(uint64(1)<<bits) - 1
	if cidr.Addr().Is4() {
		n--
	}
	return max(n, 0)
}
