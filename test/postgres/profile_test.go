// Package postgres has tests of whole servers on PostgreSQL, beside the same on etcd.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// profile is the load of a hosted control plane that grows and shrinks: many clients
// create config maps, update each twice and delete it, while others watch.
type profile struct {
	servers, maps, clients, watches int
	sync                            bool // the store waits for its disk
}

// TestProfile: three servers on one store under load: no request fails, and every watch
// gets every event once and in order. The long test is of the size in docs/performance.md.
func TestProfile(t *testing.T) {
	p := profile{servers: 3, maps: testsize.Pick(100, 300, 10_000), clients: testsize.Pick(20, 60, 1000), watches: testsize.Pick(6, 25, 25), sync: testsize.Long()}
	stores := map[string]func(t *testing.T) func() storage.Backend{"postgres": p.postgres}
	if testsize.Long() {
		stores["etcd"] = p.etcd
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) { p.run(t, name, store(t)) })
	}
}

func (p profile) postgres(t *testing.T) func() storage.Backend {
	var opts []pgtest.Option
	if p.sync {
		opts = append(opts, pgtest.Sync())
	}
	db := pgtest.Start(t, opts...)
	return func() storage.Backend {
		b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.SocketDSN(), AllowNoSync: !p.sync})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func (p profile) etcd(t *testing.T) func() storage.Backend {
	var opts []etcdtest.Option
	if p.sync {
		opts = append(opts, etcdtest.Fsync())
	}
	cluster := etcdtest.Start(t, opts...)
	return func() storage.Backend {
		b, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints()})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}

func (p profile) run(t *testing.T, name string, open func() storage.Backend) {
	var configs []*rest.Config
	for range p.servers {
		b := open()
		t.Cleanup(func() { _ = b.Close() })
		configs = append(configs, kelsontest.Start(t, kelsontest.Backend(b), kelsontest.NoControllers()).Config())
	}
	var watchers []*watcher
	for i := range p.watches {
		watchers = append(watchers, startWatch(t, client(t, configs[i%p.servers])))
	}

	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	failed := 0
	for i := range p.clients {
		wg.Go(func() {
			c := client(t, configs[i%p.servers]).CoreV1().ConfigMaps("default")
			var mine []time.Duration
			call := func(f func() (*corev1.ConfigMap, error)) *corev1.ConfigMap {
				start := time.Now()
				m, err := f()
				mine = append(mine, time.Since(start))
				if err != nil {
					mu.Lock()
					if failed++; failed <= 3 {
						t.Errorf("request failed: %v", err)
					}
					mu.Unlock()
				}
				return m
			}
			for n := int(next.Add(1)); n <= p.maps; n = int(next.Add(1)) {
				ctx := context.Background()
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m-%05d", n)}, Data: map[string]string{"n": "0"}}
				m = call(func() (*corev1.ConfigMap, error) { return c.Create(ctx, m, metav1.CreateOptions{}) })
				for _, value := range []string{"1", "2"} {
					if m.Data == nil {
						return
					}
					m.Data["n"] = value
					m = call(func() (*corev1.ConfigMap, error) { return c.Update(ctx, m, metav1.UpdateOptions{}) })
				}
				call(func() (*corev1.ConfigMap, error) { return nil, c.Delete(ctx, m.Name, metav1.DeleteOptions{}) })
			}
			mu.Lock()
			took = append(took, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	wrote := time.Since(began)
	if failed > 0 {
		t.Fatalf("got %d failed requests, want none", failed)
	}
	for _, w := range watchers {
		w.finish(p.maps)
	}
	all := time.Since(began)
	slices.Sort(took)
	t.Logf("%s: %d servers, %d clients, %d watches: %d requests in %v (%.0f a second), median %v, p99 %v; all %d events delivered after %v",
		name, p.servers, p.clients, p.watches, len(took), wrote.Round(time.Millisecond), float64(len(took))/wrote.Seconds(),
		took[len(took)/2].Round(10*time.Microsecond), took[len(took)*99/100].Round(10*time.Microsecond), p.watches*p.maps*4, all.Round(time.Millisecond))
}

func client(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	config = rest.CopyConfig(config)
	config.QPS = -1
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Error(err)
	}
	return c
}

// watcher counts the events of one watch, and checks their order.
type watcher struct {
	t    *testing.T
	w    watch.Interface
	done chan struct{}
	seen atomic.Int64
	over atomic.Bool // the test ends the watch, in the middle of whatever it reads
}

func startWatch(t *testing.T, c kubernetes.Interface) *watcher {
	t.Helper()
	seconds := int64(3600)
	w, err := c.CoreV1().ConfigMaps("default").Watch(context.Background(), metav1.ListOptions{ResourceVersion: "", TimeoutSeconds: &seconds, FieldSelector: "metadata.name!=kube-root-ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	out := &watcher{t: t, w: w, done: make(chan struct{})}
	t.Cleanup(func() {
		out.over.Store(true)
		w.Stop()
		<-out.done
	})
	go out.run()
	return out
}

func (w *watcher) run() {
	defer close(w.done)
	stage := map[string]string{}
	last := uint64(0)
	for ev := range w.w.ResultChan() {
		m, ok := ev.Object.(*corev1.ConfigMap)
		if !ok && w.over.Load() {
			return
		}
		if !ok {
			w.t.Errorf("got %v %+v, want config maps only", ev.Type, ev.Object)
			return
		}
		now := string(ev.Type) + m.Data["n"]
		if want := map[string]string{"": "ADDED0", "ADDED0": "MODIFIED1", "MODIFIED1": "MODIFIED2", "MODIFIED2": "DELETED2"}[stage[m.Name]]; now != want {
			w.t.Errorf("%s: got %s after %q, want %s", m.Name, now, stage[m.Name], want)
		}
		stage[m.Name] = now
		revision, err := strconv.ParseUint(m.ResourceVersion, 10, 64)
		if err != nil || revision <= last {
			w.t.Errorf("%s: got revision %s after %d and error %v, want a higher one", m.Name, m.ResourceVersion, last, errors.Unwrap(err))
		}
		last = revision
		w.seen.Add(1)
	}
}

// finish waits until all events are there.
func (w *watcher) finish(maps int) {
	w.t.Helper()
	polltest.Until(w.t, fmt.Sprintf("%d events came", 4*maps), func() bool { return w.seen.Load() >= int64(4*maps) })
}
