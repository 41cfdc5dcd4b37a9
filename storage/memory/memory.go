// Package memory is a storage.Backend without a disk: for tests, for trying
// things out, and for servers whose objects need not outlive them.
//
// Start at New. An idle store has no goroutine and nothing but its keys: what is
// due later (keys that expire, history that is too old) waits in timers. Nothing
// outlives Close.
//
// # How it is kept
//
// Every write makes a version, which is never changed except that compaction cuts
// off what it replaced. A tree has the newest version of every key, each version
// leads to the one before it, and a log has all versions by revision. A read at an
// older revision goes back from the newest version; a watcher is a position in the
// log. One lock guards all of it; it is held for as long as it takes to look keys up,
// and values are never copied under it, but for those that are made when they are read.
package memory

import (
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/internal/sorted"
	"github.com/apikeel/kelson/storage"
)

// Defaults of Options.
const (
	DefaultHistoryAge   = 5 * time.Minute
	DefaultHistoryCount = 1_000_000
	DefaultSizeLimit    = 8 << 30
)

// Options configures a store. The zero value is usable.
type Options struct {
	// HistoryAge is how long the events of the past and the versions that they
	// replaced are kept, so that watches can resume; 0 is DefaultHistoryAge.
	HistoryAge time.Duration
	// HistoryCount is how many revisions of history are kept at most; 0 is
	// DefaultHistoryCount.
	HistoryCount int64
	// SizeLimit is the size of keys and values, history included, in bytes past which
	// creates are refused; 0 is DefaultSizeLimit, a negative one no limit.
	SizeLimit int64
}

// version is a key from one revision until the next write to it. Everything but
// older and due is written before the version is shared.
type version struct {
	key     string
	value   []byte
	lazy    func() []byte // makes the value whenever it is read; nil if there is one
	create  int64         // revision at which the key came into being
	mod     int64         // revision of this write
	expires int64         // Unix nanoseconds, 0 for never
	older   *version
	deleted bool  // the write removed the key
	due     int32 // place in Store.expiring, while expires is set and this is the newest
	made    int32 // size of what lazy makes
}

func (v *version) keyValue() storage.KeyValue {
	kv := storage.KeyValue{Key: v.key, Value: v.value, CreateRevision: v.create, ModRevision: v.mod}
	if v.lazy != nil {
		kv.Value, kv.Made = v.lazy(), true
	}
	if v.expires != 0 {
		kv.Expires = time.Unix(0, v.expires)
	}
	return kv
}

// event returns what the write did.
func (v *version) event() storage.Event {
	ev := storage.Event{Op: storage.Created, KV: v.keyValue()}
	switch {
	case v.deleted:
		ev.Op = storage.Deleted
	case v.older != nil && !v.older.deleted:
		ev.Op = storage.Updated
	}
	if ev.Op != storage.Created {
		ev.Prev = v.older.keyValue()
	}
	return ev
}

// Store is a storage.Backend in memory.
type Store struct {
	opts Options

	mu        sync.RWMutex // guards all below
	newest    *sorted.Tree[string, *version]
	log       []*version // of consecutive revisions, ending with revision
	revision  int64
	compacted int64 // the oldest revision that can be read, 0 while that is all
	bytes     int64 // of keys and values in the log and in the tree
	asked     int64 // the revision at the latest call of Progress
	changed   chan struct{}
	closed    bool

	expiring expiries
	expirer  *time.Timer // runs when the first of expiring is due; nil if there are none
	marks    []mark      // when which revision was reached, oldest first
	trimmer  *time.Timer // runs when the next mark is due; nil if there is no history
}

// mark says that a revision was reached at a time, or before.
type mark struct {
	at       time.Time
	revision int64
}

var _ storage.Backend = (*Store)(nil)

// New returns an empty store.
func New(opts Options) *Store {
	opts.HistoryAge = cmp.Or(opts.HistoryAge, DefaultHistoryAge)
	opts.HistoryCount = cmp.Or(opts.HistoryCount, DefaultHistoryCount)
	opts.SizeLimit = cmp.Or(opts.SizeLimit, DefaultSizeLimit)
	return &Store{
		opts:     opts,
		revision: 1,
		newest:   newTree(),
		changed:  make(chan struct{}),
	}
}

// newTree returns a tree of versions by key.
func newTree() *sorted.Tree[string, *version] {
	return sorted.New(func(v *version) string { return v.key }, strings.Compare)
}

// Create implements storage.Backend.
func (s *Store) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	v, err := newVersion(key, value, ttl)
	if err != nil {
		return storage.KeyValue{}, err
	}
	cur, err := s.create(ctx, v)
	return cur.keyValue(), err
}

// CreateLazy implements storage.LazyCreator.
func (s *Store) CreateLazy(ctx context.Context, key string, size int, value func() []byte) (int64, error) {
	if err := cmp.Or(storage.CheckKey(key), storage.CheckSize(size)); err != nil {
		return 0, err
	}
	cur, err := s.create(ctx, &version{key: key, lazy: value, made: int32(size)})
	return cur.mod, err
}

// create commits a version of a key that must not exist, and returns it. With ErrExists
// that is the one in the way, with other errors an empty one.
func (s *Store) create(ctx context.Context, v *version) (*version, error) {
	if err := s.lock(ctx); err != nil {
		return &version{}, err
	}
	defer s.mu.Unlock()
	cur, ok := s.newest.Get(v.key)
	if ok && !cur.deleted {
		return cur, fmt.Errorf("%w: %s", storage.ErrExists, v.key)
	}
	if limit := s.opts.SizeLimit; limit > 0 && s.bytes > limit {
		return &version{}, fmt.Errorf("%w: the store has %d bytes, its limit is %d; delete something", storage.ErrNoSpace, s.bytes, limit)
	}
	v.older = cur
	v.create = s.revision + 1
	s.commit(v)
	return v, nil
}

// Update implements storage.Backend.
func (s *Store) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	v, err := newVersion(key, value, ttl)
	if err != nil {
		return storage.KeyValue{}, err
	}
	if err := s.lock(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer s.mu.Unlock()
	cur, err := s.guarded(key, guard)
	if err != nil {
		return cur, err
	}
	v.older, _ = s.newest.Get(v.key)
	v.create = cur.CreateRevision
	s.commit(v)
	return v.keyValue(), nil
}

// Delete implements storage.Backend.
func (s *Store) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, 0, err
	}
	if err := s.lock(ctx); err != nil {
		return storage.KeyValue{}, 0, err
	}
	defer s.mu.Unlock()
	cur, err := s.guarded(key, guard)
	if err != nil {
		return cur, 0, err
	}
	s.remove(key)
	return cur, s.revision, nil
}

// remove deletes a key that exists. The lock is held.
func (s *Store) remove(key string) {
	cur, _ := s.newest.Get(key)
	s.commit(&version{key: cur.key, create: cur.create, older: cur, deleted: true})
}

// newVersion returns a version with a value of its own.
func newVersion(key string, value []byte, ttl time.Duration) (*version, error) {
	if err := cmp.Or(storage.CheckKey(key), storage.CheckValue(value)); err != nil {
		return nil, err
	}
	v := &version{key: key, value: bytes.Clone(value)}
	if ttl > 0 {
		v.expires = time.Now().Add(ttl).UnixNano()
	}
	return v, nil
}

// lock takes the lock to write, or says why the call cannot go on.
func (s *Store) lock(ctx context.Context) error {
	s.mu.Lock()
	err := s.usable(ctx)
	if err != nil {
		s.mu.Unlock()
	}
	return err
}

// rlock takes the lock to read, or says why the call cannot go on.
func (s *Store) rlock(ctx context.Context) error {
	s.mu.RLock()
	err := s.usable(ctx)
	if err != nil {
		s.mu.RUnlock()
	}
	return err
}

func (s *Store) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed {
		return storage.ErrClosed
	}
	return nil
}

// guarded returns a key if its mod-revision is guard. The lock is held.
func (s *Store) guarded(key string, guard int64) (storage.KeyValue, error) {
	cur, ok := s.newest.Get(key)
	switch {
	case !ok || cur.deleted:
		return storage.KeyValue{}, fmt.Errorf("%w: %s", storage.ErrNotFound, key)
	case cur.mod != guard:
		return cur.keyValue(), fmt.Errorf("%w: %s is at %d, not at %d", storage.ErrConflict, key, cur.mod, guard)
	}
	return cur.keyValue(), nil
}

// commit gives a version the next revision and makes it the newest of its key. The
// lock is held.
func (s *Store) commit(v *version) {
	s.revision++
	v.mod = s.revision
	if old, ok := s.newest.Set(v); ok && old.expires != 0 {
		heap.Remove(&s.expiring, int(old.due))
	}
	s.log = append(s.log, v)
	s.bytes += v.size()
	if v.expires != 0 {
		heap.Push(&s.expiring, v)
		s.scheduleExpiry()
	}
	// A part more than the limit, so that not every write compacts.
	if limit := s.opts.HistoryCount; int64(len(s.log)) > limit+limit/8 {
		s.compact(s.revision - limit + 1)
	}
	s.scheduleTrim()
	s.notify()
}

func (v *version) size() int64 {
	if v.lazy != nil {
		return int64(len(v.key)) + int64(v.made)
	}
	return int64(len(v.key) + len(v.value))
}

// notify wakes the watchers. The lock is held.
func (s *Store) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Get implements storage.Backend.
func (s *Store) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, err
	}
	if err := s.rlock(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer s.mu.RUnlock()
	v, ok := s.newest.Get(key)
	if !ok || v.deleted {
		return storage.KeyValue{}, fmt.Errorf("%w: %s", storage.ErrNotFound, key)
	}
	return v.keyValue(), nil
}

// Value implements storage.ValueReader.
func (s *Store) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	if err := s.rlock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.RUnlock()
	for v, _ := s.newest.Get(key); v != nil; v = v.older {
		if v.mod == revision {
			return v.keyValue().Value, nil
		}
	}
	return nil, fmt.Errorf("%w: %s at %d", storage.ErrCompacted, key, revision)
}

// HasValues implements storage.ValueReader: values are in memory anyway, so that whoever
// keeps one needs no more room. Only those that are made are worth reading again.
func (s *Store) HasValues() bool { return false }

// List implements storage.Backend.
func (s *Store) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	if err := storage.CheckStart(prefix, opts.Start); err != nil {
		return storage.Page{}, err
	}
	if err := s.rlock(ctx); err != nil {
		return storage.Page{}, err
	}
	defer s.mu.RUnlock()
	page := storage.Page{Revision: cmp.Or(opts.Revision, s.revision)}
	switch {
	case page.Revision < 0 || page.Revision > s.revision:
		return storage.Page{}, fmt.Errorf("%w: %d is asked for, the newest is %d", storage.ErrFutureRevision, page.Revision, s.revision)
	case page.Revision < s.compacted:
		return storage.Page{}, fmt.Errorf("%w: %d is asked for, the oldest is %d", storage.ErrCompacted, page.Revision, s.compacted)
	}
	bytes := 0
	s.walk(prefix, max(prefix, opts.Start), page.Revision, func(v *version) bool {
		if opts.Limit > 0 && len(page.Items) == opts.Limit || opts.MaxBytes > 0 && bytes >= opts.MaxBytes {
			page.More = true
			page.Remaining++
			return opts.Count
		}
		kv := v.keyValue()
		if opts.KeysOnly {
			kv.Value = nil
		}
		bytes += len(kv.Value)
		page.Items = append(page.Items, kv)
		return true
	})
	if !opts.Count {
		page.Remaining = 0
	}
	return page, nil
}

// walk calls yield for the keys with a prefix that existed at a revision, in order,
// from start on, until it returns false. The lock is held.
func (s *Store) walk(prefix, start string, revision int64, yield func(*version) bool) {
	s.newest.From(start, func(v *version) bool {
		if !strings.HasPrefix(v.key, prefix) {
			return false
		}
		for v != nil && v.mod > revision {
			v = v.older
		}
		return v == nil || v.deleted || yield(v)
	})
}

// Count implements storage.Backend.
func (s *Store) Count(ctx context.Context, prefix string) (int64, int64, error) {
	if err := s.rlock(ctx); err != nil {
		return 0, 0, err
	}
	defer s.mu.RUnlock()
	var n int64
	s.walk(prefix, prefix, s.revision, func(*version) bool { n++; return true })
	return n, s.revision, nil
}

// Revision implements storage.Backend.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	if err := s.rlock(ctx); err != nil {
		return 0, err
	}
	defer s.mu.RUnlock()
	return s.revision, nil
}

// Progress implements storage.Backend.
func (s *Store) Progress(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	s.asked = s.revision
	s.notify()
	return nil
}

// Shared implements storage.Backend: no other process can reach the memory.
func (s *Store) Shared() bool { return false }

// Status implements storage.Backend.
func (s *Store) Status(ctx context.Context) (storage.Status, error) {
	if err := s.rlock(ctx); err != nil {
		return storage.Status{}, err
	}
	defer s.mu.RUnlock()
	return storage.Status{Engine: "memory", Revision: s.revision, CompactRevision: s.compacted, SizeBytes: s.bytes, SizeLimitBytes: max(0, s.opts.SizeLimit)}, nil
}

// Close implements storage.Backend. It drops everything.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, t := range []*time.Timer{s.expirer, s.trimmer} {
		if t != nil {
			t.Stop()
		}
	}
	s.newest = newTree()
	s.log, s.expiring, s.marks = nil, nil, nil
	s.notify()
	return nil
}
