package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Errors of a Pool. Their texts are part of error messages to clients.
var (
	ErrFull      = errors.New("range is full")
	ErrAllocated = errors.New("already allocated")
)

// Default range of node ports.
const defaultFirstPort, defaultLastPort = 30000, 32767

func defaultServiceRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
}

// Allocator allocates cluster IPs and node ports, each to one service at most. Servers that
// share a storage must use an Allocator that shares its reservations.
type Allocator interface {
	// Families are the IP families of the cluster, the default one first.
	Families() []corev1.IPFamily
	// Addresses returns the pool of cluster IPs of a family.
	Addresses(family corev1.IPFamily) Pool[netip.Addr]
	// NodePorts returns the pool of node ports.
	NodePorts() Pool[int32]
}

// Pool is a set of values of which each is reserved by one service at most. It
// is safe for concurrent use.
type Pool[V any] interface {
	// Reserve reserves a value; ErrAllocated if it is taken.
	Reserve(ctx context.Context, owner types.NamespacedName, v V) error
	// ReserveAny reserves a free value; ErrFull if there is none.
	ReserveAny(ctx context.Context, owner types.NamespacedName) (V, error)
	// Release frees a value. It is not an error if the owner does not have it.
	Release(ctx context.Context, owner types.NamespacedName, v V) error
	// Check is Reserve for a dry run: it returns the error of kube-apiserver, and
	// reserves nothing.
	Check(ctx context.Context, v V) error
	// Example returns a value for the response to a dry run of ReserveAny.
	Example() V
}

// MemoryAllocatorConfig configures a MemoryAllocator.
type MemoryAllocatorConfig struct {
	// ServiceCIDRs has one range, or one of each family, the default family first;
	// 10.0.0.0/24 if it is empty. An IPv6 range has a prefix of at least 64 bits.
	ServiceCIDRs []netip.Prefix
	// FirstNodePort and LastNodePort default to 30000 and 32767.
	FirstNodePort, LastNodePort int32
	// Existing lists existing services. It is called once, before the first
	// reservation, and again after an error.
	Existing func(ctx context.Context) ([]*corev1.Service, error)
}

// MemoryAllocator is the Allocator of a server that does not share its storage. Each
// reservation is a map entry; free values need no memory.
type MemoryAllocator struct {
	existing func(ctx context.Context) ([]*corev1.Service, error)

	mu        sync.Mutex
	loaded    bool
	families  []corev1.IPFamily
	addresses map[corev1.IPFamily]*memoryPool[netip.Addr]
	nodePorts *memoryPool[int32]
}

// NewMemoryAllocator returns an allocator. It panics for invalid ranges.
func NewMemoryAllocator(cfg MemoryAllocatorConfig) *MemoryAllocator {
	if len(cfg.ServiceCIDRs) == 0 {
		cfg.ServiceCIDRs = defaultServiceRanges()
	}
	if cfg.FirstNodePort == 0 && cfg.LastNodePort == 0 {
		cfg.FirstNodePort, cfg.LastNodePort = defaultFirstPort, defaultLastPort
	}
	a := &MemoryAllocator{existing: cfg.Existing, addresses: map[corev1.IPFamily]*memoryPool[netip.Addr]{}}
	for _, cidr := range cfg.ServiceCIDRs {
		family := addressFamily(cidr.Addr())
		if a.addresses[family] != nil {
			panic(fmt.Sprintf("core: two service ranges of family %s", family))
		}
		a.families = append(a.families, family)
		a.addresses[family] = addressPool(a, cidr.Masked())
	}
	a.nodePorts = portPool(a, cfg.FirstNodePort, cfg.LastNodePort)
	return a
}

// Families implements Allocator.
func (a *MemoryAllocator) Families() []corev1.IPFamily { return a.families }

// Addresses implements Allocator.
func (a *MemoryAllocator) Addresses(family corev1.IPFamily) Pool[netip.Addr] {
	return a.addresses[family]
}

// NodePorts implements Allocator.
func (a *MemoryAllocator) NodePorts() Pool[int32] { return a.nodePorts }

// lock locks the allocator, and first reserves the values of existing services.
func (a *MemoryAllocator) lock(ctx context.Context) error {
	a.mu.Lock()
	if a.loaded || a.existing == nil {
		return nil
	}
	services, err := a.existing(ctx)
	if err != nil {
		a.mu.Unlock()
		return fmt.Errorf("reading the existing services: %w", err)
	}
	for _, s := range services {
		for _, ip := range clusterAddresses(s) {
			if p := a.addresses[addressFamily(ip)]; p != nil {
				p.take(ip)
			}
		}
		for _, port := range reservedPorts(s) {
			a.nodePorts.take(port)
		}
	}
	a.loaded = true
	return nil
}

// span is a range of values with indexes from 0 to size-1. Random values are taken from
// indexes above static while there are free ones, so that lower ones remain for services that
// choose a value.
type span[V any] struct {
	size, static uint64
	example      V

	index func(v V) (uint64, bool)
	value func(i uint64) V
	// outside and taken make the errors of Reserve, check the error of Check.
	outside, taken func(v V) error
	check          func(v V, inRange, used bool) error
}

// pick calls try with the indexes of the span, starting at a random one, until try returns
// true or an error. It returns ErrFull if none was taken.
func (s *span[V]) pick(try func(i uint64) (bool, error)) error {
	for _, part := range [][2]uint64{{s.static, s.size}, {0, s.static}} {
		first, n := part[0], part[1]-part[0]
		if n == 0 {
			continue
		}
		for i, start := uint64(0), rand.Uint64N(n); i < n; i++ {
			if taken, err := try(first + (start+i)%n); taken || err != nil {
				return err
			}
		}
	}
	return ErrFull
}

// memoryPool reserves values of a span in memory.
type memoryPool[V any] struct {
	span[V]
	of   *MemoryAllocator
	used map[uint64]struct{}
	// unowned makes the error for an owner without a name; nil if none is needed.
	unowned func(v V) error
}

func (p *memoryPool[V]) take(v V) error {
	i, ok := p.index(v)
	if !ok {
		return p.outside(v)
	}
	if _, used := p.used[i]; used {
		return p.taken(v)
	}
	p.used[i] = struct{}{}
	return nil
}

func (p *memoryPool[V]) Reserve(ctx context.Context, owner types.NamespacedName, v V) error {
	if err := p.of.lock(ctx); err != nil {
		return err
	}
	defer p.of.mu.Unlock()
	if _, ok := p.index(v); ok && owner.Name == "" && p.unowned != nil {
		return p.unowned(v)
	}
	return p.take(v)
}

func (p *memoryPool[V]) ReserveAny(ctx context.Context, owner types.NamespacedName) (v V, err error) {
	if err := p.of.lock(ctx); err != nil {
		return v, err
	}
	defer p.of.mu.Unlock()
	err = p.pick(func(i uint64) (bool, error) {
		if _, used := p.used[i]; used {
			return false, nil
		}
		if owner.Name == "" && p.unowned != nil {
			return false, p.unowned(p.value(i))
		}
		p.used[i], v = struct{}{}, p.value(i)
		return true, nil
	})
	return v, err
}

func (p *memoryPool[V]) Release(ctx context.Context, _ types.NamespacedName, v V) error {
	if err := p.of.lock(ctx); err != nil {
		return err
	}
	defer p.of.mu.Unlock()
	if i, ok := p.index(v); ok {
		delete(p.used, i)
	}
	return nil
}

func (p *memoryPool[V]) Check(ctx context.Context, v V) error {
	if err := p.of.lock(ctx); err != nil {
		return err
	}
	defer p.of.mu.Unlock()
	i, ok := p.index(v)
	_, used := p.used[i]
	return p.check(v, ok, ok && used)
}

func (p *memoryPool[V]) Example() V { return p.example }

// addressPool makes the pool of an address range.
func addressPool(a *MemoryAllocator, cidr netip.Prefix) *memoryPool[netip.Addr] {
	s, err := addressSpan(cidr)
	if err != nil {
		panic(err.Error())
	}
	return &memoryPool[netip.Addr]{
		span: *s, of: a, used: map[uint64]struct{}{},
		// Kubernetes stores a reservation as an object that refers to its owner.
		unowned: func(ip netip.Addr) error {
			return fmt.Errorf("IPAddress.networking.k8s.io %q is invalid: spec.parentRef.name: Required value", ip)
		},
	}
}

// addressSpan excludes the network address, and the broadcast address of IPv4.
func addressSpan(cidr netip.Prefix) (*span[netip.Addr], error) {
	bits := cidr.Addr().BitLen() - cidr.Bits()
	if bits > 64 {
		return nil, fmt.Errorf("core: service range %s is too large, the shortest prefix is /64", cidr)
	}
	all, size := ^uint64(0), ^uint64(0) // 2^64 addresses without the network address
	if bits < 64 {
		all = 1 << bits
		size = all - 1
	}
	if cidr.Addr().Is4() {
		size -= min(size, 1)
	}
	base := lowBits(cidr.Addr())
	s := &span[netip.Addr]{
		size: size, example: cidr.Addr(),
		static:  min(staticPart(all, 16, 16, 256), size),
		value:   func(i uint64) netip.Addr { return withLowBits(cidr.Addr(), base+1+i) },
		outside: func(netip.Addr) error { return errors.New("the provided network does not match the current range") },
		taken:   func(netip.Addr) error { return fmt.Errorf("provided IP is %w", ErrAllocated) },
		// A dry run does not check whether an address is taken.
		check: func(ip netip.Addr, inRange, _ bool) error {
			if inRange {
				return nil
			}
			return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, cidr)
		},
	}
	s.index = func(ip netip.Addr) (uint64, bool) {
		if !cidr.Contains(ip) {
			return 0, false
		}
		i := lowBits(ip) - base - 1
		return i, i < size
	}
	return s, nil
}

func portPool(a *MemoryAllocator, first, last int32) *memoryPool[int32] {
	s, err := portSpan(first, last)
	if err != nil {
		panic(err.Error())
	}
	return &memoryPool[int32]{span: *s, of: a, used: map[uint64]struct{}{}}
}

func portSpan(first, last int32) (*span[int32], error) {
	if first < 1 || last < first || last > 65535 {
		return nil, fmt.Errorf("core: no node ports from %d to %d", first, last)
	}
	size := uint64(last-first) + 1
	return &span[int32]{
		size: size, static: staticPart(size, 32, 16, 128),
		// Above the range, so that it cannot be mistaken for a reservation.
		example: last + 2,
		index:   func(p int32) (uint64, bool) { return uint64(p - first), p >= first && p <= last },
		value:   func(i uint64) int32 { return first + int32(i) },
		outside: func(int32) error {
			return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", first, last)
		},
		taken: func(int32) error { return fmt.Errorf("provided port is %w", ErrAllocated) },
		// A dry run does not check whether a port is in the range.
		check: func(_ int32, _, used bool) error {
			if used {
				return fmt.Errorf("provided port is %w", ErrAllocated)
			}
			return nil
		},
	}, nil
}

// staticPart returns the size of the lower part of a range that is used for random values
// only when the rest is full: a fraction, within bounds, and nothing of a small range.
func staticPart(size, fraction, least, most uint64) uint64 {
	if size <= least {
		return 0
	}
	return min(max(size/fraction, least), most)
}

// lowBits returns the last 64 bits of an address.
func lowBits(ip netip.Addr) uint64 {
	var n uint64
	for _, b := range ip.AsSlice()[max(0, ip.BitLen()/8-8):] {
		n = n<<8 | uint64(b)
	}
	return n
}

func withLowBits(ip netip.Addr, n uint64) netip.Addr {
	b := ip.AsSlice()
	for i := len(b) - 1; i >= max(0, len(b)-8); i-- {
		b[i] = byte(n)
		n >>= 8
	}
	ip, _ = netip.AddrFromSlice(b)
	return ip
}
