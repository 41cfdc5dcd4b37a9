package controlplane_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// forgetful is a store that loses answers to writes of services and of what they reserve,
// whether or not it has done them.
type forgetful struct {
	storage.Backend
	armed atomic.Bool
	lost  atomic.Int64
	mu    sync.Mutex // protects dice
	dice  *rand.Rand
}

// loses reports whether the answer to a write is lost, and whether the write is done.
func (b *forgetful) loses(key string) (lost, done bool) {
	if !b.armed.Load() || !strings.Contains(key, "/services/") && !strings.Contains(key, "/ranges/") && !strings.Contains(key, "/ipaddresses/") {
		return false, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dice.IntN(4) != 0 {
		return false, true
	}
	b.lost.Add(1)
	return true, b.dice.IntN(2) == 0
}

func (b *forgetful) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (kv storage.KeyValue, err error) {
	lost, done := b.loses(key)
	if done {
		kv, err = b.Backend.Create(ctx, key, value, ttl)
	}
	if lost {
		return storage.KeyValue{}, storage.ErrUncertain
	}
	return kv, err
}

func (b *forgetful) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (kv storage.KeyValue, err error) {
	lost, done := b.loses(key)
	if done {
		kv, err = b.Backend.Update(ctx, key, value, guard, ttl)
	}
	if lost {
		return storage.KeyValue{}, storage.ErrUncertain
	}
	return kv, err
}

func (b *forgetful) Delete(ctx context.Context, key string, guard int64) (kv storage.KeyValue, revision int64, err error) {
	lost, done := b.loses(key)
	if done {
		kv, revision, err = b.Backend.Delete(ctx, key, guard)
	}
	if lost {
		return storage.KeyValue{}, 0, storage.ErrUncertain
	}
	return kv, revision, err
}

// TestNothingIsGivenTwice has services created, changed and deleted at once on a store that
// loses every fourth answer: no address and no node port is ever two services'.
func TestNothingIsGivenTwice(t *testing.T) {
	wanted := int64(testsize.Pick(100, 300, 10_000))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	b := &forgetful{Backend: memory.New(memory.Options{}), dice: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(func() { b.Backend.Close() })
	s := kelsontest.Start(t, kelsontest.Backend(b), kelsontest.Logger(slog.New(slog.DiscardHandler)), kelsontest.Configure(func(c *controlplane.Config) {
		// What was reserved for a write without an answer stays so for minutes.
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
		c.FirstNodePort, c.LastNodePort = 10_000, 60_000
	}))
	config := s.Config()
	config.QPS = -1
	services := kubernetes.NewForConfigOrDie(config).CoreV1().Services("default")
	b.armed.Store(true)
	const workers, each = 32, 6
	var all sync.WaitGroup
	for worker := range workers {
		dice := rand.New(rand.NewPCG(seed, uint64(worker+2)))
		all.Go(func() {
			for b.lost.Load() < wanted && t.Context().Err() == nil {
				changeService(t.Context(), services, dice, fmt.Sprintf("s-%d-%d", worker, dice.IntN(each)))
			}
		})
	}
	checked := make(chan struct{})
	go func() {
		defer close(checked)
		for b.lost.Load() < wanted && !t.Failed() {
			checkGiven(t, b)
			<-time.After(10 * time.Millisecond)
		}
	}()
	all.Wait()
	<-checked
	checkGiven(t, b)
	t.Logf("%d answers were lost", b.lost.Load())
}

// services is what changeService needs of a client.
type services interface {
	Create(ctx context.Context, s *corev1.Service, o metav1.CreateOptions) (*corev1.Service, error)
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Service, error)
	Update(ctx context.Context, s *corev1.Service, o metav1.UpdateOptions) (*corev1.Service, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// changeService does something with a service. Errors are what it is about.
func changeService(ctx context.Context, services services, dice *rand.Rand, name string) {
	kinds := []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeExternalName}
	kind := kinds[dice.IntN(len(kinds))]
	now, err := services.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		wanted := newService(name, kind)
		if kind == corev1.ServiceTypeExternalName {
			wanted.Spec.ExternalName = "example.com"
		}
		_, _ = services.Create(ctx, wanted, metav1.CreateOptions{})
	case dice.IntN(4) == 0:
		_ = services.Delete(ctx, name, metav1.DeleteOptions{})
	default:
		now.Spec.Type, now.Spec.ExternalName = kind, ""
		if kind == corev1.ServiceTypeExternalName {
			now.Spec.ExternalName, now.Spec.ClusterIP, now.Spec.ClusterIPs = "example.com", "", nil
		}
		if kind != corev1.ServiceTypeNodePort {
			for i := range now.Spec.Ports {
				now.Spec.Ports[i].NodePort = 0
			}
		}
		_, _ = services.Update(ctx, now, metav1.UpdateOptions{})
	}
}

// checkGiven checks that what is stored of services has no address and no node port twice.
func checkGiven(t *testing.T, b storage.Backend) {
	t.Helper()
	page, err := b.List(t.Context(), "/registry/services/specs/", storage.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	owners := map[string]string{}
	for _, kv := range page.Items {
		obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), kv.Value)
		if err != nil {
			t.Error(err)
			return
		}
		s := obj.(*corev1.Service)
		given := []string{}
		for _, ip := range s.Spec.ClusterIPs {
			if ip != corev1.ClusterIPNone {
				given = append(given, "address "+ip)
			}
		}
		for _, port := range s.Spec.Ports {
			if port.NodePort != 0 {
				given = append(given, fmt.Sprint("node port ", port.NodePort))
			}
		}
		for _, what := range given {
			if other := owners[what]; other != "" {
				t.Errorf("%s is that of %s and of %s", what, s.Name, other)
			}
			owners[what] = s.Name
		}
	}
}
