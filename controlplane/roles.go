package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/authz/node"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
)

// roles are the resources that RBAC decides by, and related those that tell
// what a node has to do with.
func roles() []schema.GroupResource {
	const group = "rbac.authorization.k8s.io"
	return []schema.GroupResource{
		{Group: group, Resource: "clusterroles"}, {Group: group, Resource: "clusterrolebindings"},
		{Group: group, Resource: "roles"}, {Group: group, Resource: "rolebindings"},
	}
}

func related() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "pods"}, {Resource: "persistentvolumes"},
		{Group: "storage.k8s.io", Resource: "volumeattachments"},
		{Group: "resource.k8s.io", Resource: "resourceslices"},
		{Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
	}
}

// A follower tells an authorizer of the objects of some resources: it is an
// resource.Follower. It is a position in the logs of the resources and has no
// goroutine; who decides brings it up to date.
//
// Two things say that there is something to tell: the logs, and acks, which know
// of writes that were acknowledged and that the logs do not have yet. So a
// request sees every change that was acknowledged by this server before it, and
// those of other servers when they arrive.
type follower struct {
	store   *store.Store
	catalog func() *resource.Catalog
	names   []schema.GroupResource
	acks    *acks
	log     *slog.Logger

	mu        sync.Mutex
	resolved  bool // the next two are known
	resources []*store.Resource
	written   []*written       // to each of them
	watchers  []*store.Watcher // nil until the state has been told

	told atomic.Pointer[told] // nil until the state has been told
}

// told is how far a follower has come.
type told struct {
	acked []int64           // the newest write to each resource
	more  []<-chan struct{} // each is closed when a log goes on
}

var _ resource.Follower = (*follower)(nil)

// follow makes a follower of those of the resources that the catalog has. The
// catalog is first asked when there is something to decide.
func follow(objects *store.Store, catalog func() *resource.Catalog, acks *acks, log *slog.Logger, names []schema.GroupResource) *follower {
	return &follower{store: objects, catalog: catalog, names: names, acks: acks, log: log}
}

// Current implements resource.Follower.
func (f *follower) Current() bool {
	t := f.told.Load()
	if t == nil {
		return false
	}
	for i, w := range f.written {
		if w.newest.Load() > t.acked[i] {
			return false
		}
	}
	for _, more := range t.more {
		select {
		case <-more:
			return false
		default:
		}
	}
	return true
}

// Pull implements resource.Follower.
func (f *follower) Pull(ctx context.Context, apply func(reset bool, changes []resource.Change)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.Current() {
		return nil // somebody else has pulled meanwhile
	}
	if !f.resolved {
		f.resolve()
	}
	t := &told{}
	for i, r := range f.resources {
		newest := f.written[i].newest.Load()
		if err := r.WaitFor(ctx, newest); err != nil {
			return err
		}
		t.acked = append(t.acked, newest)
	}
	if f.watchers != nil {
		changes, err := f.poll(ctx, t)
		if err == nil {
			apply(false, changes)
			f.told.Store(t)
			return nil
		}
		f.forget()
		if !errors.Is(err, store.ErrExpired) {
			return err
		}
		t.more = nil
	}
	changes, err := f.state(ctx, t)
	if err != nil {
		f.forget()
		return err
	}
	apply(true, changes)
	f.told.Store(t)
	return nil
}

// resolve finds the resources.
func (f *follower) resolve() {
	f.resolved = true
	for _, name := range f.names {
		if def, ok := f.catalog().Definition(name.Group, name.Resource); ok {
			r := f.store.Resource(def, storedCodec{def})
			w := &written{prefix: r.Key("", "")}
			f.resources, f.written = append(f.resources, r), append(f.written, w)
			// From here on, writes are noted; those before are in the state that is
			// told first.
			f.acks.note(w)
		}
	}
}

func (f *follower) forget() {
	for _, w := range f.watchers {
		w.Close()
	}
	f.watchers = nil
	f.told.Store(nil)
}

// state returns all objects, and sets the watchers up behind them.
func (f *follower) state(ctx context.Context, t *told) (changes []resource.Change, err error) {
	for _, r := range f.resources {
		snapshot, err := r.Snapshot(ctx, store.Read{})
		if err != nil {
			return nil, err
		}
		snapshot.Range(r.Key("", ""), "", func(rec *store.Record) bool {
			changes = f.add(changes, r, store.Event{Type: store.Added, Record: rec})
			return true
		})
		w, err := r.WatchFrom(ctx, snapshot, "", false, func(*store.Record) bool { return true })
		if err != nil {
			return nil, err
		}
		f.watchers = append(f.watchers, w)
	}
	more, err := f.poll(ctx, t)
	return append(changes, more...), err
}

// poll returns what the logs have got since the last time.
func (f *follower) poll(ctx context.Context, t *told) (changes []resource.Change, err error) {
	for i, w := range f.watchers {
		for {
			events, more, err := w.Poll(ctx)
			if err != nil {
				return nil, err
			}
			for _, event := range events {
				changes = f.add(changes, f.resources[i], event)
			}
			// Without events there is nothing more, or a part of a batch that
			// is on its way: it is for the next time.
			if len(events) == 0 {
				t.more = append(t.more, more)
				break
			}
		}
	}
	return changes, nil
}

func (f *follower) add(changes []resource.Change, r *store.Resource, event store.Event) []resource.Change {
	obj, err := r.Decode(event.Record)
	if err != nil {
		f.log.Error("object cannot be decoded, authorization goes on without it", "key", event.Record.Key, "error", err)
		return changes
	}
	return append(changes, resource.Change{Object: obj, Deleted: event.Type == store.Deleted})
}

// storedCodec is how the store reads and writes the objects of a definition.
type storedCodec struct{ def *resource.Definition }

func (c storedCodec) Encode(obj resource.Object) ([]byte, error) {
	return wire.EncodeStored(c.def, obj)
}

func (c storedCodec) Decode(stored []byte) (resource.Object, error) {
	return wire.DecodeStored(c.def, stored)
}

// acks is a storage.Backend that notes which writes were acknowledged, for
// those who must know before the event arrives.
type acks struct {
	storage.Backend
	// noted is shared by all backends of a server.
	noted *atomic.Pointer[[]*written]
}

func newAcks(backend storage.Backend) *acks {
	return &acks{backend, &atomic.Pointer[[]*written]{}}
}

// over notes writes to another backend of the same server.
func (a *acks) over(backend storage.Backend) *acks { return &acks{backend, a.noted} }

// written is the newest write below a prefix.
type written struct {
	prefix string
	newest atomic.Int64
}

// note notes writes from now on.
func (a *acks) note(w *written) {
	for {
		before := a.noted.Load()
		after := []*written{w}
		if before != nil {
			after = append(after, *before...)
		}
		if a.noted.CompareAndSwap(before, &after) {
			return
		}
	}
}

func (a *acks) acknowledge(key string, revision int64) {
	noted := a.noted.Load()
	if noted == nil {
		return
	}
	for _, w := range *noted {
		if !strings.HasPrefix(key, w.prefix) {
			continue
		}
		for was := w.newest.Load(); was < revision && !w.newest.CompareAndSwap(was, revision); was = w.newest.Load() {
		}
	}
}

// Create implements storage.Backend.
func (a *acks) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	began := time.Now()
	kv, err := a.Backend.Create(ctx, key, value, ttl)
	request.From(ctx).Spent(request.Storage, time.Since(began))
	if err == nil {
		a.acknowledge(key, kv.ModRevision)
	}
	return kv, err
}

// Update implements storage.Backend.
func (a *acks) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	began := time.Now()
	kv, err := a.Backend.Update(ctx, key, value, guard, ttl)
	request.From(ctx).Spent(request.Storage, time.Since(began))
	if err == nil {
		a.acknowledge(key, kv.ModRevision)
	}
	return kv, err
}

// Delete implements storage.Backend.
func (a *acks) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	began := time.Now()
	kv, revision, err := a.Backend.Delete(ctx, key, guard)
	request.From(ctx).Spent(request.Storage, time.Since(began))
	if err == nil {
		a.acknowledge(key, revision)
	}
	return kv, revision, err
}

// authorizers makes the chain of authorizers, and what keeps users from
// giving away rights that they do not have.
func authorizers(cfg chain.Config, objects *store.Store, catalog func() *resource.Catalog, acks *acks) (*chain.Chain, *rbac.Guard, error) {
	byRole := rbac.New(follow(objects, catalog, acks, cfg.Logger, roles()))
	cfg.RBAC = byRole
	byNode := node.New(follow(objects, catalog, acks, cfg.Logger, related()))
	byNode.Measure(cfg.Metrics)
	cfg.Node = byNode
	all, err := chain.New(cfg)
	return all, &rbac.Guard{Authorizer: all, Roles: byRole}, err
}
