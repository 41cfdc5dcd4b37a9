package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/sorted"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

const (
	// loadPage is how many keys are read at a time when a resource is loaded, loadBytes
	// how many bytes.
	loadPage, loadBytes = 5000, 8 << 20
)

// Resource is the objects of one resource.
type Resource struct {
	store  *Store
	def    *resource.Definition
	prefix string

	loading turn        // held by who loads the cache
	reading turn        // held by who reads past the feed
	loaded  atomic.Bool // the cache is complete and current
	// loadsLong is set while the cache is being loaded for longer than loadPatience.
	loadsLong atomic.Bool
	gets      atomic.Int64 // before the cache was loaded
	pages     atomic.Int64 // likewise
	paging    turn         // held by who reads a page without the cache
	behind    []behind     // the last such pages; guarded by paging
	counted   atomic.Bool  // it was looked whether there are objects
	// acknowledged is the revision of the newest write of this process. The
	// resource of a definition that replaces this one has the same counter.
	acknowledged *atomic.Int64
	decoded      decodedObjects // of shared views
	largest      atomic.Int64   // stored bytes of an object that was in the cache

	// The cache, written by the feed.
	mu       sync.Mutex
	state    loadState
	tree     *tree
	indexes  indexes   // of tree
	arrived  arrivals  // while loading: what the feed brought meanwhile
	snapshot *Snapshot // of tree, until it changes
	log      *eventLog
	pending  pending
	pins     pins // of lists that are read in pages
	counts   counts
	broken   broken // why it could not be loaded
	doubts   doubts // what was decrypted with keys that may be gone
	spoiled  bool   // the cache was complete until an object changed that cannot be decrypted
	leftOut  leftOut
}

type loadState int

const (
	unloaded loadState = iota
	isLoading
	isLoaded
)

func newResource(s *Store, def *resource.Definition, prefix string) *Resource {
	return &Resource{store: s, def: def, prefix: prefix, log: newEventLog(s.values), acknowledged: new(atomic.Int64)}
}

// Definition returns what the objects are.
func (r *Resource) Definition() *resource.Definition { return r.def }

// Revision returns how far the cache is.
func (r *Resource) Revision() int64 { return r.store.Revision() }

// WaitFor waits until the cache has come to a revision.
func (r *Resource) WaitFor(ctx context.Context, revision int64) error {
	return r.store.WaitFor(ctx, revision)
}

// Decode returns the object of a record, which the caller may change.
func (r *Resource) Decode(rec *Record) (resource.Object, error) {
	stored, err := rec.Stored()
	if err != nil {
		return nil, err
	}
	return wire.DecodeStored(r.def, stored)
}

// Key returns the key of an object. With an empty name it is the prefix of all
// objects in a namespace, with both empty of all.
func (r *Resource) Key(namespace, name string) string {
	if !r.def.Namespaced {
		return r.prefix + name
	}
	if namespace == "" {
		return r.prefix
	}
	return r.prefix + namespace + "/" + name
}

// tree is records by key.
type tree = sorted.Tree[string, *Record]

func newTree() *tree {
	return sorted.New(func(rec *Record) string { return rec.Key }, strings.Compare)
}

// load fills the cache if it is not filled.
func (r *Resource) load(ctx context.Context) error {
	if r.loaded.Load() {
		return nil
	}
	if err := r.loading.lock(ctx); err != nil {
		return err
	}
	defer r.loading.unlock()
	return r.fill(ctx)
}

// fill is load for who holds loading.
func (r *Resource) fill(ctx context.Context) error {
	if r.loaded.Load() {
		return nil
	}
	defer r.loadsLong.Store(false)
	if err := r.recall(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	r.state, r.arrived = isLoading, arrivals{}
	r.mu.Unlock()
	began := time.Now()
	tree, out, revision, err := r.read(ctx, r.prefix, 0, r.store.values.Offer)
	if err == nil {
		// The feed may have to deliver the past of what was read.
		err = r.wait(ctx, revision, listPatience)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || r.state != isLoading { // or the feed was restarted
		if r.state == isLoading {
			r.state = unloaded
			r.remember(err)
		}
		r.arrived = arrivals{}
		if err == nil {
			err = fmt.Errorf("%w: the cache was reset while it was being loaded", storage.ErrUnavailable)
		}
		return err
	}
	r.tree, r.indexes.all, r.state, r.snapshot, r.spoiled, r.leftOut = tree, nil, isLoaded, nil, false, leftOut{}
	for _, one := range out {
		r.leaveOutLocked(one)
	}
	r.log.reset(revision)
	arrived := r.arrived
	r.arrived = arrivals{}
	for i := range arrived.events {
		if ev := &arrived.events[i]; r.state == isLoaded && ev.KV.ModRevision > revision {
			r.enter(ev)
		}
	}
	if r.state != isLoaded {
		return errReset()
	}
	if arrived.complete > revision {
		r.log.forget(arrived.complete)
	}
	r.loaded.Store(true)
	r.counts.loads++
	measure.Since(r.store.metrics, began, measure.CacheLoadDuration, r.def.Group, r.def.Resource)
	return nil
}

// gathering makes a tree of objects that are read from the backend. made is called with each record that
// the cache does not have: if there is a ValueCache, it has to copy the stored bytes or to let them go.
type gathering struct {
	*Resource
	made       func(*Record)
	tree       *tree
	unreadable UnreadableObjects // those that cannot be decrypted or converted: nothing is known then
	out        UnreadableObjects // those that cannot be decoded, and are left out
	seen       int
	last       string // key
}

func (g *gathering) add(kv *storage.KeyValue) error {
	g.seen, g.last = g.seen+1, kv.Key
	rec, err := g.known(kv), error(nil)
	if rec == nil {
		if rec, err = g.readRecord(kv); err == nil {
			g.noteSize(rec)
			g.made(rec)
		}
	}
	var one *Unreadable
	switch {
	case errors.As(err, &one) && one.isLeftOut():
		g.out = append(g.out, one)
	case errors.As(err, &one):
		if g.unreadable = append(g.unreadable, one); one.Revision != 0 {
			return g.unreadable // not converted: the next may take a webhook as long
		}
	case err != nil:
		return err
	default:
		g.tree.Set(rec)
	}
	if len(g.unreadable) == MaxUnreadable {
		return g.unreadable
	}
	return nil
}

// read builds a tree of the objects below a prefix from the backend, as of a revision,
// zero for the current, and returns what it had to leave out. made is that of gathering.
func (r *Resource) read(ctx context.Context, prefix string, revision int64, made func(*Record)) (*tree, UnreadableObjects, int64, error) {
	g := gathering{Resource: r, made: made, tree: newTree()}
	opts := storage.ListOptions{Limit: loadPage, MaxBytes: loadBytes, Revision: revision}
	for {
		page, err := r.store.scan(ctx, prefix, opts, g.add)
		switch {
		case err != nil:
			return nil, nil, 0, err
		case !page.More && len(g.unreadable) > 0:
			return nil, nil, 0, g.unreadable
		case !page.More:
			return g.tree, g.out, page.Revision, nil
		}
		opts.Revision, opts.Start = page.Revision, storage.NextKey(g.last)
	}
}

// reset makes the resource load again when it is next used, and ends its
// watches, as events may have been missed.
func (r *Resource) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop()
}

// drop is reset for who holds the mutex.
func (r *Resource) drop() {
	r.loaded.Store(false)
	r.log.drop(len(r.log.entries))
	if r.tree != nil && r.store.values != nil {
		r.tree.All(func(rec *Record) bool { r.store.values.Drop(rec); return true })
	}
	r.state, r.tree, r.snapshot, r.arrived, r.pins, r.pending, r.leftOut = unloaded, nil, nil, arrivals{}, nil, pending{}, leftOut{}
	r.indexes.all = nil
	r.log.end(ErrExpired)
	r.log = newEventLog(r.store.values)
}

// end ends all watches for good.
func (r *Resource) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.end(err)
}

// receive takes an event from the feed and reports whether watchers should be
// woken.
func (r *Resource) receive(ev *storage.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.state {
	case unloaded:
		r.broken = broken{}
	case isLoading:
		r.arrived.add(ev)
	case isLoaded:
		r.enter(ev)
		return true
	}
	return false
}

// enter brings an event into the tree and the log. The mutex is held.
func (r *Resource) enter(ev *storage.Event) {
	prev, existed := r.tree.Get(ev.KV.Key)
	if !existed {
		prev = nil
	}
	entry := logEntry{revision: ev.KV.ModRevision}
	var rec *Record
	var one *Unreadable // the object can no longer be decoded: for readers it is gone
	r.takeInLocked(ev.KV.Key)
	if ev.Op != storage.Deleted {
		if rec = r.pending.take(&ev.KV); rec == nil {
			var err error
			if rec, err = r.readRecord(&ev.KV); err != nil && !(errors.As(err, &one) && one.isLeftOut()) {
				r.store.log.Error("store: object cannot be read", "key", ev.KV.Key, "error", err)
				r.drop()
				r.spoiled = !errors.Is(err, budget.ErrBusy)
				return
			}
		}
	}
	if one != nil {
		r.leaveOutLocked(one)
	}
	if rec == nil {
		r.tree.Delete(ev.KV.Key)
		if prev == nil {
			r.snapshot = nil // of what is left out
			return
		}
		entry.old, entry.last = prev, prev.At(ev.KV.ModRevision)
	} else {
		r.noteSize(rec)
		r.store.values.Keep(rec)
		r.tree.Set(rec)
		entry.old, entry.now = prev, rec
		if prev != nil {
			entry.last = prev.At(ev.KV.ModRevision)
		}
	}
	r.reindex(prev, entry.now)
	r.snapshot = nil
	r.counts.received++
	r.pins.outlive(r.log.append(entry), r.log.since)
	r.touch(&entry)
}

// announce wakes the watchers of the resource.
func (r *Resource) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.wake()
}

// Snapshot is all objects of a resource at one revision.
type Snapshot struct {
	// Revision of the state.
	Revision int64
	tree     *tree
	indexes  []*index
	own      int  // bytes of records that are not those of the cache
	part     bool // only some of the objects
	out      UnreadableObjects
	// following is how many objects of a part come after those in the snapshot, if it is a page; more
	// says that there are some.
	following int
	more      bool
}

// snap returns the newest state of the cache, nil if it is not loaded. It is
// taken between two batches of the feed: in the midst of one, a part of a
// revision could be missing.
func (r *Resource) snap() *Snapshot {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tree == nil {
		return nil
	}
	if r.snapshot == nil {
		r.snapshot = &Snapshot{Revision: r.store.position.Load(), tree: r.tree.Clone(), indexes: r.indexes.clones(), out: r.leftOut.listLocked()}
	} else if position := r.store.position.Load(); r.snapshot.Revision < position {
		r.snapshot = &Snapshot{Revision: position, tree: r.snapshot.tree, indexes: r.snapshot.indexes, out: r.snapshot.out}
	}
	return r.snapshot
}

// Read says how current a read must be. The zero value asks for everything
// that was acknowledged before the call.
type Read struct {
	// Exact is the revision of the state wanted.
	Exact int64
	// AtLeast is the oldest revision that will do.
	AtLeast int64
	// Acknowledged is everything that this process has written: a part of the
	// server that decides about a request must not miss what a client was told
	// before. It costs nothing but the wait for an event that is on its way.
	Acknowledged bool
	// Any takes the cache as it is.
	Any bool
}

// Snapshot returns the state of the resource. The errors are those of storage:
// ErrCompacted if an exact revision is not kept any more, ErrFutureRevision if
// it has not been reached.
func (r *Resource) Snapshot(ctx context.Context, read Read) (*Snapshot, error) {
	if read.Exact != 0 {
		return r.exactly(ctx, read.Exact)
	}
	// The event that was waited for may be of an object that cannot be read, and drop
	// the cache. Loading it again returns the error that names the object.
	for range 2 {
		revision, err := r.ready(ctx, read, listPatience)
		if read == (Read{}) {
			r.counts.consistent(err == nil)
		}
		if errors.Is(err, errFeedLate) {
			return r.readPast(ctx, revision)
		}
		if err != nil {
			return nil, err
		}
		if s := r.snap(); s != nil {
			return s, nil
		}
	}
	return nil, errReset()
}

// ready waits until the cache is as current as a read wants it, and returns the revision
// that it wants. The error is errFeedLate if that takes longer than patience.
func (r *Resource) ready(ctx context.Context, read Read, patience time.Duration) (revision int64, err error) {
	switch {
	case read.Any:
	case read.AtLeast != 0:
		revision = read.AtLeast
	case read.Acknowledged:
		revision = r.acknowledged.Load()
	default:
		if revision, err = r.store.backend.Revision(ctx); err != nil {
			return 0, err
		}
	}
	if err = r.load(ctx); errors.Is(err, errFeedLate) {
		if err = r.late(ctx, revision); err == nil {
			err = r.load(ctx)
		}
	}
	if err != nil {
		return revision, err
	}
	return revision, r.wait(ctx, revision, patience)
}

func errReset() error {
	return fmt.Errorf("%w: the cache is being loaded anew", storage.ErrUnavailable)
}

// exactly returns the state at one revision: that of the cache if nothing has
// changed since, else from the history of the backend.
func (r *Resource) exactly(ctx context.Context, revision int64) (*Snapshot, error) {
	current, err := r.ready(ctx, Read{}, getPatience)
	late := errors.Is(err, errFeedLate)
	switch {
	case late && current < revision:
		return nil, fmt.Errorf("%w: %d is asked for, the newest is %d", storage.ErrFutureRevision, revision, current)
	case err != nil && !late:
		return nil, err
	}
	if s := r.snap(); s != nil && !late {
		if s.Revision < revision {
			return nil, fmt.Errorf("%w: %d is asked for, the newest is %d", storage.ErrFutureRevision, revision, s.Revision)
		}
		// If the cache was dropped meanwhile, nothing is known of what has changed.
		if !r.ChangedSince(revision) {
			return &Snapshot{Revision: revision, tree: s.tree, indexes: s.indexes, out: s.out}, nil
		}
	}
	if s := r.pinned(revision); s != nil {
		return s, nil
	}
	if err := r.reading.lock(ctx); err != nil {
		return nil, err
	}
	defer r.reading.unlock()
	if s := r.pinned(revision); s != nil {
		return s, nil // another has read it meanwhile
	}
	return r.directAndPin(ctx, revision)
}

// Get returns the record of a key.
func (s *Snapshot) Get(key string) (*Record, bool) { return s.tree.Get(key) }

// Len returns the number of objects.
func (s *Snapshot) Len() int { return s.tree.Len() }

// Range calls yield for the records whose keys begin with prefix, from start
// (or the first, if it is empty) on, in order, until yield returns false.
func (s *Snapshot) Range(prefix, start string, yield func(*Record) bool) {
	// They are counted instead of compared with an end: most are not in the caches of a
	// processor.
	left := s.Count(prefix, start)
	if left == 0 {
		return
	}
	s.tree.From(max(prefix, start), func(rec *Record) bool {
		left--
		return yield(rec) && left > 0
	})
}

// Count returns how many records Range would yield, without looking at them.
func (s *Snapshot) Count(prefix, start string) int {
	n := s.tree.Len()
	if end := storage.PrefixEnd(prefix); end != "" {
		n = s.tree.Rank(end)
	}
	return max(0, n-s.tree.Rank(max(prefix, start)))
}

// Get returns an object, as Snapshot would show it.
func (r *Resource) Get(ctx context.Context, key string, read Read) (*Record, error) {
	if !r.loaded.Load() && read.AtLeast == 0 && r.loadBeside(ctx) {
		return r.newest(ctx, key)
	}
	_, err := r.ready(ctx, read, getPatience)
	if errors.Is(err, errFeedLate) || errors.As(err, new(UnreadableObjects)) {
		return r.newest(ctx, key) // others that cannot be read are no reason
	} else if err != nil {
		return nil, err
	}
	rec, confirmed, err := r.cached(key)
	if errors.As(err, new(*Unreadable)) {
		return r.newest(ctx, key)
	}
	if err == nil && !confirmed && read == (Read{}) {
		return r.confirm(ctx, rec)
	}
	return rec, err
}

// cached returns the record of a key in the cache. It is not confirmed if it was decrypted
// with keys that may be gone.
func (r *Resource) cached(key string) (rec *Record, confirmed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tree == nil {
		return nil, false, errReset()
	}
	if rec, ok := r.tree.Get(key); ok {
		return rec, r.doubts.confirmed(rec), nil
	}
	if one := r.leftOut.byKey[key]; one != nil {
		return nil, false, one
	}
	return nil, false, fmt.Errorf("%w: %s", storage.ErrNotFound, key)
}

// ErrExpired: the place of a watcher in the history of its resource is lost.
// It has to list again.
var ErrExpired = errors.New("too old resource version")
