package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// booking allocates the cluster IPs and node ports of services.
type booking struct {
	alloc Allocator
	log   *slog.Logger
}

// allocation is the allocation of one write. Values are reserved at once; values to be released are
// released when the write is committed. So a crash, or a store that does not answer, can
// leak a value, but a value never belongs to two services.
type allocation struct {
	booking
	ctx    context.Context
	owner  types.NamespacedName
	dryRun bool

	onCommit, onRevert []func(ctx context.Context) error
	// dryRunPorts are the node ports of a dry run.
	dryRunPorts []int32
}

// begin is Strategy.Begin of services.
func (b booking) begin(ctx context.Context, s, old *corev1.Service) (func(resource.Outcome), error) {
	of := s
	if s == nil {
		of = old
	}
	h := &allocation{
		booking: b, ctx: ctx, dryRun: request.From(ctx).DryRun,
		owner: types.NamespacedName{Namespace: of.Namespace, Name: of.Name},
	}
	if old != nil {
		old = b.complete(old)
	}
	var err error
	switch {
	case s == nil:
		h.releaseAll(old)
	case old == nil:
		err = h.create(s)
	default:
		err = h.update(s, old)
	}
	if err != nil {
		h.end(resource.NotWritten)
		return nil, err
	}
	return h.end, nil
}

func (h *allocation) end(o resource.Outcome) {
	steps := h.onRevert
	if o == resource.Written {
		steps = h.onCommit
	}
	if h.dryRun || o == resource.Unknown {
		return
	}
	// The release must not be cancelled with the request.
	ctx := context.WithoutCancel(h.ctx)
	for _, step := range steps {
		if err := step(ctx); err != nil {
			h.log.Warn("releasing what a service no longer has", "service", h.owner.String(), "error", err)
		}
	}
}

func (h *allocation) create(s *corev1.Service) error {
	if s.Spec.ClusterIP != "" && len(s.Spec.ClusterIPs) == 0 {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	if err := h.setFamilies(s, nil); err != nil {
		return err
	}
	if err := h.takeIPs(s); err != nil {
		return err
	}
	if wantsNodePorts(s) {
		if err := h.takeNodePorts(s); err != nil {
			return err
		}
	}
	if wantsHealthPort(s) {
		return h.takeHealthPort(s)
	}
	return nil
}

func (h *allocation) update(s, old *corev1.Service) error {
	adoptAllocated(s, old)
	followClusterIP(s, old)
	if err := h.setFamilies(s, old); err != nil {
		return err
	}
	if err := h.updateIPs(s, old); err != nil {
		return err
	}
	if wantsNodePorts(s) {
		if err := h.updateNodePorts(s, old); err != nil {
			return err
		}
	} else if wantsNodePorts(old) {
		for _, port := range nodePorts(old) {
			giveBack(h, h.alloc.NodePorts(), port)
		}
	}
	switch had, wants := wantsHealthPort(old), wantsHealthPort(s); {
	case wants && !had:
		return h.takeHealthPort(s)
	case had && !wants:
		giveBack(h, h.alloc.NodePorts(), old.Spec.HealthCheckNodePort)
	}
	return nil
}

func (h *allocation) releaseAll(old *corev1.Service) {
	for _, ip := range clusterAddresses(old) {
		h.giveBackIP(ip)
	}
	for _, port := range reservedPorts(old) {
		giveBack(h, h.alloc.NodePorts(), port)
	}
}

// adoptAllocated copies allocated values from the old service into an update that leaves them
// out.
func adoptAllocated(s, old *corev1.Service) {
	if !isExternalName(s) && !isExternalName(old) {
		if s.Spec.ClusterIP == "" {
			s.Spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	}
	if getsNodePorts(s) && getsNodePorts(old) {
		// A node port goes to the port of the same name, unless the client has given it to
		// another port.
		kept := sets.New(nodePorts(s)...)
		byName := map[string]int32{}
		for _, p := range old.Spec.Ports {
			byName[p.Name] = p.NodePort
		}
		for i := range s.Spec.Ports {
			if p := &s.Spec.Ports[i]; p.NodePort == 0 && !kept.Has(byName[p.Name]) {
				p.NodePort = byName[p.Name]
			}
		}
	}
	if wantsHealthPort(s) && wantsHealthPort(old) && s.Spec.HealthCheckNodePort == 0 {
		s.Spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// followClusterIP updates clusterIPs from clusterIP, for clients that know only clusterIP.
func followClusterIP(s, old *corev1.Service) {
	switch same := slices.Equal(s.Spec.ClusterIPs, old.Spec.ClusterIPs); {
	case s.Spec.ClusterIP == old.Spec.ClusterIP:
		if len(s.Spec.ClusterIPs) == 0 {
			s.Spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
		}
	case !same:
	case s.Spec.ClusterIP == "":
		s.Spec.ClusterIPs = nil
	default:
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
}

// takeIPs reserves an address for each IP family, the requested one or a random one.
func (h *allocation) takeIPs(s *corev1.Service) error {
	if isExternalName(s) || len(s.Spec.ClusterIPs) > 0 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil
	}
	for i, family := range s.Spec.IPFamilies {
		if i == len(s.Spec.ClusterIPs) {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "")
		}
		ip, err := h.takeIP(s, family, s.Spec.ClusterIPs[i])
		if err != nil {
			return err
		}
		if s.Spec.ClusterIPs[i] = ip; i == 0 {
			s.Spec.ClusterIP = ip
		}
	}
	return nil
}

func (h *allocation) updateIPs(s, old *corev1.Service) error {
	if samePreferredStack(s, old) {
		return nil
	}
	switch {
	case isExternalName(old) && !isExternalName(s):
		return h.takeIPs(s)
	case len(old.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
	case isExternalName(s) && !isExternalName(old):
		for _, ip := range clusterAddresses(old) {
			h.giveBackIP(ip)
		}
	case len(old.Spec.IPFamilies) == 1 && len(s.Spec.IPFamilies) == 2:
		if len(s.Spec.ClusterIPs) < 2 {
			s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "")
		}
		ip, err := h.takeIP(s, s.Spec.IPFamilies[1], s.Spec.ClusterIPs[1])
		if err != nil {
			return err
		}
		s.Spec.ClusterIPs[1] = ip
	case len(old.Spec.IPFamilies) == 2 && len(s.Spec.IPFamilies) == 1:
		if ips := clusterAddresses(old); len(ips) == 2 {
			h.giveBackIP(ips[1])
		}
	}
	return nil
}

// takeIP reserves an address, a random one if want is empty.
func (h *allocation) takeIP(s *corev1.Service, family corev1.IPFamily, want string) (string, error) {
	pool := h.alloc.Addresses(family)
	if want != "" {
		ip, ok := parseAddress(want)
		if !ok {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", want))
		}
		if err := take(h, pool, ip); isStoreFailure(err) {
			return "", errNotReserved(err)
		} else if err != nil {
			return "", invalidService(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs,
				fmt.Sprintf("failed to allocate IP %v: %v", want, err)))
		}
		return want, nil
	}
	if h.dryRun {
		return pool.Example().String(), nil
	}
	ip, err := takeAny(h, pool)
	if isStoreFailure(err) {
		return "", errNotReserved(err)
	} else if errors.Is(err, ErrFull) {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", s.Name, err))
	} else if err != nil {
		return "", invalidService(s, field.Invalid(field.NewPath("spec", "clusterIPs"), s.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
	}
	return ip.String(), nil
}

func (h *allocation) giveBackIP(ip netip.Addr) {
	// The IP family may have been removed from the cluster.
	if family := addressFamily(ip); slices.Contains(h.alloc.Families(), family) {
		giveBack(h, h.alloc.Addresses(family), ip)
	}
}

// takeNodePorts reserves the node ports of a new service. Ports of the same number share one
// node port across protocols.
func (h *allocation) takeNodePorts(s *corev1.Service) error {
	byPort := map[int32]int32{}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort == 0 && !getsNodePorts(s) {
			continue
		}
		switch given := byPort[p.Port]; {
		case given == 0:
			want := p.NodePort
			for _, other := range s.Spec.Ports {
				if other.Port == p.Port && other.NodePort != 0 {
					want = other.NodePort
					break
				}
			}
			port, err := h.takeNodePort(s, i, want)
			if err != nil {
				return err
			}
			p.NodePort, byPort[p.Port] = port, port
		case p.NodePort == 0:
			p.NodePort = given
		case p.NodePort != given:
			if _, err := h.takeNodePort(s, i, p.NodePort); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *allocation) updateNodePorts(s, old *corev1.Service) error {
	had, taken := nodePorts(old), map[int32]bool{}
	before := sets.New(had...)
	type number struct {
		protocol corev1.Protocol
		port     int32
	}
	seen := map[number]bool{}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !getsNodePorts(s):
			continue
		case p.NodePort == 0, !before.Has(p.NodePort) && !taken[p.NodePort]:
			taken[p.NodePort] = true
			port, err := h.takeNodePort(s, i, p.NodePort)
			if err != nil {
				return err
			}
			p.NodePort = port
		}
		n := number{p.Protocol, p.NodePort}
		if seen[n] {
			return fmt.Errorf("duplicate nodePort: %v", struct {
				Protocol corev1.Protocol
				NodePort int32
			}{n.protocol, n.port})
		}
		seen[n] = true
	}
	now := sets.New(nodePorts(s)...)
	for _, port := range had {
		if !now.Has(port) {
			giveBack(h, h.alloc.NodePorts(), port)
		}
	}
	return nil
}

// takeNodePort reserves the node port of the i-th port, a random one if want is zero.
func (h *allocation) takeNodePort(s *corev1.Service, i int, want int32) (int32, error) {
	if want == 0 {
		port, err := h.takeAnyPort()
		if isStoreFailure(err) {
			return 0, errNotReserved(err)
		} else if err != nil {
			return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		}
		return port, nil
	}
	if err := h.takePort(want); isStoreFailure(err) {
		return 0, errNotReserved(err)
	} else if err != nil {
		return 0, invalidService(s, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), want, err.Error()))
	}
	return want, nil
}

// isStoreFailure reports whether an address or port could not be reserved because the store
// did not answer: nothing is wrong with the service.
func isStoreFailure(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServiceUnavailable(err)
}

// errNotReserved is the answer to a write of a service that did nothing, since the store
// did not answer a reservation. The client sends it again; a reservation that was made
// without an answer is taken back by the repair.
func errNotReserved(cause error) error {
	err := apierrors.NewServiceUnavailable(fmt.Sprintf("failed to allocate an address or port: %v", cause))
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

func (h *allocation) takeHealthPort(s *corev1.Service) error {
	if want := s.Spec.HealthCheckNodePort; want != 0 {
		if err := h.takePort(want); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", want, err))
		}
		return nil
	}
	port, err := h.takeAnyPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %v", port, err))
	}
	s.Spec.HealthCheckNodePort = port
	return nil
}

func (h *allocation) takePort(port int32) error {
	if slices.Contains(h.dryRunPorts, port) {
		return fmt.Errorf("provided port is %w", ErrAllocated)
	}
	if err := take(h, h.alloc.NodePorts(), port); err != nil {
		return err
	}
	if h.dryRun {
		h.dryRunPorts = append(h.dryRunPorts, port)
	}
	return nil
}

func (h *allocation) takeAnyPort() (int32, error) {
	if !h.dryRun {
		return takeAny(h, h.alloc.NodePorts())
	}
	port := h.alloc.NodePorts().Example()
	if len(h.dryRunPorts) > 0 {
		port = slices.Max(h.dryRunPorts) + 1
	}
	h.dryRunPorts = append(h.dryRunPorts, port)
	return port, nil
}

func take[V any](h *allocation, pool Pool[V], v V) error {
	if h.dryRun {
		return pool.Check(h.ctx, v)
	}
	if err := pool.Reserve(h.ctx, h.owner, v); err != nil {
		return err
	}
	h.onRevert = append(h.onRevert, func(ctx context.Context) error { return pool.Release(ctx, h.owner, v) })
	return nil
}

func takeAny[V any](h *allocation, pool Pool[V]) (V, error) {
	v, err := pool.ReserveAny(h.ctx, h.owner)
	if err == nil {
		h.onRevert = append(h.onRevert, func(ctx context.Context) error { return pool.Release(ctx, h.owner, v) })
	}
	return v, err
}

func giveBack[V any](h *allocation, pool Pool[V], v V) {
	h.onCommit = append(h.onCommit, func(ctx context.Context) error { return pool.Release(ctx, h.owner, v) })
}

// clusterAddresses returns the cluster IPs that a service has reserved.
func clusterAddresses(s *corev1.Service) []netip.Addr {
	if isExternalName(s) {
		return nil
	}
	ips := s.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{s.Spec.ClusterIP}
	}
	var addresses []netip.Addr
	for _, text := range ips {
		if ip, ok := parseAddress(text); ok {
			addresses = append(addresses, ip)
		}
	}
	return addresses
}

// reservedPorts returns the node ports that a service has reserved.
func reservedPorts(s *corev1.Service) []int32 {
	ports := nodePorts(s)
	if wantsHealthPort(s) && s.Spec.HealthCheckNodePort > 0 {
		ports = append(ports, s.Spec.HealthCheckNodePort)
	}
	return ports
}

func parseAddress(text string) (netip.Addr, bool) {
	ip, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(text))
	return ip.Unmap(), ok
}

func addressFamily(ip netip.Addr) corev1.IPFamily {
	if ip.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func invalidService(s *corev1.Service, errs ...*field.Error) error {
	return problems.Invalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
}
