package engine

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// Bounds of one commit (writes, bytes).
const (
	maxGroup      = 1024
	maxGroupBytes = 4 << 20
)

// write is a create, update or delete with room for its result. The caller fills the upper
// part; whoever commits it sets the result.
type write struct {
	op      storage.Op
	key     string
	record  []byte // versionHeader bytes for the header, then the value
	guard   int64
	expires int64 // Unix milliseconds, 0 for never

	// turn tells a caller that waits in the queue what has become of its write: true if
	// the write was committed or refused, and the result below is set; false if it is
	// the caller's turn to commit. It has room for one of them.
	turn chan bool

	kv       storage.KeyValue
	revision int64
	err      error
}

// queue is the writes that wait to be committed. No goroutine is there for commits: a
// caller that finds nobody committing does it itself, so a lone write is handed to nobody.
// Others wait; when the commit is done, the first of them commits all that wait. mu guards
// all fields.
type queue struct {
	mu sync.Mutex
	// busy is set while a caller commits, or has been told to.
	busy bool
	// waiting are oldest first. Each has a caller that waits for it, so they are as many
	// as callers at most.
	waiting []*write
	// crowded: the last commit had several writes.
	crowded bool
}

// Create implements storage.Backend.
func (e *Engine) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	kv, _, err := e.write(ctx, storage.Created, key, value, 0, ttl)
	return kv, err
}

// Update implements storage.Backend.
func (e *Engine) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	kv, _, err := e.write(ctx, storage.Updated, key, value, guard, ttl)
	return kv, err
}

// Delete implements storage.Backend.
func (e *Engine) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	return e.write(ctx, storage.Deleted, key, nil, guard, 0)
}

// write queues a change, and commits it or waits until somebody else has. A caller that
// commits finishes, also if its context ends meanwhile.
func (e *Engine) write(ctx context.Context, op storage.Op, key string, value []byte, guard int64, ttl time.Duration) (kv storage.KeyValue, revision int64, err error) {
	if err := storage.CheckKey(key); err != nil {
		return kv, 0, err
	}
	if err := storage.CheckValue(value); err != nil {
		return kv, 0, err
	}
	if err := e.enter(ctx); err != nil {
		return kv, 0, err
	}
	defer e.leave(&err)
	w := &write{op: op, key: key, guard: guard}
	w.record = make([]byte, versionHeader+len(value))
	copy(w.record[versionHeader:], value)
	if ttl > 0 {
		w.expires = e.opts.now().Add(ttl).UnixMilli()
	}
	mine := e.queue.add(w)
	if !mine {
		committed, err := e.await(ctx, w)
		if err != nil {
			return kv, 0, err
		}
		mine = !committed
	}
	if mine {
		e.commit(e.queue.gather())
	}
	return w.kv, w.revision, w.err
}

// add adds a write, and reports whether it is the caller's turn to commit.
func (q *queue) add(w *write) (mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if mine = !q.busy; !mine {
		w.turn = make(chan bool, 1)
	}
	q.busy = true
	q.waiting = append(q.waiting, w)
	return mine
}

// await waits for what becomes of a write in the queue: committed is as write.turn has it.
// If the context ends first, the write leaves the queue, or its outcome is not known.
func (e *Engine) await(ctx context.Context, w *write) (committed bool, err error) {
	closed := false
	select {
	case committed = <-w.turn:
		return committed, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-e.ctx.Done():
		err, closed = storage.ErrClosed, true
	}
	if e.queue.leave(w) {
		return false, err // it will not be committed
	}
	if closed {
		return <-w.turn, nil // the commit under way is finished before Close returns
	}
	select {
	case committed = <-w.turn: // committed while the context ended
		return committed, nil
	default:
		return false, fmt.Errorf("%w: %w", storage.ErrUncertain, err)
	}
}

// leave removes a write from the queue. It reports false if a commit has taken it.
func (q *queue) leave(w *write) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, w)
	if i < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, i, i+1)
	select {
	case <-w.turn: // it was to commit
		q.pass()
	default:
	}
	return true
}

// pass lets the first caller that waits commit. The mutex is held, by whoever has
// committed, or does not want to.
func (q *queue) pass() {
	if q.busy = len(q.waiting) > 0; q.busy {
		q.waiting[0].turn <- false
	}
}

// gather takes a group of writes from the queue, the caller's first. While there are many
// writers it yields the processor first, so that those who were answered by the previous
// commit and write again are in this group.
func (q *queue) gather() []*write {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.crowded {
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
	}
	n := 0
	for bytes := 0; n < len(q.waiting) && n < maxGroup && bytes < maxGroupBytes; n++ {
		bytes += len(q.waiting[n].record)
	}
	group := q.waiting[:n:n]
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil
	}
	q.crowded = n > 1
	return group
}

// commit commits a group of writes, whose first is the caller's, lets the next group be
// committed, and tells the others of this one.
func (e *Engine) commit(group []*write) {
	events := e.apply(group)
	// The next group may be synced while this one is delivered; it is delivered later.
	e.pushes.mu.Lock()
	e.queue.mu.Lock()
	e.queue.pass()
	e.queue.mu.Unlock()
	e.pushes.deliver(events)
	e.pushes.mu.Unlock()
	for _, w := range group[1:] {
		w.turn <- true
	}
	clear(group) // those who wait share its array, which would keep the values
}

// apply checks the guards of a group of writes, writes those that pass as one batch with
// one sync, and sets the results of all. It returns the events of what it has committed.
func (e *Engine) apply(group []*write) (events []storage.Event) {
	fail := func(err error) {
		for _, w := range group {
			if w.err == nil {
				w.kv, w.revision, w.err = storage.KeyValue{}, 0, err
			}
		}
	}
	if err := e.fs.Err(); err != nil {
		fail(e.readOnly(err))
		return nil
	}
	// A panic would be that of one caller, and the others would wait for ever: it freezes
	// the store, like an error of the disk.
	defer func() {
		if cause := recover(); cause != nil {
			e.fs.freeze("commit", e.opts.Dir, fmt.Errorf("panic: %v\n%s", cause, debug.Stack()))
			events = nil
			fail(fmt.Errorf("%w; %w", storage.ErrUncertain, e.readOnly(e.fs.Err())))
		}
	}()
	d := e.newDraft(len(group))
	defer d.close()
	for _, w := range group {
		if err := d.add(w); err != nil {
			w.err = err
		}
	}
	if len(d.events) == 0 {
		return nil
	}
	if err := e.db.Apply(d.batch, pebble.Sync); err != nil {
		e.fs.freeze("commit", e.opts.Dir, err)
	}
	if err := e.fs.Err(); err != nil {
		// Whether the batch is in the log is known only after a restart.
		fail(fmt.Errorf("%w; %w", storage.ErrUncertain, e.readOnly(err)))
		return nil
	}
	e.marker.commit(d.revision)
	e.feed.publish(d.events)
	if e.space.wrote(d.batch.Len()) || d.expires < e.rests.Load() || d.revision-e.compacted.Load() > e.opts.HistoryCount+e.opts.HistoryCount/8 {
		e.wakeKeeper()
	}
	return d.events
}

// draft is the batch of one commit under construction. Guards are compared with the
// newest committed versions, overlaid with the writes that the draft holds already.
type draft struct {
	e        *Engine
	batch    *pebble.Batch
	it       *pebble.Iterator // over versions; created on first use
	written  map[string]int   // key -> index in events of its newest event
	events   []storage.Event
	revision int64 // the last revision assigned
	now      int64
	expires  int64 // when the first of its keys expires, in milliseconds; math.MaxInt64 if none does
	buf      []byte
}

func (e *Engine) newDraft(n int) *draft {
	return &draft{
		e: e, batch: e.db.NewBatch(), written: make(map[string]int, n), events: make([]storage.Event, 0, n),
		revision: e.feed.revision(), now: e.opts.now().UnixMilli(), expires: math.MaxInt64,
	}
}

func (d *draft) close() {
	if d.it != nil {
		d.it.Close()
	}
	d.batch.Close()
}

// current returns the newest version of a key, from the draft, from the recent events
// in memory, from who has a copy of everything, or else from the database.
func (d *draft) current(key string) (kv storage.KeyValue, exists bool, err error) {
	ev, since, recent := d.e.feed.lastEvent(key)
	if i, ok := d.written[key]; ok {
		ev, recent = d.events[i], true
	}
	if recent {
		if ev.Op == storage.Deleted {
			return kv, false, nil
		}
		return ev.KV, true, nil
	}
	if kv, ok := d.e.pushes.newest(key, since); ok {
		return kv, kv.ModRevision != 0, nil
	}
	if d.it == nil {
		if d.it, err = d.e.versions(); err != nil {
			return kv, false, err
		}
	}
	v, ok, err := readVersion(d.it, key, d.revision)
	if err != nil || !ok || v.deleted {
		return kv, false, err
	}
	return v.keyValue(key), true, nil
}

// add checks a write against its guard and adds it to the batch. An error
// leaves the batch as it was.
func (d *draft) add(w *write) error {
	prev, exists, err := d.current(w.key)
	if err != nil {
		return err
	}
	switch {
	case w.op == storage.Created && exists:
		w.kv = prev
		return fmt.Errorf("%w: %s", storage.ErrExists, w.key)
	case w.op != storage.Created && !exists:
		return fmt.Errorf("%w: %s", storage.ErrNotFound, w.key)
	case w.op != storage.Created && prev.ModRevision != w.guard:
		w.kv = prev
		return fmt.Errorf("%w: %s is at revision %d, not %d", storage.ErrConflict, w.key, prev.ModRevision, w.guard)
	}
	if err := d.e.admit(w.op); err != nil {
		return err
	}

	d.revision++
	v := version{revision: d.revision, create: d.revision, deleted: w.op == storage.Deleted,
		expires: w.expires, value: w.record[versionHeader:]}
	ev := event{op: w.op, time: d.now, create: v.create, key: w.key}
	if exists {
		v.create, ev.create = prev.CreateRevision, prev.CreateRevision
		ev.prev, ev.prevSize = prev.ModRevision, uint32(versionHeader+len(prev.Value))
		if !prev.Expires.IsZero() {
			d.buf = expiryKey(d.buf[:0], prev.Expires.UnixMilli(), w.key)
			must(d.batch.Delete(d.buf, nil))
		}
	}
	v.putHeader(w.record)
	d.buf = versionKey(d.buf[:0], w.key, d.revision)
	must(d.batch.Set(d.buf, w.record, nil))
	d.buf = eventKey(d.buf[:0], d.revision)
	n := len(d.buf)
	d.buf = ev.append(d.buf)
	must(d.batch.Set(d.buf[:n], d.buf[n:], nil))
	if v.expires != 0 {
		d.buf = expiryKey(d.buf[:0], v.expires, w.key)
		must(d.batch.Set(d.buf, metaValue(d.revision), nil))
		d.expires = min(d.expires, v.expires)
	}

	out := storage.Event{Op: w.op, KV: v.keyValue(w.key), Prev: prev}
	w.revision, w.kv = d.revision, out.KV
	if v.deleted {
		out.KV.Value = nil
		w.kv = prev
	}
	d.written[w.key] = len(d.events)
	d.events = append(d.events, out)
	return nil
}

// must panics on errors that only a misuse of Pebble's API can cause.
func must(err error) {
	if err != nil {
		panic(fmt.Sprintf("storage: %v", err))
	}
}
