package store

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/storage"
)

// The feed can be late: the connection that it comes by is silent, or the member of etcd
// that sends it is behind the others. A read that has waited for it long enough reads
// from the backend instead. An object costs one request. A list costs a request for all
// objects of its resource, so it waits longer, and readers share what one of them has
// read.
const (
	getPatience  = 250 * time.Millisecond
	listPatience = time.Second
)

// The backend has the object that a reader of one asks for, and those of a namespace, so such a
// reader need not have the cache of the whole resource.
const (
	// loadPatience is how long it waits for the cache to be loaded.
	loadPatience = 20 * time.Millisecond
	// fewGets is how many reads of one object, or of a page, are no reason to load it.
	fewGets = 16
)

// errFeedLate: the backend has come to the revision that a read wants, the feed has not.
var errFeedLate = errors.New("the feed is late")

// wait waits until the cache has come to a revision, which as a rule it has. The error is
// errFeedLate if that takes longer than patience, though the backend is there.
func (r *Resource) wait(ctx context.Context, revision int64, patience time.Duration) error {
	if r.store.reached(revision) {
		return nil
	}
	defer measure.Since(r.store.metrics, time.Now(), measure.CacheReadWait, r.def.Group, r.def.Resource)
	patient, cancel := context.WithTimeout(ctx, patience)
	err := r.store.WaitFor(patient, revision)
	cancel()
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return err
	}
	return r.late(ctx, revision)
}

// late returns errFeedLate if the backend has come to a revision, which the feed has not;
// else it waits for the revision.
func (r *Resource) late(ctx context.Context, revision int64) error {
	current, err := r.store.backend.Revision(ctx)
	if err == nil && current < revision {
		err = r.store.WaitFor(ctx, revision)
	} else if err == nil {
		err = errFeedLate
	}
	return err
}

// readPast returns a state that is at least as new as a revision, which the backend has
// come to, without waiting for the feed. One caller at a time reads; the others take what
// it has read if that is new enough.
func (r *Resource) readPast(ctx context.Context, atLeast int64) (*Snapshot, error) {
	if err := r.reading.lock(ctx); err != nil {
		return nil, err
	}
	defer r.reading.unlock()
	atLeast = max(atLeast, r.store.position.Load()) // no reader goes back
	r.mu.Lock()
	for _, p := range r.pins {
		if p.Revision >= atLeast {
			found := r.pins.find(p.Revision)
			r.mu.Unlock()
			return found, nil
		}
	}
	r.mu.Unlock()
	return r.directAndPin(ctx, 0)
}

// directAndPin reads all objects past the cache, and keeps them for others who want that state.
func (r *Resource) directAndPin(ctx context.Context, revision int64) (*Snapshot, error) {
	s, err := r.Direct(ctx, r.prefix, revision)
	if err == nil {
		r.Pin(s)
	}
	return s, err
}

// Direct reads the objects whose keys begin with prefix from the backend, without the
// cache, as of a revision, zero for the current. Objects elsewhere in the resource that
// cannot be decrypted are no reason for it to fail, as they are for Snapshot.
func (r *Resource) Direct(ctx context.Context, prefix string, revision int64) (*Snapshot, error) {
	read := &Snapshot{part: prefix != r.prefix}
	tree, out, current, err := r.read(ctx, prefix, revision, r.keptBy(read))
	if err != nil {
		return nil, err
	}
	read.tree, read.out, read.Revision = tree, out, cmp.Or(revision, current)
	return read, nil
}

// keptBy returns what is called with each record that only a snapshot has.
func (r *Resource) keptBy(s *Snapshot) func(*Record) {
	return func(rec *Record) {
		r.store.values.Drop(rec) // a page of them is about to be read, again
		s.own += rec.MemorySize()
	}
}

// loadBeside reports whether an object should be read from the backend, since the cache is
// not loaded. After fewGets it has the cache loaded by a goroutine of its own, and waits
// for that for loadPatience. A backend in memory is not read twice: it is the reader who
// loads the cache.
func (r *Resource) loadBeside(ctx context.Context) bool {
	if r.store.values == nil {
		return false
	}
	if r.loadsLong.Load() || !r.loading.isHeld() && r.gets.Add(1) <= fewGets {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, loadPatience)
	defer cancel()
	for started := false; ; started = true {
		if r.loading.lock(ctx) != nil {
			r.loadsLong.Store(!r.loaded.Load())
			return true
		}
		if r.loaded.Load() || started { // or it has failed, which the reader finds out
			r.loading.unlock()
			return false
		}
		if !r.store.spawn(func() {
			defer r.loading.unlock()
			_ = r.fill(r.store.ctx)
		}) {
			r.loading.unlock()
			return false
		}
	}
}

// known returns the record of what was read from the backend if the cache has it.
func (r *Resource) known(kv *storage.KeyValue) *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tree == nil || kv.Err != nil {
		return nil
	}
	if rec, ok := r.tree.Get(kv.Key); ok && rec.Revision == kv.ModRevision && rec.Stale == kv.Stale {
		return rec
	}
	return nil
}

// turn is a mutex whose Lock can be canceled. Its zero value is free.
type turn struct {
	mu    sync.Mutex
	held  bool
	freed chan struct{} // closed when it is next unlocked; nil if nobody waits
}

func (t *turn) lock(ctx context.Context) error {
	for {
		t.mu.Lock()
		if !t.held {
			t.held = true
			t.mu.Unlock()
			return nil
		}
		if t.freed == nil {
			t.freed = make(chan struct{})
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *turn) isHeld() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

func (t *turn) unlock() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held = false
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}
