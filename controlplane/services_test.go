package controlplane_test

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/memory"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestServicesOfSeveralServers takes all addresses that there are, through
// three servers at once that share nothing but etcd. Each address and each node
// port must be one service's alone, and be free again when all are gone.
func TestServicesOfSeveralServers(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd")
	}
	const servers, workers, addresses, withPort = 3, 4, 254, 3
	ctx := context.Background()
	cluster := etcdtest.Start(t)
	clients := make([]kubernetes.Interface, servers)
	// Each has an authority of its own, and would publish that without end, since the
	// others do so too.
	controllers := kelsontest.Controllers("*", "-root-ca-certificate-publisher-controller")
	var backend storage.Backend
	for i := range clients {
		b, err := etcd.Open(ctx, etcd.Options{Endpoints: cluster.Endpoints()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		backend = b
		clients[i] = kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.Backend(b), controllers).Config())
	}
	each := func(n int, do func(c kubernetes.Interface, i int) error) {
		t.Helper()
		work := make(chan int)
		var wg sync.WaitGroup
		for w := range servers * workers {
			wg.Go(func() {
				for i := range work {
					if err := do(clients[w%servers], i); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range n {
			work <- i
		}
		close(work)
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}

	before, err := clients[0].CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	free := addresses - len(before.Items) // a server may have one for itself
	each(free, func(c kubernetes.Interface, i int) error {
		kind := corev1.ServiceTypeClusterIP
		if i%withPort == 0 {
			kind = corev1.ServiceTypeNodePort
		}
		_, err := c.CoreV1().Services("default").Create(ctx, newService("s"+strconv.Itoa(i), kind), metav1.CreateOptions{})
		return err
	})
	if _, err := clients[0].CoreV1().Services("default").Create(ctx, newService("more", corev1.ServiceTypeClusterIP), metav1.CreateOptions{}); err == nil {
		t.Error("there are more services than addresses")
	}

	services, err := clients[1].CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owner, ports := map[string]string{}, map[int32]string{}
	for _, s := range services.Items {
		if other := owner[s.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s have the address %s", s.Name, other, s.Spec.ClusterIP)
		}
		owner[s.Spec.ClusterIP] = s.Name
		port := s.Spec.Ports[0].NodePort
		if other := ports[port]; other != "" && port != 0 {
			t.Errorf("%s and %s have the node port %d", s.Name, other, port)
		}
		ports[port] = s.Name
	}
	ips, err := clients[2].NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(ips.Items) != addresses {
		t.Errorf("%d addresses are reserved, want %d", len(ips.Items), addresses)
	}
	for _, ip := range ips.Items {
		if ip.Spec.ParentRef.Name != owner[ip.Name] || ip.Labels[networkingv1.LabelManagedBy] != "ipallocator.k8s.io" {
			t.Errorf("%s is %s's, and reserved as %+v with labels %v", ip.Name, owner[ip.Name], ip.Spec.ParentRef, ip.Labels)
		}
	}
	if used, want := nodePortsInUse(t, backend), (free+withPort-1)/withPort; len(used) != want {
		t.Errorf("%d node ports are reserved, want %d", len(used), want)
	}

	each(free, func(c kubernetes.Interface, i int) error {
		return c.CoreV1().Services("default").Delete(ctx, "s"+strconv.Itoa(i), metav1.DeleteOptions{})
	})
	if ips, err = clients[0].NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{}); err != nil || len(ips.Items) != addresses-free {
		t.Errorf("afterwards %d addresses are reserved, %v", len(ips.Items), err)
	}
	if used := nodePortsInUse(t, backend); len(used) != 0 {
		t.Errorf("afterwards the node ports %v are reserved", used)
	}
}

// TestServiceWithoutAddressObject checks that a service that another program has stored just
// after the start, of a form that knows no clusterIPs, gets its IPAddress.
func TestServiceWithoutAddressObject(t *testing.T) {
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	addresses := kubernetes.NewForConfigOrDie(kelsontest.Start(t, kelsontest.Backend(backend)).Config()).NetworkingV1().IPAddresses()
	const stored = `{"kind":"Service","apiVersion":"v1","metadata":{"name":"old","namespace":"default","uid":"u"},"spec":{"ports":[{"port":81}],"clusterIP":"10.0.0.111"}}`
	if _, err := backend.Create(t.Context(), "/registry/services/specs/default/old", []byte(stored), 0); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := addresses.Get(ctx, "10.0.0.111", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}

// nodePortsInUse reads the node ports from where kube-apiserver has them.
func nodePortsInUse(t *testing.T, backend storage.Backend) []int32 {
	t.Helper()
	kv, err := backend.Get(context.Background(), "/registry/ranges/servicenodeports")
	if err != nil {
		t.Fatal(err)
	}
	obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), kv.Value)
	if err != nil {
		t.Fatal(err)
	}
	r := obj.(*corev1.RangeAllocation)
	var first, last int32
	if _, err := fmt.Sscanf(r.Range, "%d-%d", &first, &last); err != nil || first != 30000 || last != 32767 {
		t.Errorf("the range is %q", r.Range)
	}
	var used []int32
	bits := new(big.Int).SetBytes(r.Data)
	for i := range bits.BitLen() {
		if bits.Bit(i) == 1 {
			used = append(used, first+int32(i))
		}
	}
	return used
}

// BenchmarkServices creates and deletes services, each with an address, and
// with node ports a port.
func BenchmarkServices(b *testing.B) {
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		b.Run(string(kind), func(b *testing.B) {
			server := kelsontest.Start(b)
			services := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().Services("default")
			ctx := context.Background()
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				s := newService("s"+strconv.Itoa(i), kind)
				if _, err := services.Create(ctx, s, metav1.CreateOptions{}); err != nil {
					b.Fatal(err)
				}
				if err := services.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func newService(name string, kind corev1.ServiceType) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}
