package feed

import (
	"context"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// late is a backend whose watches deliver nothing while it is held.
type late struct {
	storage.Backend
	held chan struct{} // closed when it is not held
}

func (l *late) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := l.Backend.Watch(ctx, prefix, after)
	return lateWatcher{w, l}, err
}

type lateWatcher struct {
	storage.Watcher
	late *late
}

func (w lateWatcher) Next(ctx context.Context) (storage.Batch, error) {
	select {
	case <-w.late.held:
		return w.Watcher.Next(ctx)
	case <-ctx.Done():
		return storage.Batch{}, ctx.Err()
	}
}

// catalogOf returns a catalog of resources, which are all of ConfigMaps.
func catalogOf(t *testing.T, names ...string) *resource.Catalog {
	t.Helper()
	group := resource.Group{Name: "example.com"}
	for _, name := range names {
		group.Resources = append(group.Resources, resource.Definition{
			Group: "example.com", Resource: name, Kind: name, Namespaced: true, StorageKey: "example.com/" + name, Hub: "v1",
			Versions: []resource.Version{resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)},
		})
	}
	c, err := resource.NewCatalog(group)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRemovedKind: that an object was deleted is told also if its kind is removed before
// the feed comes to it, and if the feed was too late to see the kind at all.
func TestRemovedKind(t *testing.T) {
	for name, before := range map[string][]string{"known": {"gadgets", "widgets"}, "never seen": {"gadgets"}} {
		t.Run(name, func(t *testing.T) {
			backend := &late{Backend: memory.New(memory.Options{}), held: make(chan struct{})}
			defer backend.Close()
			var catalog atomic.Pointer[resource.Catalog]
			catalog.Store(catalogOf(t, before...))
			f := &Feed{Backends: []storage.Backend{backend}, Catalog: catalog.Load}
			synced, gone := make(chan struct{}), make(chan string, 1)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				ended <- f.Follow(ctx, func(changes []controller.Change) {
					if len(changes) == 0 {
						close(synced)
					}
					for _, c := range changes {
						if c.Gone {
							gone <- c.Kind.Resource + "/" + c.Name
						}
					}
				})
			}()
			<-synced
			change := func(names ...string) {
				catalog.Store(catalogOf(t, names...))
				f.CatalogChanged()
			}
			change("gadgets", "widgets")
			const key = storage.Root + "example.com/widgets/default/w"
			kv, err := backend.Create(ctx, key, []byte(`{"metadata":{"name":"w","uid":"1"}}`), 0)
			if err == nil {
				_, _, err = backend.Delete(ctx, key, kv.ModRevision)
			}
			if err != nil {
				t.Fatal(err)
			}
			change("gadgets")
			close(backend.held)
			select {
			case got := <-gone:
				if got != "widgets/w" {
					t.Errorf("told that %s is gone", got)
				}
			case err := <-ended:
				t.Fatal(err)
			}
			cancel()
			<-ended
		})
	}
}
