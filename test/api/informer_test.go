package api

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// listOnly is a source for informers that does not know streaming lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// informer starts an informer of config maps that runs until the test ends. It
// counts the lists that it asks for.
func informer(t *testing.T, c kubernetes.Interface, streaming bool) (i cache.SharedIndexInformer, lists func() int) {
	t.Helper()
	maps := c.CoreV1().ConfigMaps("default")
	var mu sync.Mutex
	count := 0
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			mu.Lock()
			count++
			mu.Unlock()
			return maps.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, opts)
		},
	}, c)
	if !streaming {
		source = listOnly{source}
	}
	i = cache.NewSharedIndexInformer(source, &corev1.ConfigMap{}, 0, cache.Indexers{})
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { i.Run(stop) })
	t.Cleanup(func() {
		close(stop)
		running.Wait()
	})
	polltest.Until(t, "first list", i.HasSynced)
	return i, func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// write has writers create, change and delete config maps at random.
func write(t *testing.T, clients ...kubernetes.Interface) {
	t.Helper()
	const writers, writes, names = 6, 60, 20
	var all sync.WaitGroup
	seed := randomtest.Seed(t, 1)
	for n := range writers {
		maps := clients[n%len(clients)].CoreV1().ConfigMaps("default")
		random := randomtest.Rand(seed, uint64(n))
		all.Go(func() {
			for i := range writes {
				obj := &corev1.ConfigMap{ObjectMeta: named(fmt.Sprint("m-", random.IntN(names))), Data: map[string]string{"by": fmt.Sprint(n, " ", i)}}
				_, err := maps.Create(t.Context(), obj, metav1.CreateOptions{})
				if apierrors.IsAlreadyExists(err) {
					if random.IntN(3) == 0 {
						err = maps.Delete(t.Context(), obj.Name, metav1.DeleteOptions{})
					} else {
						_, err = maps.Update(t.Context(), obj, metav1.UpdateOptions{})
					}
				}
				// Another writer may have been faster.
				if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// state is the names and versions of all config maps.
func state(t *testing.T, c kubernetes.Interface) map[string]string {
	t.Helper()
	out := map[string]string{}
	list := must(c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		out[list.Items[i].Name] = list.Items[i].ResourceVersion
	}
	return out
}

// agrees waits until an informer has the state that the server has.
func agrees(t *testing.T, i cache.SharedIndexInformer, want map[string]string) {
	t.Helper()
	polltest.Until(t, "informer", func() bool {
		got := map[string]string{}
		for _, obj := range i.GetStore().List() {
			m := obj.(*corev1.ConfigMap)
			got[m.Name] = m.ResourceVersion
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	})
}

func TestInformers(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		write(t, c) // so that there is something to list
		streaming, lists := informer(t, c, true)
		if n := lists(); n != 0 {
			t.Errorf("an informer with a streaming list has asked for %d others", n)
		}
		listing, lists := informer(t, c, false)
		if n := lists(); n != 1 {
			t.Errorf("an informer without a streaming list has asked for %d lists", n)
		}
		write(t, c)
		want := state(t, c)
		agrees(t, streaming, want)
		agrees(t, listing, want)
	})
}

// Two servers on one etcd are one: each sees what the other has acknowledged, at
// once.
func TestTwoServers(t *testing.T) {
	cluster := etcdtest.Start(t)
	var clients []kubernetes.Interface
	for range 2 {
		clients = append(clients, client(t, kelsontest.Start(t, kelsontest.Backend(openEtcd(t, cluster)), kelsontest.NoControllers())))
	}
	for i := range 40 {
		writer, reader := clients[i%2].CoreV1().ConfigMaps("default"), clients[(i+1)%2].CoreV1().ConfigMaps("default")
		made := must(writer.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: named(fmt.Sprint("x-", i))}, metav1.CreateOptions{}))(t)
		if got := must(reader.Get(t.Context(), made.Name, metav1.GetOptions{}))(t); got.ResourceVersion != made.ResourceVersion {
			t.Errorf("the other server has %s at version %s, it was made at %s", made.Name, got.ResourceVersion, made.ResourceVersion)
		}
		if n := len(state(t, clients[(i+1)%2])); n != i+1 {
			t.Errorf("the other server lists %d objects, there are %d", n, i+1)
		}
	}
	a, _ := informer(t, clients[0], true)
	b, _ := informer(t, clients[1], false)
	write(t, clients...)
	want := state(t, clients[0])
	agrees(t, a, want)
	agrees(t, b, want)
}
