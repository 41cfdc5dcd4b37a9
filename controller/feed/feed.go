// Package feed tells controllers what is in the stores of a server: it is their
// controller.Feed over storage backends. Start at Feed.
//
// It reads metadata out of stored bytes and keeps nothing, so that controllers load
// no resource into the cache of the server by following it.
package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

// pageSize is how many objects are read at a time when the feed begins.
const pageSize = 500

// Feed is a controller.Feed over the backends of a server.
type Feed struct {
	// Backends are where objects are. The first has all that no other one has.
	Backends []storage.Backend
	// Place returns the number of the backend that has the objects of a definition;
	// nil is the first one for all.
	Place func(*resource.Definition) int
	// Catalog returns what is served now.
	Catalog func() *resource.Catalog

	mu    sync.Mutex
	kinds *kinds
	wake  map[int]context.CancelFunc // ends the wait for changes in a place; nil while nobody follows
	// removed are kinds that the catalog had, and that follow has to know of.
	removed map[location]*controller.Kind
}

var _ controller.Feed = (*Feed)(nil)

// kinds are the stored resources of a catalog.
type kinds struct {
	catalog *resource.Catalog
	all     []*controller.Kind
	by      map[location]*controller.Kind
}

// location is where objects are.
type location struct {
	place int
	key   string // Definition.StorageKey
}

// prefix is what the keys of the objects begin with.
func (l location) prefix() string { return storage.Root + l.key + "/" }

// current returns the resources of the catalog as it is now.
func (f *Feed) current() *kinds {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.look()
}

// look is current for a caller that holds the mutex.
func (f *Feed) look() *kinds {
	catalog := f.Catalog()
	if f.kinds != nil && f.kinds.catalog == catalog {
		return f.kinds
	}
	definitions := catalog.Definitions()
	k := &kinds{catalog: catalog, all: make([]*controller.Kind, 0, len(definitions)), by: map[location]*controller.Kind{}}
	for _, def := range definitions {
		version := preferred(def)
		if version == nil || def.Virtual() || def.CreateOn != "" {
			continue
		}
		group := cmp.Or(version.Group, def.Group)
		kind := &controller.Kind{
			Group: group, Version: version.Name, Resource: def.Resource, Kind: def.Kind, Namespaced: def.Namespaced, Verbs: def.Verbs,
		}
		k.all = append(k.all, kind)
		k.by[f.locate(def)] = kind
	}
	if f.wake != nil && f.kinds != nil {
		for at, kind := range f.kinds.by {
			if k.by[at] == nil {
				f.removed[at] = kind
			}
		}
	}
	f.kinds = k
	return k
}

func (f *Feed) locate(def *resource.Definition) location {
	at := location{key: def.StorageKey}
	if f.Place != nil {
		at.place = f.Place(def)
	}
	return at
}

// preferred returns the first version of a definition that is served, nil if none is.
func preferred(def *resource.Definition) *resource.Version {
	for i := range def.Versions {
		if !def.Versions[i].Off {
			return &def.Versions[i]
		}
	}
	return nil
}

// Kinds implements controller.Feed.
func (f *Feed) Kinds(context.Context) ([]*controller.Kind, error) { return f.current().all, nil }

// Serves implements controller.Feed.
func (f *Feed) Serves(group, version string) bool {
	g, ok := f.Catalog().Group(group)
	return ok && slices.ContainsFunc(g.Versions, func(v resource.ServedVersion) bool { return v.Name == version })
}

// Served implements controller.Feed.
func (f *Feed) Served(group, name string) (*controller.Kind, bool) {
	known := f.current()
	if def, ok := known.catalog.Definition(group, name); ok {
		if k := known.by[f.locate(def)]; k != nil && k.Is(group, name) {
			return k, true
		}
	}
	return nil, false
}

// Find implements controller.Feed.
func (f *Feed) Find(apiVersion, kind string) (*controller.Kind, bool) {
	k := f.current()
	s, ok := k.catalog.LookupKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	if !ok {
		return nil, false
	}
	found, ok := k.by[f.locate(s.Definition)]
	return found, ok
}

// Holds implements controller.Feed.
func (f *Feed) Holds(ctx context.Context, kind *controller.Kind, namespace string) (bool, error) {
	known := f.current()
	served, ok := known.catalog.Lookup(kind.Group, kind.Version, kind.Resource)
	if !ok {
		return true, nil // nothing is known of it any more
	}
	at := f.locate(served.Definition)
	if known.by[at] != kind {
		return true, nil
	}
	prefix := at.prefix()
	if kind.Namespaced && namespace != "" {
		prefix += namespace + "/"
	}
	page, err := f.Backends[at.place].List(ctx, prefix, storage.ListOptions{Limit: 1, KeysOnly: true})
	return err != nil || len(page.Items) > 0, err
}

// CatalogChanged has the feed look at the catalog again: objects of kinds that were
// not known may be there already.
func (f *Feed) CatalogChanged() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wake == nil {
		return // nobody follows
	}
	f.look() // at each catalog, also at one that is replaced before follow comes to it
	for _, wake := range f.wake {
		wake()
	}
}

// errLostPlace: a change cannot be told since its object is not known.
var errLostPlace = errors.New("the last state of a deleted object is not kept")

// Follow implements controller.Feed. Changes in one place are told in their order,
// and those of several one at a time.
func (f *Feed) Follow(ctx context.Context, see func([]controller.Change)) error {
	f.mu.Lock()
	f.wake, f.removed = map[int]context.CancelFunc{}, map[location]*controller.Kind{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wake, f.removed = nil, nil
	}()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	known := f.current()
	positions, watchers := make([]int64, len(f.Backends)), make([]storage.Watcher, len(f.Backends))
	for i, backend := range f.Backends {
		var err error
		if positions[i], err = backend.Revision(ctx); err != nil {
			return err
		}
		if watchers[i], err = backend.Watch(ctx, storage.Root, positions[i]); err != nil {
			return err
		}
		defer watchers[i].Close()
		if err := f.scanAll(ctx, known, i, positions[i], see); err != nil {
			return err
		}
	}
	see(nil)
	if len(f.Backends) == 1 {
		return f.follow(ctx, 0, known, watchers[0], positions[0], see)
	}
	var mu sync.Mutex
	ended := make(chan error, len(f.Backends))
	for i := range f.Backends {
		all.Go(func() {
			ended <- f.follow(ctx, i, known, watchers[i], positions[i], func(changes []controller.Change) {
				mu.Lock()
				defer mu.Unlock()
				see(changes)
			})
		})
	}
	return <-ended
}

// scanAll tells of all objects in a place. In one that is not the first there may
// be much that belongs to others.
func (f *Feed) scanAll(ctx context.Context, known *kinds, place int, revision int64, see func([]controller.Change)) error {
	if place == 0 {
		return f.scan(ctx, known, place, storage.Root, revision, see)
	}
	for at, kind := range known.by {
		if at.place == place && wanted(kind) {
			if err := f.scan(ctx, known, place, at.prefix(), revision, see); err != nil {
				return err
			}
		}
	}
	return nil
}

// follow tells of changes in a place, from a position on.
func (f *Feed) follow(ctx context.Context, place int, known *kinds, w storage.Watcher, position int64, see func([]controller.Change)) error {
	var removed removedKinds
	for {
		batch, err := f.next(ctx, place, w, known)
		if now := f.current(); now != known {
			if f.takeRemoved(place, &removed) {
				newest, err := f.Backends[place].Revision(ctx)
				if err != nil {
					return err
				}
				removed.until = newest
			}
			// Objects of a kind that is new are told as they were when what has
			// been told so far ended.
			for at := range now.by {
				if at.place == place && known.by[at] == nil {
					if err := f.scan(ctx, now, place, at.prefix(), position, see); err != nil {
						return err
					}
				}
			}
			known = now
		}
		if err != nil {
			if ctx.Err() == nil && errors.Is(err, context.Canceled) {
				continue // woken
			}
			return err
		}
		changes, err := known.changes(place, batch.Events, removed.kinds)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			see(changes)
		}
		if position = batch.Revision; position >= removed.until {
			removed = removedKinds{}
		}
	}
}

// removedKinds are kinds that are not in the catalog any more. Their last objects were
// deleted before, but the feed may not have come to that yet: their events are told up to
// a revision.
type removedKinds struct {
	kinds map[location]*controller.Kind
	until int64
}

// takeRemoved moves the kinds of a place that were removed, and reports whether there are
// any.
func (f *Feed) takeRemoved(place int, to *removedKinds) (some bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, kind := range f.removed {
		if at.place != place {
			continue
		}
		delete(f.removed, at)
		if to.kinds == nil {
			to.kinds = map[location]*controller.Kind{}
		}
		to.kinds[at] = kind
		some = true
	}
	return some
}

// next waits for changes, or for another catalog.
func (f *Feed) next(ctx context.Context, place int, w storage.Watcher, known *kinds) (storage.Batch, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f.mu.Lock()
	f.wake[place] = cancel
	if f.Catalog() != known.catalog {
		cancel()
	}
	f.mu.Unlock()
	return w.Next(ctx)
}

// scan tells of all objects below a prefix at a revision.
func (f *Feed) scan(ctx context.Context, known *kinds, place int, prefix string, revision int64, see func([]controller.Change)) error {
	opts := storage.ListOptions{Revision: revision, Limit: pageSize}
	for {
		changes, last := make([]controller.Change, 0, pageSize), ""
		page, err := storage.Scan(ctx, f.Backends[place], prefix, opts, func(kv *storage.KeyValue) error {
			last = kv.Key
			// The store tells of what cannot be read.
			if c, ok := known.change(place, kv.Key, nil); ok && readMeta(kv.Value, &c.Meta) == nil {
				c.Revision = kv.ModRevision
				changes = append(changes, c)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			see(changes)
		}
		if !page.More {
			return nil
		}
		opts.Start = storage.NextKey(last)
	}
}

// changes are what events mean, also those of kinds that were removed.
func (k *kinds) changes(place int, events []storage.Event, removed map[location]*controller.Kind) ([]controller.Change, error) {
	var changes []controller.Change
	for i := range events {
		ev := &events[i]
		c, ok := k.change(place, ev.KV.Key, removed)
		if !ok {
			continue
		}
		c.Revision, c.Gone = ev.KV.ModRevision, ev.Op == storage.Deleted
		value := ev.KV.Value
		if c.Gone {
			if value = ev.Prev.Value; value == nil {
				return nil, fmt.Errorf("%s: %w", ev.KV.Key, errLostPlace)
			}
		}
		if err := readMeta(value, &c.Meta); err != nil {
			continue
		}
		changes = append(changes, c)
	}
	return changes, nil
}

// wanted reports whether anybody wants to know of a kind.
func wanted(k *controller.Kind) bool { return k.Resource != "events" }

// change tells which object a key is about, which may be of a kind that was removed.
func (k *kinds) change(place int, key string, removed map[location]*controller.Kind) (c controller.Change, ok bool) {
	for i := len(storage.Root); ; {
		n := strings.IndexByte(key[i:], '/')
		if n < 0 {
			return c, false
		}
		i += n + 1
		at := location{place, key[len(storage.Root) : i-1]}
		if kind := cmp.Or(k.by[at], removed[at]); kind != nil {
			c.Kind, c.Name = kind, key[i:]
			if kind.Namespaced {
				c.Namespace, c.Name, _ = strings.Cut(c.Name, "/")
			}
			return c, c.Name != "" && wanted(kind)
		}
	}
}
