package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/resource"
)

const (
	// DefaultServiceCIDR is the name of the ServiceCIDR with the configured ranges.
	DefaultServiceCIDR = "kubernetes"
	// addressManager is the label managed-by of the IPAddresses of services.
	addressManager = "ipallocator.k8s.io"
)

// ClusterAllocatorConfig configures a ClusterAllocator.
type ClusterAllocatorConfig struct {
	// ServiceCIDRs, FirstNodePort and LastNodePort are as in MemoryAllocatorConfig. The
	// ranges become the default ServiceCIDR; more ServiceCIDRs can be created at runtime.
	ServiceCIDRs                []netip.Prefix
	FirstNodePort, LastNodePort int32
	// Objects returns access to a resource: services, and ipaddresses and servicecidrs
	// of networking.k8s.io. Nothing is read before the first reservation.
	Objects func(group, name string) resource.Objects
	// Ranges is access to RangeAllocations.
	Ranges resource.Objects
	// Log receives the findings of repairs; nil discards them.
	Log *slog.Logger
}

// ClusterAllocator is an Allocator for any number of servers on one storage. Reservations are
// stored in the form of kube-apiserver: an address is an IPAddress object of that name, so it
// exists at most once, and refers to its service; node ports are a bitmap in one object that
// is updated with a resourceVersion precondition.
//
// A reservation is written before its service and deleted after it, so a crash in between
// leaves a reservation without a service. Repair finds those.
type ClusterAllocator struct {
	log       *slog.Logger
	cidrs     []netip.Prefix
	families  []corev1.IPFamily
	services  resource.Objects
	ips       resource.Objects
	ranges    resource.Objects // ServiceCIDRs
	addresses map[corev1.IPFamily]*clusterPool
	ports     *clusterPorts
	// otherRanges is whether a default ServiceCIDR with other ranges was reported.
	otherRanges atomic.Bool
}

// NewClusterAllocator returns an allocator, or an error for invalid ranges.
func NewClusterAllocator(cfg ClusterAllocatorConfig) (*ClusterAllocator, error) {
	if len(cfg.ServiceCIDRs) == 0 {
		cfg.ServiceCIDRs = defaultServiceRanges()
	}
	if cfg.FirstNodePort == 0 && cfg.LastNodePort == 0 {
		cfg.FirstNodePort, cfg.LastNodePort = defaultFirstPort, defaultLastPort
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	a := &ClusterAllocator{
		log:       cfg.Log,
		services:  cfg.Objects("", "services"),
		ips:       cfg.Objects(networkingv1.GroupName, "ipaddresses"),
		ranges:    cfg.Objects(networkingv1.GroupName, "servicecidrs"),
		addresses: map[corev1.IPFamily]*clusterPool{},
	}
	for _, cidr := range cfg.ServiceCIDRs {
		cidr = cidr.Masked()
		s, err := addressSpan(cidr)
		if err != nil {
			return nil, err
		}
		family := addressFamily(cidr.Addr())
		if a.addresses[family] != nil {
			return nil, fmt.Errorf("core: two service ranges of family %s", family)
		}
		a.cidrs = append(a.cidrs, cidr)
		a.families = append(a.families, family)
		a.addresses[family] = &clusterPool{of: a, family: family, configured: s}
	}
	ports, err := portSpan(cfg.FirstNodePort, cfg.LastNodePort)
	if err != nil {
		return nil, err
	}
	a.ports = &clusterPorts{
		span: *ports, of: a, ranges: cfg.Ranges, unused: map[int32]suspicion{},
		text: fmt.Sprintf("%d-%d", cfg.FirstNodePort, cfg.LastNodePort),
	}
	return a, nil
}

// Families implements Allocator.
func (a *ClusterAllocator) Families() []corev1.IPFamily { return a.families }

// First returns the first address of the range, that of the service kubernetes.
func (a *ClusterAllocator) First() netip.Addr { return a.cidrs[0].Addr().Next() }

// Addresses implements Allocator.
func (a *ClusterAllocator) Addresses(family corev1.IPFamily) Pool[netip.Addr] {
	return a.addresses[family]
}

// NodePorts implements Allocator.
func (a *ClusterAllocator) NodePorts() Pool[int32] { return a.ports }

// clusterPool is the pool of addresses of one IP family.
type clusterPool struct {
	of         *ClusterAllocator
	family     corev1.IPFamily
	configured *span[netip.Addr]
}

// spans returns the ranges to allocate from: those of all ServiceCIDRs that are ready, the
// default first. While the default does not exist, the configured range is used.
func (p *clusterPool) spans(ctx context.Context) ([]*span[netip.Addr], error) {
	objs, err := p.of.ranges.Cached().List(ctx, "")
	if err != nil {
		return nil, err
	}
	var first, rest []*span[netip.Addr]
	found := false
	for _, obj := range objs {
		c := obj.(*networkingv1.ServiceCIDR)
		isDefault := c.Name == DefaultServiceCIDR
		found = found || isDefault
		if !meta.IsStatusConditionTrue(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) || c.DeletionTimestamp != nil {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			cidr, err := netip.ParsePrefix(text)
			if err != nil || addressFamily(cidr.Addr()) != p.family {
				continue
			}
			s, err := addressSpan(cidr.Masked())
			if err != nil {
				p.of.log.Warn("service range cannot be used", "servicecidr", c.Name, "error", err)
				continue
			}
			if isDefault {
				first = append(first, s)
			} else {
				rest = append(rest, s)
			}
		}
	}
	if !found {
		first = append(first, p.configured)
	}
	return append(first, rest...), nil
}

// Reserve implements Pool.
func (p *clusterPool) Reserve(ctx context.Context, owner types.NamespacedName, ip netip.Addr) error {
	spans, err := p.spans(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(spans, func(s *span[netip.Addr]) bool { _, ok := s.index(ip); return ok }) {
		return p.configured.outside(ip)
	}
	err = p.create(ctx, owner, ip)
	if apierrors.IsAlreadyExists(err) {
		return p.configured.taken(ip)
	}
	return err
}

// ReserveAny implements Pool. Addresses that the watch cache knows to be in use are skipped;
// creating the IPAddress decides.
func (p *clusterPool) ReserveAny(ctx context.Context, owner types.NamespacedName) (ip netip.Addr, err error) {
	spans, err := p.spans(ctx)
	if err != nil {
		return ip, err
	}
	for _, s := range spans {
		err := s.pick(func(i uint64) (bool, error) {
			ip = s.value(i)
			if p.of.ips.Has(ctx, "", ip.String()) {
				return false, nil
			}
			err := p.create(ctx, owner, ip)
			if apierrors.IsAlreadyExists(err) {
				return false, nil
			}
			return err == nil, err
		})
		if !errors.Is(err, ErrFull) {
			return ip, err
		}
	}
	return netip.Addr{}, ErrFull
}

func (p *clusterPool) create(ctx context.Context, owner types.NamespacedName, ip netip.Addr) error {
	return p.of.ips.Create(ctx, newIPAddress(owner, ip))
}

// Release implements Pool. It deletes the IPAddress only if it is the owner's: a late release
// must not take the address from its next owner.
func (p *clusterPool) Release(ctx context.Context, owner types.NamespacedName, ip netip.Addr) error {
	obj, err := p.of.ips.Get(ctx, "", ip.String())
	if err == nil && ownerOf(obj.(*networkingv1.IPAddress)) == owner {
		err = p.of.deleteIP(ctx, obj)
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// deleteIP deletes an IPAddress with the resourceVersion it was read at as precondition.
func (a *ClusterAllocator) deleteIP(ctx context.Context, obj resource.Object) error {
	version := obj.GetResourceVersion()
	return a.ips.Delete(ctx, "", obj.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
}

// Check implements Pool.
func (p *clusterPool) Check(ctx context.Context, ip netip.Addr) error {
	spans, err := p.spans(ctx)
	if err != nil {
		return err
	}
	for _, s := range spans {
		if _, ok := s.index(ip); ok {
			return nil
		}
	}
	return p.configured.check(ip, false, false)
}

// Example implements Pool.
func (p *clusterPool) Example() netip.Addr { return p.configured.example }

func newIPAddress(owner types.NamespacedName, ip netip.Addr) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: ip.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(addressFamily(ip)),
			networkingv1.LabelManagedBy:       addressManager,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: owner.Namespace, Name: owner.Name,
		}},
	}
}

// ownerOf returns the service of an IPAddress, zero if it belongs to something else.
func ownerOf(ip *networkingv1.IPAddress) types.NamespacedName {
	if ref := ip.Spec.ParentRef; ref != nil && ref.Group == "" && ref.Resource == "services" {
		return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return types.NamespacedName{}
}
