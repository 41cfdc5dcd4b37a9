package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
)

// model is the contract in its simplest form: all events in one slice, and one lock
// around everything. Random operations are compared with it, and the suite tests it
// like any other backend. It discards nothing: compaction only refuses older reads.
type model struct {
	mu        sync.Mutex
	log       []storage.Event // ordered by revision; a revision has one event
	keys      map[string]storage.KeyValue
	timers    map[string]*time.Timer // of the keys that expire
	revision  int64
	compacted int64
	asked     int64         // the revision at the last call of Progress
	changed   chan struct{} // closed and replaced at every change
	closed    bool
}

func newModel() *model {
	return &model{
		keys:      map[string]storage.KeyValue{},
		timers:    map[string]*time.Timer{},
		revision:  1,
		compacted: 1,
		changed:   make(chan struct{}),
	}
}

// reopen closes m and returns a new model with the same state.
func (m *model) reopen() *model {
	m.Close()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := newModel()
	n.log, n.keys, n.revision, n.compacted = m.log, m.keys, m.revision, m.compacted
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, kv := range n.keys {
		n.arm(kv)
	}
	return n
}

// begin locks the model, or says why a call cannot go on.
func (m *model) begin(ctx context.Context) error {
	m.mu.Lock()
	err := ctx.Err()
	if err == nil && m.closed {
		err = storage.ErrClosed
	}
	if err != nil {
		m.mu.Unlock()
	}
	return err
}

// wake makes every waiting watcher look again.
func (m *model) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// commit gives ev the next revision and applies it.
func (m *model) commit(op storage.Op, kv, prev storage.KeyValue) storage.KeyValue {
	m.revision++
	kv.ModRevision = m.revision
	if op == storage.Created {
		kv.CreateRevision = m.revision
	}
	m.log = append(m.log, storage.Event{Op: op, KV: kv, Prev: prev})
	if t := m.timers[kv.Key]; t != nil {
		t.Stop()
		delete(m.timers, kv.Key)
	}
	if op == storage.Deleted {
		delete(m.keys, kv.Key)
	} else {
		m.keys[kv.Key] = kv
		m.arm(kv)
	}
	m.wake()
	return kv
}

// arm deletes kv when it expires.
func (m *model) arm(kv storage.KeyValue) {
	if kv.Expires.IsZero() {
		return
	}
	m.timers[kv.Key] = time.AfterFunc(time.Until(kv.Expires), func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if cur, ok := m.keys[kv.Key]; ok && cur.ModRevision == kv.ModRevision && !m.closed {
			m.commit(storage.Deleted, storage.KeyValue{Key: cur.Key, CreateRevision: cur.CreateRevision}, cur)
		}
	})
}

func expiry(ttl time.Duration) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}

func checkWrite(key string, value []byte) error {
	return cmp.Or(storage.CheckKey(key), storage.CheckValue(value))
}

func (m *model) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if err := checkWrite(key, value); err != nil {
		return storage.KeyValue{}, err
	}
	if err := m.begin(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer m.mu.Unlock()
	if cur, ok := m.keys[key]; ok {
		return cur, storage.ErrExists
	}
	kv := storage.KeyValue{Key: key, Value: bytes.Clone(value), Expires: expiry(ttl)}
	return m.commit(storage.Created, kv, storage.KeyValue{}), nil
}

// guarded returns the key if its mod-revision is guard. The lock is held.
func (m *model) guarded(key string, guard int64) (storage.KeyValue, error) {
	cur, ok := m.keys[key]
	switch {
	case !ok:
		return cur, storage.ErrNotFound
	case cur.ModRevision != guard:
		return cur, storage.ErrConflict
	}
	return cur, nil
}

func (m *model) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if err := checkWrite(key, value); err != nil {
		return storage.KeyValue{}, err
	}
	if err := m.begin(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer m.mu.Unlock()
	cur, err := m.guarded(key, guard)
	if err != nil {
		return cur, err
	}
	kv := storage.KeyValue{Key: key, Value: bytes.Clone(value), CreateRevision: cur.CreateRevision, Expires: expiry(ttl)}
	return m.commit(storage.Updated, kv, cur), nil
}

func (m *model) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, 0, err
	}
	if err := m.begin(ctx); err != nil {
		return storage.KeyValue{}, 0, err
	}
	defer m.mu.Unlock()
	cur, err := m.guarded(key, guard)
	if err != nil {
		return cur, 0, err
	}
	gone := m.commit(storage.Deleted, storage.KeyValue{Key: key, CreateRevision: cur.CreateRevision}, cur)
	return cur, gone.ModRevision, nil
}

func (m *model) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, err
	}
	if err := m.begin(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer m.mu.Unlock()
	kv, ok := m.keys[key]
	if !ok {
		return kv, storage.ErrNotFound
	}
	return kv, nil
}

func (m *model) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	if err := storage.CheckStart(prefix, opts.Start); err != nil {
		return storage.Page{}, err
	}
	if err := m.begin(ctx); err != nil {
		return storage.Page{}, err
	}
	defer m.mu.Unlock()
	page := storage.Page{Revision: cmp.Or(opts.Revision, m.revision)}
	switch {
	case page.Revision > m.revision:
		return storage.Page{}, storage.ErrFutureRevision
	case page.Revision < m.compacted:
		return storage.Page{}, storage.ErrCompacted
	}
	items := stateAt(m.log, prefix, page.Revision)
	first := sort.Search(len(items), func(i int) bool { return items[i].Key >= opts.Start })
	items = items[first:]
	n, bytes := 0, 0
	for n < len(items) && (opts.Limit == 0 || n < opts.Limit) && (opts.MaxBytes == 0 || bytes < opts.MaxBytes) {
		bytes += len(items[n].Value)
		n++
	}
	page.More, page.Remaining, items = n < len(items), int64(len(items)-n), items[:n]
	if opts.KeysOnly {
		for i := range items {
			items[i].Value = nil
		}
	}
	page.Items = items
	return page, nil
}

func (m *model) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	for at := m.revision; at >= max(revision, m.compacted); at-- {
		for _, kv := range stateAt(m.log, key, at) {
			if kv.Key == key && kv.ModRevision == revision {
				return kv.Value, nil
			}
		}
	}
	return nil, storage.ErrCompacted
}

func (m *model) HasValues() bool { return true }

func (m *model) Count(ctx context.Context, prefix string) (int64, int64, error) {
	page, err := m.List(ctx, prefix, storage.ListOptions{KeysOnly: true})
	return int64(len(page.Items)), page.Revision, err
}

func (m *model) Revision(ctx context.Context) (int64, error) {
	if err := m.begin(ctx); err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	return m.revision, nil
}

func (m *model) Progress(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.asked = m.revision
	m.wake()
	return nil
}

func (m *model) Compact(ctx context.Context, revision int64) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	switch {
	case revision > m.revision:
		return storage.ErrFutureRevision
	case revision <= m.compacted:
		return storage.ErrCompacted
	}
	m.compacted = revision
	return nil
}

func (m *model) Shared() bool { return false }

func (m *model) Status(ctx context.Context) (storage.Status, error) {
	if err := m.begin(ctx); err != nil {
		return storage.Status{}, err
	}
	defer m.mu.Unlock()
	return storage.Status{Engine: "model", Revision: m.revision, CompactRevision: m.compacted}, nil
}

func (m *model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	for _, t := range m.timers {
		t.Stop()
	}
	m.wake()
	return nil
}

func (m *model) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	after = cmp.Or(after, m.revision)
	if after+1 < m.compacted {
		return nil, storage.ErrCompacted
	}
	return &modelWatcher{m: m, ctx: ctx, prefix: prefix, pos: after}, nil
}

// modelBatch bounds a batch, so that a backlog comes in several.
const modelBatch = 50

// modelWatcher is a position in the model's log.
type modelWatcher struct {
	m        *model
	ctx      context.Context // of the Watch
	prefix   string
	pos      int64 // every event up to here has been delivered
	reported int64 // Revision of the last batch
	err      error // why the watch is over
}

func (w *modelWatcher) Next(ctx context.Context) (storage.Batch, error) {
	for {
		w.m.mu.Lock()
		batch, err := w.poll()
		changed := w.m.changed
		w.m.mu.Unlock()
		if err != nil || batch.Revision > 0 {
			return batch, err
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		}
	}
}

// poll returns the next batch, or one without a revision if there is nothing new.
func (w *modelWatcher) poll() (storage.Batch, error) {
	if w.err == nil {
		w.err = w.ctx.Err()
	}
	if w.err == nil && w.m.closed {
		w.err = storage.ErrClosed
	}
	if w.err != nil {
		return storage.Batch{}, w.err
	}
	events := eventsOf(w.m.log, w.prefix, w.pos, modelBatch)
	if len(events) > 0 && events[0].KV.ModRevision < w.m.compacted {
		w.err = fmt.Errorf("watch of %q: %w", w.prefix, storage.ErrCompacted)
		return storage.Batch{}, w.err
	}
	if len(events) == modelBatch {
		w.pos = events[modelBatch-1].KV.ModRevision
	} else {
		w.pos = max(w.pos, w.m.revision)
	}
	if len(events) == 0 && (w.reported >= w.m.asked || w.pos > w.m.revision) {
		return storage.Batch{}, nil
	}
	w.reported = w.pos
	return storage.Batch{Events: events, Revision: w.pos}, nil
}

func (w *modelWatcher) Close() {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.err == nil {
		w.err = storage.ErrClosed
	}
	w.m.wake()
}
