package core

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/resource"
)

// shelf is a resource.Objects in memory.
type shelf struct {
	mu       sync.Mutex
	kind     schema.GroupResource
	revision int
	objects  map[string]resource.Object
}

func newShelf(name string) *shelf {
	return &shelf{kind: schema.GroupResource{Resource: name}, objects: map[string]resource.Object{}}
}

func (s *shelf) put(obj resource.Object) {
	s.revision++
	obj.SetResourceVersion(strconv.Itoa(s.revision))
	s.objects[obj.GetNamespace()+"/"+obj.GetName()] = obj
}

func (s *shelf) Get(_ context.Context, namespace, name string) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj := s.objects[namespace+"/"+name]; obj != nil {
		return obj.DeepCopyObject().(resource.Object), nil
	}
	return nil, apierrors.NewNotFound(s.kind, name)
}

func (s *shelf) List(context.Context, string) ([]resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.objects)), nil
}

func (s *shelf) Cached() resource.Lister { return s }

// Has knows nothing, as a cache that is behind.
func (s *shelf) Has(context.Context, string, string) bool { return false }

func (s *shelf) Create(_ context.Context, obj resource.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[obj.GetNamespace()+"/"+obj.GetName()] != nil {
		return apierrors.NewAlreadyExists(s.kind, obj.GetName())
	}
	obj.SetCreationTimestamp(metav1.Now())
	s.put(obj)
	return nil
}

func (s *shelf) Update(ctx context.Context, namespace, name string, change func(resource.Object) error) error {
	for {
		obj, err := s.Get(ctx, namespace, name)
		if err != nil {
			return err
		}
		version := obj.GetResourceVersion()
		if err := change(obj); err != nil {
			return err
		}
		s.mu.Lock()
		same := s.objects[namespace+"/"+name].GetResourceVersion() == version
		if same {
			s.put(obj)
		}
		s.mu.Unlock()
		if same {
			return nil
		}
	}
}

func (s *shelf) Delete(_ context.Context, namespace, name string, opts metav1.DeleteOptions) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj := s.objects[namespace+"/"+name]
	if obj == nil {
		return apierrors.NewNotFound(s.kind, name)
	}
	if p := opts.Preconditions; p != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(s.kind, name, errors.New("changed"))
	}
	delete(s.objects, namespace+"/"+name)
	return nil
}

// shelves are a storage; allocators on it are those of several servers.
type shelves map[string]*shelf

func newShelves() shelves {
	s := shelves{}
	for _, name := range []string{"services", "ipaddresses", "servicecidrs", "ranges"} {
		s[name] = newShelf(name)
	}
	return s
}

func (s shelves) allocator(cidrs ...string) *ClusterAllocator {
	cfg := ClusterAllocatorConfig{Objects: func(_, name string) resource.Objects { return s[name] }, Ranges: s["ranges"]}
	for _, cidr := range cidrs {
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix(cidr))
	}
	a, err := NewClusterAllocator(cfg)
	if err != nil {
		panic(err)
	}
	return a
}

func (s shelves) names(name string) []string {
	var names []string
	for _, obj := range s[name].objects {
		names = append(names, obj.GetName())
	}
	slices.Sort(names)
	return names
}

func serviceWith(name, ip string, port int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeNodePort, ip, []string{ip}
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: port}}
	return s
}

func TestClusterAllocatorSharesStorage(t *testing.T) {
	ctx := context.Background()
	world := newShelves()
	servers := []*ClusterAllocator{world.allocator("10.0.0.0/26"), world.allocator("10.0.0.0/26")}
	const addresses = 62
	var mu sync.Mutex
	ips, ports := map[netip.Addr]bool{}, map[int32]bool{}
	var wg sync.WaitGroup
	for i := range addresses {
		wg.Go(func() {
			a := servers[i%2]
			owner := types.NamespacedName{Namespace: "ns", Name: strconv.Itoa(i)}
			ip, err := a.Addresses(corev1.IPv4Protocol).ReserveAny(ctx, owner)
			if err != nil {
				t.Error(err)
			}
			port, err := a.NodePorts().ReserveAny(ctx, owner)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if ips[ip] || ports[port] {
				t.Errorf("%s or %d was given twice", ip, port)
			}
			ips[ip], ports[port] = true, true
		})
	}
	wg.Wait()
	if _, err := servers[0].Addresses(corev1.IPv4Protocol).ReserveAny(ctx, somebody); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	for port := range ports {
		if err := servers[0].NodePorts().Reserve(ctx, somebody, port); !errors.Is(err, ErrAllocated) {
			t.Errorf("reserving %d again: %v", port, err)
		}
	}

	ip := netip.MustParseAddr("10.0.0.1")
	pool := servers[0].Addresses(corev1.IPv4Protocol)
	if err := pool.Release(ctx, somebody, ip); err != nil || len(world.names("ipaddresses")) != addresses {
		t.Errorf("somebody has released an address of somebody else: %v", err)
	}
	obj, _ := world["ipaddresses"].Get(ctx, "", "10.0.0.1")
	if err := pool.Release(ctx, ownerOf(obj.(*networkingv1.IPAddress)), ip); err != nil || len(world.names("ipaddresses")) != addresses-1 {
		t.Errorf("the owner has not: %v", err)
	}
}

func TestClusterAllocatorRanges(t *testing.T) {
	ctx := context.Background()
	world := newShelves()
	a := world.allocator("10.0.0.0/30", "fd00::/120")
	for range 2 {
		if err := a.EnsureRanges(ctx); err != nil {
			t.Fatal(err)
		}
	}
	pool := a.Addresses(corev1.IPv4Protocol)
	more := netip.MustParseAddr("10.9.0.1")
	if err := pool.Reserve(ctx, somebody, more); err == nil || pool.Check(ctx, more) == nil {
		t.Error("an address outside of all ranges was reserved")
	}
	extra := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "extra"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.9.0.0/30"}}}
	if err := world["servicecidrs"].Create(ctx, extra); err != nil {
		t.Fatal(err)
	}
	if err := pool.Reserve(ctx, somebody, more); err == nil {
		t.Error("an address of a range that is not ready was reserved")
	}
	extra.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue}}
	// Two addresses each; the default range comes first.
	for i, want := range []string{"10.0.0.0/30", "10.0.0.0/30", "10.9.0.0/30", "10.9.0.0/30"} {
		ip, err := pool.ReserveAny(ctx, somebody)
		if err != nil || !netip.MustParsePrefix(want).Contains(ip) {
			t.Errorf("address %d is %s, %v", i, ip, err)
		}
	}
	if _, err := pool.ReserveAny(ctx, somebody); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if ip, err := a.Addresses(corev1.IPv6Protocol).ReserveAny(ctx, somebody); err != nil || !ip.Is6() {
		t.Errorf("the other family: %s, %v", ip, err)
	}
}

func TestRepairAddresses(t *testing.T) {
	ctx := context.Background()
	old, young := metav1.NewTime(time.Now().Add(-2*repairAfter)), metav1.Now()
	address := func(name, owner string, created metav1.Time, manager string) *networkingv1.IPAddress {
		ip := newIPAddress(types.NamespacedName{Namespace: "ns", Name: owner}, netip.MustParseAddr(name))
		ip.CreationTimestamp, ip.Labels[networkingv1.LabelManagedBy] = created, manager
		return ip
	}
	world := newShelves()
	world["services"].put(serviceWith("a", "10.0.0.1", 0))
	world["services"].put(serviceWith("b", "10.0.0.2", 0)) // not reserved
	world["services"].put(serviceWith("c", "10.0.0.3", 0)) // reserved for somebody who is gone
	world["services"].put(serviceWith("d", "10.9.0.1", 0)) // in no range
	for _, ip := range []*networkingv1.IPAddress{
		address("10.0.0.1", "a", old, addressManager),
		address("10.0.0.3", "gone", young, addressManager),
		address("10.0.0.4", "gone", old, addressManager),
		address("10.0.0.5", "soon", young, addressManager),
		address("10.0.0.6", "a", old, addressManager), // a has another
		address("10.0.0.7", "gone", old, "somebody"),
	} {
		world["ipaddresses"].put(ip)
	}
	if err := world.allocator("10.0.0.0/24").Repair(ctx); err != nil {
		t.Fatal(err)
	}
	want := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.5", "10.0.0.7"}
	if got := world.names("ipaddresses"); !slices.Equal(got, want) {
		t.Errorf("reserved are %v, want %v", got, want)
	}
	for name, owner := range map[string]string{"10.0.0.1": "a", "10.0.0.2": "b", "10.0.0.3": "c"} {
		obj, err := world["ipaddresses"].Get(ctx, "", name)
		if err != nil || ownerOf(obj.(*networkingv1.IPAddress)).Name != owner {
			t.Errorf("%s should be %s's: %+v, %v", name, owner, obj, err)
		}
	}
}

// TestRepairAfterChanges has services that lack their address, or have that of somebody who is
// gone, get it as soon as they change.
func TestRepairAfterChanges(t *testing.T) {
	ctx := context.Background()
	world := newShelves()
	address := func(name, owner string) *networkingv1.IPAddress {
		return newIPAddress(types.NamespacedName{Namespace: "ns", Name: owner}, netip.MustParseAddr(name))
	}
	var changes []resource.Change
	for _, s := range []*corev1.Service{serviceWith("a", "10.0.0.1", 0), serviceWith("b", "10.0.0.2", 0), serviceWith("c", "10.0.0.3", 0), serviceWith("d", "10.0.0.4", 0)} {
		world["services"].put(s)
		if s.Name != "d" {
			changes = append(changes, resource.Change{Object: s})
		}
	}
	changes = append(changes, resource.Change{Object: address("10.0.0.4", "d"), Deleted: true}, resource.Change{Object: serviceWith("gone", "10.0.0.5", 0), Deleted: true})
	world["ipaddresses"].put(address("10.0.0.1", "a"))
	world["ipaddresses"].put(address("10.0.0.3", "gone"))
	names := ServicesOf(changes)
	if got := fmt.Sprint(names); got != "[ns/a ns/b ns/c ns/d]" {
		t.Errorf("got %s, want the services that have changed, and the one whose address was deleted", got)
	}
	if err := world.allocator("10.0.0.0/24").RepairServices(ctx, append(names, types.NamespacedName{Namespace: "ns", Name: "gone"})); err != nil {
		t.Fatal(err)
	}
	for name, owner := range map[string]string{"10.0.0.1": "a", "10.0.0.2": "b", "10.0.0.3": "c", "10.0.0.4": "d"} {
		obj, err := world["ipaddresses"].Get(ctx, "", name)
		if err != nil {
			t.Errorf("%s: got %v, want it to be %s's", name, err, owner)
		} else if got := ownerOf(obj.(*networkingv1.IPAddress)).Name; got != owner {
			t.Errorf("%s: got %s, want it to be %s's", name, got, owner)
		}
	}
}

func TestRepairPorts(t *testing.T) {
	ctx := context.Background()
	world := newShelves()
	world["services"].put(serviceWith("a", "10.0.0.1", 30001))
	a := world.allocator()
	used := func(port int32) bool { t.Helper(); return a.NodePorts().Check(ctx, port) != nil }
	// The first reservation makes the bitmap, from what services have.
	if err := a.NodePorts().Reserve(ctx, somebody, 30001); !errors.Is(err, ErrAllocated) {
		t.Fatalf("reserving what a service has: %v", err)
	}
	if err := a.NodePorts().Reserve(ctx, somebody, 30002); err != nil { // and then the server dies
		t.Fatal(err)
	}
	world["services"].put(serviceWith("b", "10.0.0.2", 30003))
	for pass := 1; pass <= suspicions+1; pass++ {
		if err := a.Repair(ctx); err != nil {
			t.Fatal(err)
		}
		if !used(30001) || !used(30003) {
			t.Errorf("pass %d: the ports of services are not reserved", pass)
		}
		if freed := pass > suspicions; used(30002) == freed {
			t.Errorf("pass %d: freed: %v", pass, !used(30002))
		}
		if pass == suspicions {
			s := a.ports.unused[30002]
			s.since = s.since.Add(-repairAfter)
			a.ports.unused[30002] = s
		}
	}
	// Another range: what services have stays where it is.
	b, err := NewClusterAllocator(ClusterAllocatorConfig{
		Objects: func(_, name string) resource.Objects { return world[name] }, Ranges: world["ranges"], FirstNodePort: 30002, LastNodePort: 30010,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.NodePorts().Reserve(ctx, somebody, 30004); err == nil {
		t.Error("a bitmap of another range was changed")
	}
	if err := b.Repair(ctx); err != nil {
		t.Fatal(err)
	}
	if err := b.NodePorts().Reserve(ctx, somebody, 30003); !errors.Is(err, ErrAllocated) {
		t.Errorf("after the range has changed: %v", err)
	}
	if err := b.NodePorts().Reserve(ctx, somebody, 30004); err != nil {
		t.Errorf("after the range has changed: %v", err)
	}
}
