// Package store keeps objects over the bytes of a storage.Backend.
//
// # The cache
//
// Of every resource that somebody uses, the store holds all objects in memory,
// as Records: the bytes that are in storage, the labels and selectable fields,
// and the encodings that were asked for, each made once. A resource is loaded
// when it is first used. One watch on the whole backend, the feed, keeps all of
// them current, in the order of revisions; the caches of a store all stand at
// the same revision.
//
// Records sit in a copy-on-write B-tree a resource (cache.go): a reader takes a
// snapshot, which costs nothing and blocks nobody, and reads on while writers
// go on.
//
// # Reads
//
// A read that wants the newest state asks the backend for its revision, and
// waits until the feed has come that far. With the embedded engine that is a
// comparison; with etcd it is one request, which readers share. So a read sees
// every write acknowledged before it began, on this server or another. A read
// that the feed keeps waiting reads from the backend instead (direct.go).
//
// # Writes
//
// A write goes to the backend with the revision of the record that it is based
// on as its guard (write.go), and is answered from its own bytes. The feed
// brings it to the cache, in its turn.
//
// # Watches
//
// A resource keeps a log of its recent events (watch.go). A watcher is a position
// in that log. Who falls behind it has lost its place and is told so; it costs the
// others nothing.
package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// Options configures a Store. The zero value is usable.
type Options struct {
	// Root is the prefix of all keys; storage.Root unless set.
	Root string
	// EncodingBytes is how many bytes of encodings are kept;
	// wire.DefaultEncodingBytes unless set.
	EncodingBytes int64
	// ValueBytes is how many stored bytes are kept, if the backend has them elsewhere
	// than in memory (storage.ValueReader); 0 is no limit. Those that do not fit are
	// read again.
	ValueBytes int64
	// ValuesLent, if it is not nil, returns how many of ValueBytes others hold at the moment.
	ValuesLent func() int64
	// ObjectBytes is how many bytes the objects may take that are in memory whether
	// somebody reads them or not; 0 is no limit. When they do, creates are refused with
	// storage.ErrNoSpace.
	ObjectBytes int64
	// Logger gets what goes on behind the calls; nil discards it.
	Logger *slog.Logger
	// Metrics measures what takes time; nil does not.
	Metrics measure.Sink
	// Elsewhere returns the store that has the objects of a definition, if it is
	// another one; nil is this one, as it is for all if Elsewhere is nil. Revisions of
	// different stores have nothing to do with each other.
	Elsewhere func(def *resource.Definition) *Store
}

// Store is all objects of a server.
type Store struct {
	backend storage.Backend
	root    string
	log     *slog.Logger
	metrics measure.Sink
	budget  wire.EncodingBudget
	values  *wire.ValueCache // nil if all are kept
	made    wire.ValueCache  // of values that the backend makes whenever they are read
	objects objectBudget
	other   func(def *resource.Definition) *Store // nil if there is none

	ctx  context.Context
	stop context.CancelFunc
	done chan struct{} // closed when the feed has ended

	mu        sync.Mutex
	resources map[string]*Resource // by key prefix below the root
	position  atomic.Int64         // how far the feed has come; written under mu, read without it
	moved     chan struct{}        // closed when position changes
	failed    error                // set when the feed has ended
	trimmer   *time.Timer          // nil while there are no events to forget
	tasks     sync.WaitGroup       // caches that are loaded by nobody who reads
}

// keepEvents is how long events are kept for watchers, and states for readers of
// pages, at least; twice that at most. Who is slower, or comes later, reads the history
// of the backend.
const keepEvents = 10 * time.Second

// Open starts a store on a backend, which stays the caller's to close, after
// the store.
func Open(ctx context.Context, backend storage.Backend, opts Options) (*Store, error) {
	if opts.Root == "" {
		opts.Root = storage.Root
	}
	if opts.EncodingBytes == 0 {
		opts.EncodingBytes = wire.DefaultEncodingBytes
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Store{
		backend: backend, root: opts.Root, log: opts.Logger, metrics: opts.Metrics, other: opts.Elsewhere,
		done: make(chan struct{}), moved: make(chan struct{}), resources: map[string]*Resource{},
	}
	s.budget.Limit, s.budget.Records = opts.EncodingBytes, s.eachRecord
	s.objects.limit = opts.ObjectBytes
	s.made.Limit, s.made.Read = -1, s.readValue
	if opts.ValueBytes > 0 && storage.HasValues(backend) {
		s.values = &wire.ValueCache{Limit: opts.ValueBytes, Read: s.readValue, Scan: s.scanValues, Next: s.nextRecords, Lent: opts.ValuesLent, Near: !backend.Shared()}
	}
	position, err := backend.Revision(ctx)
	if err != nil {
		return nil, err
	}
	s.position.Store(position)
	s.ctx, s.stop = context.WithCancel(context.Background())
	w, err := backend.Watch(s.ctx, s.root, position)
	if err != nil {
		s.stop()
		return nil, err
	}
	go s.follow(w)
	return s, nil
}

// Close ends all watches and waits for the feed to end.
func (s *Store) Close() {
	s.stop()
	<-s.done
	s.mu.Lock()
	if s.trimmer != nil {
		s.trimmer.Stop()
	}
	s.mu.Unlock()
	s.budget.Close()
	s.values.Close()
	s.tasks.Wait()
}

// spawn runs f in a goroutine for which Close waits. It returns false if the store is
// closed.
func (s *Store) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.tasks.Go(f)
	return true
}

// of returns the store that has the objects of a definition.
func (s *Store) of(def *resource.Definition) *Store {
	if s.other != nil {
		if other := s.other(def); other != nil {
			return other
		}
	}
	return s
}

// Resource returns the objects of a definition. It is the same for every call
// with the same storage key, and costs nothing until it is used.
func (s *Store) Resource(def *resource.Definition) *Resource {
	s = s.of(def)
	prefix := s.root + def.StorageKey + "/"
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.resources[prefix]
	if r != nil && (r.def == def || r.def.Epoch >= def.Epoch) {
		return r
	}
	next := newResource(s, def, prefix)
	if r != nil {
		// The definition was replaced. What was made by the old one goes, but for
		// what its writers have been told.
		next.acknowledged = r.acknowledged
		r.end(ErrExpired)
	}
	s.resources[prefix] = next
	return next
}

// Forget drops the cache of a definition that is served no more, and ends its
// watches.
func (s *Store) Forget(def *resource.Definition) {
	s = s.of(def)
	prefix := s.root + def.StorageKey + "/"
	s.mu.Lock()
	r := s.resources[prefix]
	delete(s.resources, prefix)
	s.mu.Unlock()
	if r != nil {
		r.end(ErrGone)
	}
}

// ErrGone ends the watches of a resource that is served no more.
var ErrGone = errors.New("the resource is served no more")

// follow is the feed. When the backend loses its place (compaction passed it,
// which takes a server that was cut off for minutes) all caches are dropped and
// loaded again; watchers are told to list anew.
func (s *Store) follow(w storage.Watcher) {
	defer close(s.done)
	for {
		err := s.receive(w)
		w.Close()
		if s.ctx.Err() != nil || errors.Is(err, storage.ErrClosed) {
			s.fail(storage.ErrClosed)
			return
		}
		s.log.Warn("store: the watch on storage ended, loading all caches anew", "error", err)
		if w = s.restart(); w == nil {
			s.fail(storage.ErrClosed)
			return
		}
	}
}

// receive brings batches to the caches until the watch ends. A store in this process does
// it while it commits: no goroutine is woken for it, and who has written finds its write.
func (s *Store) receive(w storage.Watcher) error {
	if p, ok := w.(storage.AskingPusher); ok {
		return p.PushAsking(s.bringIn, s.newest)
	}
	if p, ok := w.(storage.Pusher); ok {
		return p.Push(s.bringIn)
	}
	for {
		batch, err := w.Next(s.ctx)
		if err != nil {
			return err
		}
		s.bringIn(batch)
	}
}

// newest implements storage.Lookup with the caches: a commit need not read from disk what is
// in memory. It waits for nobody, as those that have the mutexes may wait for the commit.
func (s *Store) newest(key string) (kv storage.KeyValue, seen int64, ok bool) {
	if !s.mu.TryLock() {
		return kv, 0, false
	}
	r, seen := s.find(key), s.position.Load()
	s.mu.Unlock()
	if r == nil || !r.mu.TryLock() {
		return kv, 0, false
	}
	defer r.mu.Unlock()
	if r.state != isLoaded {
		return kv, 0, false
	}
	rec, found := r.tree.Get(key)
	if !found {
		return kv, seen, true
	}
	stored, in := rec.InMemory()
	kv = storage.KeyValue{Key: key, Value: stored, CreateRevision: rec.Created, ModRevision: rec.Revision}
	return kv, seen, in && rec.Created != 0
}

func (s *Store) bringIn(batch storage.Batch) {
	s.apply(batch)
	s.values.Trim()
}

// restart drops the caches and begins a new watch, as often as it takes.
func (s *Store) restart() storage.Watcher {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		revision, err := s.backend.Revision(s.ctx)
		if err == nil {
			var w storage.Watcher
			if w, err = s.backend.Watch(s.ctx, s.root, revision); err == nil {
				s.mu.Lock()
				// Caches first: who sees the position reads a cache that is as new.
				for _, r := range s.resources {
					r.reset()
				}
				s.position.Store(max(s.position.Load(), revision))
				s.announce()
				s.mu.Unlock()
				return w
			}
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (s *Store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = err
	for _, r := range s.resources {
		r.end(err)
	}
	s.announce()
}

// announce wakes those who wait for the feed. The mutex is held.
func (s *Store) announce() {
	close(s.moved)
	s.moved = make(chan struct{})
}

// apply brings a batch to the caches and moves the position of the store.
func (s *Store) apply(batch storage.Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var touched []*Resource
	for i := range batch.Events {
		ev := &batch.Events[i]
		r := s.find(ev.KV.Key)
		if r != nil && r.receive(ev) && (len(touched) == 0 || touched[len(touched)-1] != r) {
			touched = append(touched, r)
		}
	}
	if len(touched) > 0 {
		s.trimSoon()
	}
	s.position.Store(batch.Revision)
	// Watchers are woken once a batch, when all of it is there.
	for _, r := range touched {
		r.announce()
	}
	s.announce()
}

// trim gives back what old events and states take, and comes again as long as there
// are any.
func (s *Store) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trimmer = nil
	if s.ctx.Err() != nil {
		return
	}
	left := false
	for _, r := range s.resources {
		left = r.trim() || left
	}
	if left {
		s.trimSoon()
	}
}

// find returns the resource that a key belongs to, if it is in use.
func (s *Store) find(key string) *Resource {
	for i := len(s.root); ; {
		n := strings.IndexByte(key[i:], '/')
		if n < 0 {
			return nil
		}
		i += n + 1
		if r := s.resources[key[:i]]; r != nil {
			return r
		}
	}
}

// Revision returns how far the caches are. It waits for a batch of events that
// is just being brought in.
func (s *Store) Revision() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.position.Load()
}

// progressEvery is how often the backend is asked for progress while somebody
// waits for it.
const progressEvery = 50 * time.Millisecond

// reached reports whether the feed has come to a revision.
func (s *Store) reached(revision int64) bool { return s.position.Load() >= revision }

// WaitFor waits until the caches have come to a revision.
func (s *Store) WaitFor(ctx context.Context, revision int64) error {
	var tick <-chan time.Time
	for {
		s.mu.Lock()
		position, moved, failed := s.position.Load(), s.moved, s.failed
		s.mu.Unlock()
		switch {
		case position >= revision:
			return nil
		case failed != nil:
			return failed
		}
		if tick == nil {
			// The event is most likely on its way: only when it takes time is
			// the backend asked, as writes to other prefixes bring no event.
			t := time.NewTicker(progressEvery)
			defer t.Stop()
			tick = t.C
			if err := s.backend.Progress(ctx); err != nil {
				return err
			}
		}
		select {
		case <-moved:
		case <-tick:
			if err := s.backend.Progress(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for revision %d, the cache is at %d: %w", revision, position, ctx.Err())
		}
	}
}

// current waits until the caches show everything that is acknowledged by now.
func (s *Store) current(ctx context.Context) error {
	revision, err := s.backend.Revision(ctx)
	if err != nil {
		return err
	}
	return s.WaitFor(ctx, revision)
}
