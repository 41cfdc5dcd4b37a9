package core

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	// RepairEvery is the interval at which a server should call Repair.
	RepairEvery = 3 * time.Minute
	// EnsureRangesEvery is the interval at which a server should call EnsureRanges.
	EnsureRangesEvery = 10 * time.Second
	// repairAfter is the minimum age of a reservation without a service to be freed;
	// writes do not take longer.
	repairAfter = time.Minute
	// suspicions is how often a port must be found without a service to be freed.
	suspicions = 3
)

// suspicion counts how often a reserved port was found without a service. Ports have no
// creation time.
type suspicion struct {
	since time.Time
	times int
}

// EnsureRanges creates the default ServiceCIDR with the configured ranges, and sets its
// condition Ready.
func (a *ClusterAllocator) EnsureRanges(ctx context.Context) error {
	var texts []string
	for _, cidr := range a.cidrs {
		texts = append(texts, cidr.String())
	}
	obj, err := a.ranges.Cached().Get(ctx, "", DefaultServiceCIDR)
	if err == nil {
		c := obj.(*networkingv1.ServiceCIDR)
		if slices.Equal(c.Spec.CIDRs, texts) && meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) != nil {
			return nil
		}
	}
	_, err = a.ranges.Get(ctx, "", DefaultServiceCIDR)
	if apierrors.IsNotFound(err) {
		err = tolerate(a.ranges.Create(ctx, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: DefaultServiceCIDR},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: texts},
		}))
	}
	if err != nil {
		return err
	}
	return a.ranges.Update(ctx, "", DefaultServiceCIDR, func(obj resource.Object) error {
		c := obj.(*networkingv1.ServiceCIDR)
		if len(texts) == 2 && len(c.Spec.CIDRs) == 1 && texts[0] == c.Spec.CIDRs[0] {
			c.Spec.CIDRs = texts
		}
		if !slices.Equal(c.Spec.CIDRs, texts) {
			if !a.otherRanges.Swap(true) {
				a.log.Warn("the default ServiceCIDR is not what is configured", "servicecidr", c.Spec.CIDRs, "configured", texts)
			}
			return nil
		}
		// A Ready condition that exists is kept.
		if c.DeletionTimestamp == nil && meta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady) == nil {
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
				Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
				Message: "Kubernetes default Service CIDR is ready",
			})
		}
		return nil
	})
}

// Repair frees reservations that have had no service for a minute, and reserves values that
// services have. It may run on several servers at once.
func (a *ClusterAllocator) Repair(ctx context.Context) error {
	return errors.Join(a.repairAddresses(ctx), a.ports.repair(ctx))
}

// repairAddresses reads the addresses before the services: an address without a service then
// belongs to a write under way or to nobody.
func (a *ClusterAllocator) repairAddresses(ctx context.Context) error {
	ips, err := a.ips.List(ctx, "")
	if err != nil {
		return fmt.Errorf("reading the addresses: %w", err)
	}
	services, err := a.listServices(ctx)
	if err != nil {
		return err
	}
	byOwner := make(map[types.NamespacedName]*corev1.Service, len(services))
	for _, s := range services {
		byOwner[nameOf(s)] = s
	}
	has := func(owner types.NamespacedName, name string) bool {
		s := byOwner[owner]
		return s != nil && slices.ContainsFunc(clusterAddresses(s), func(ip netip.Addr) bool { return ip.String() == name })
	}
	objects := make(map[string]*networkingv1.IPAddress, len(ips))
	var errs []error
	for _, obj := range ips {
		ip := obj.(*networkingv1.IPAddress)
		objects[ip.Name] = ip
		if ip.Labels[networkingv1.LabelManagedBy] != addressManager || has(ownerOf(ip), ip.Name) || request.From(ctx).Received.Sub(ip.CreationTimestamp.Time) < repairAfter {
			continue
		}
		a.log.Warn("freeing an address that no service has", "address", ip.Name, "service", ownerOf(ip).String())
		errs = append(errs, tolerate(a.deleteIP(ctx, ip)))
		delete(objects, ip.Name)
	}
	for _, s := range services {
		for _, ip := range clusterAddresses(s) {
			obj := objects[ip.String()]
			if obj != nil && has(ownerOf(obj), obj.Name) && obj.Labels[networkingv1.LabelManagedBy] == addressManager {
				if ownerOf(obj) != nameOf(s) {
					a.log.Error("two services have the same address, one of them must be made anew",
						"address", obj.Name, "service", nameOf(s).String(), "other", ownerOf(obj).String())
				}
				continue
			}
			errs = append(errs, a.restoreAddress(ctx, nameOf(s), ip, obj))
		}
	}
	return errors.Join(errs...)
}

// RepairServices reserves the addresses of services that have no IPAddress, or that of an
// owner who does not exist. Unlike Repair, it only reads the services that it is given.
func (a *ClusterAllocator) RepairServices(ctx context.Context, names []types.NamespacedName) error {
	var errs []error
	for _, name := range names {
		s, err := a.services.Cached().Get(ctx, name.Namespace, name.Name)
		if err != nil {
			errs = append(errs, tolerate(err))
			continue
		}
		for _, ip := range clusterAddresses(s.(*corev1.Service)) {
			errs = append(errs, a.repairService(ctx, name, ip))
		}
	}
	return errors.Join(errs...)
}

func (a *ClusterAllocator) repairService(ctx context.Context, name types.NamespacedName, ip netip.Addr) error {
	obj, err := a.ips.Cached().Get(ctx, "", ip.String())
	if apierrors.IsNotFound(err) {
		return a.restoreAddress(ctx, name, ip, nil)
	}
	if err != nil {
		return err
	}
	address := obj.(*networkingv1.IPAddress)
	owner := ownerOf(address)
	if address.Labels[networkingv1.LabelManagedBy] == addressManager {
		if owner == name {
			return nil
		}
		other, err := a.services.Get(ctx, owner.Namespace, owner.Name)
		if err == nil && slices.Contains(clusterAddresses(other.(*corev1.Service)), ip) {
			return nil // two services have the address; Repair reports it
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return a.restoreAddress(ctx, name, ip, address)
}

// ServicesOf returns the services whose addresses may have to be repaired after changes of
// services and IPAddresses.
func ServicesOf(changes []resource.Change) (names []types.NamespacedName) {
	for _, c := range changes {
		switch obj := c.Object.(type) {
		case *corev1.Service:
			if !c.Deleted && len(clusterAddresses(obj)) > 0 {
				names = append(names, nameOf(obj))
			}
		case *networkingv1.IPAddress:
			if c.Deleted {
				names = append(names, ownerOf(obj))
			}
		}
	}
	slices.SortFunc(names, func(x, y types.NamespacedName) int { return strings.Compare(x.String(), y.String()) })
	return slices.Compact(names)
}

// restoreAddress reserves an address for the service that has it. obj is the IPAddress of
// another owner, if there is one.
func (a *ClusterAllocator) restoreAddress(ctx context.Context, owner types.NamespacedName, ip netip.Addr, obj *networkingv1.IPAddress) error {
	if inRange, err := a.inRange(ctx, ip); err != nil || !inRange {
		return err
	}
	// The service may have been deleted, and its address reused.
	now, err := a.services.Get(ctx, owner.Namespace, owner.Name)
	if err != nil {
		return tolerate(err)
	}
	if !slices.Contains(clusterAddresses(now.(*corev1.Service)), ip) {
		return nil
	}
	if obj == nil {
		// It may have been reserved after the addresses were read.
		if made, err := a.ips.Get(ctx, "", ip.String()); err == nil && ownerOf(made.(*networkingv1.IPAddress)) == owner {
			return nil
		}
	}
	a.log.Warn("reserving an address that a service has", "address", ip.String(), "service", owner.String())
	if obj != nil {
		if err := a.deleteIP(ctx, obj); err != nil {
			return tolerate(err)
		}
	}
	return tolerate(a.ips.Create(ctx, newIPAddress(owner, ip)))
}

func (a *ClusterAllocator) inRange(ctx context.Context, ip netip.Addr) (bool, error) {
	p := a.addresses[addressFamily(ip)]
	if p == nil {
		return false, nil
	}
	spans, err := p.spans(ctx)
	return slices.ContainsFunc(spans, func(s *span[netip.Addr]) bool { _, ok := s.index(ip); return ok }), err
}

// repair creates the bitmap, or makes it agree with the services. The services are read after
// the bitmap, which must be unchanged when the new one is written: so a port of a service that
// is not in the bitmap is really missing from it.
func (p *clusterPorts) repair(ctx context.Context) error {
	var suspects map[int32]suspicion
	err := p.ranges.Update(ctx, "", portRange, func(obj resource.Object) (err error) {
		suspects, err = p.rebuild(ctx, obj.(*corev1.RangeAllocation))
		return err
	})
	if apierrors.IsNotFound(err) {
		r := &corev1.RangeAllocation{ObjectMeta: metav1.ObjectMeta{Name: portRange}}
		if _, err := p.rebuild(ctx, r); err != nil {
			return err
		}
		return tolerate(p.ranges.Create(ctx, r))
	}
	if err == nil {
		p.mu.Lock()
		p.unused = suspects
		p.mu.Unlock()
	}
	return err
}

// rebuild makes the bitmap from the ports of services, and keeps ports that may belong to
// writes under way.
func (p *clusterPorts) rebuild(ctx context.Context, r *corev1.RangeAllocation) (map[int32]suspicion, error) {
	services, err := p.of.listServices(ctx)
	if err != nil {
		return nil, err
	}
	had, used := new(big.Int), new(big.Int)
	first := int32(0) // first port of the range that the bitmap is for
	if r.Range != "" {
		had.SetBytes(r.Data)
		if _, err := fmt.Sscanf(r.Range, "%d-", &first); err != nil {
			return nil, fmt.Errorf("the node ports have the range %q: %w", r.Range, err)
		}
	}
	for _, s := range services {
		for _, port := range reservedPorts(s) {
			i, ok := p.index(port)
			if !ok {
				p.of.log.Warn("a node port is outside of the range", "port", port, "service", nameOf(s).String(), "range", p.text)
				continue
			}
			if at := int(port - first); r.Range != "" && (at < 0 || had.Bit(at) == 0) {
				p.of.log.Warn("reserving a node port that a service has", "port", port, "service", nameOf(s).String())
			}
			used.SetBit(used, int(i), 1)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	suspects := map[int32]suspicion{}
	for at := range had.BitLen() {
		port := first + int32(at)
		i, ok := p.index(port)
		if !ok || had.Bit(at) == 0 || used.Bit(int(i)) == 1 {
			continue
		}
		s := p.unused[port]
		if s.times == 0 {
			s.since = time.Now()
		}
		s.times++
		if s.times >= suspicions && time.Since(s.since) >= repairAfter {
			p.of.log.Warn("freeing a node port that no service has", "port", port)
			continue
		}
		suspects[port] = s
		used.SetBit(used, int(i), 1)
	}
	r.Range, r.Data = p.text, used.Bytes()
	return suspects, nil
}

func (a *ClusterAllocator) listServices(ctx context.Context) ([]*corev1.Service, error) {
	objs, err := a.services.List(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("reading the services: %w", err)
	}
	services := make([]*corev1.Service, len(objs))
	for i, obj := range objs {
		services[i] = obj.(*corev1.Service)
	}
	return services, nil
}

func nameOf(s *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// tolerate returns nil for errors that mean that another server was faster.
func tolerate(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
