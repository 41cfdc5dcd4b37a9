package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// Bounds of the commit queue (writes) and of one commit (writes, bytes).
const (
	maxQueued     = 4096
	maxGroup      = 1024
	maxGroupBytes = 4 << 20
)

// write is a queued create, update or delete with room for its result. The caller fills
// the upper part and waits for done; commitLoop sets the result.
type write struct {
	op      storage.Op
	key     string
	record  []byte // versionHeader bytes for the header, then the value
	guard   int64
	expires int64 // Unix milliseconds, 0 for never

	// taken is set by whoever comes first: commitLoop when it begins to commit the
	// write, or the caller when its context ends while the write still waits in the
	// queue. Whoever finds it set leaves the write alone.
	taken atomic.Bool
	done  chan struct{} // closed when the result below is set

	kv       storage.KeyValue
	revision int64
	err      error
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

// write queues a change and waits for its result.
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
	defer e.calls.leave()
	w := &write{op: op, key: key, guard: guard, done: make(chan struct{})}
	w.record = make([]byte, versionHeader+len(value))
	copy(w.record[versionHeader:], value)
	if ttl > 0 {
		w.expires = e.opts.now().Add(ttl).UnixMilli()
	}
	select {
	case e.queue <- w:
	case <-ctx.Done():
		return kv, 0, ctx.Err()
	case <-e.ctx.Done():
		return kv, 0, storage.ErrClosed
	}
	select {
	case <-w.done:
	case <-e.ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return kv, 0, storage.ErrClosed
		}
		<-w.done // the commit under way is finished before Close returns
	case <-ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return kv, 0, ctx.Err() // still in the queue: it will not be committed
		}
		select {
		case <-w.done: // committed while the context ended
		default:
			return kv, 0, fmt.Errorf("%w: %w", storage.ErrUncertain, ctx.Err())
		}
	}
	return w.kv, w.revision, w.err
}

// commitLoop takes writes from the queue and commits them in groups. It is the only
// goroutine that assigns revisions.
func (e *Engine) commitLoop() {
	group := make([]*write, 0, maxGroup)
	for {
		select {
		case w := <-e.queue:
			group = e.gather(append(group[:0], w))
			e.commit(group)
			clear(group)
		case <-e.ctx.Done():
			return
		}
	}
}

// gather adds the other queued writes to the group. It yields the processor once, so
// that callers who were answered by the previous commit and write again are in this
// group.
func (e *Engine) gather(group []*write) []*write {
	bytes := len(group[0].record)
	for yielded := false; len(group) < maxGroup && bytes < maxGroupBytes; {
		select {
		case w := <-e.queue:
			group = append(group, w)
			bytes += len(w.record)
			continue
		default:
		}
		if yielded {
			break
		}
		yielded = true
		runtime.Gosched()
	}
	return group
}

// commit checks the guards of a group of writes, writes those that pass as one batch
// with one sync, and sets the results of all.
func (e *Engine) commit(group []*write) {
	var answered []*write
	defer func() {
		for _, w := range answered {
			close(w.done)
		}
	}()
	for _, w := range group {
		if w.taken.CompareAndSwap(false, true) {
			answered = append(answered, w)
		}
	}
	fail := func(err error) {
		for _, w := range answered {
			if w.err == nil {
				w.kv, w.revision, w.err = storage.KeyValue{}, 0, err
			}
		}
	}
	if err := e.fs.Err(); err != nil {
		fail(e.readOnly(err))
		return
	}
	d := e.newDraft(len(answered))
	defer d.close()
	for _, w := range answered {
		if err := d.add(w); err != nil {
			w.err = err
		}
	}
	if len(d.events) == 0 {
		return
	}
	if err := e.db.Apply(d.batch, pebble.Sync); err != nil {
		e.fs.freeze("commit", e.opts.Dir, err)
	}
	if err := e.fs.Err(); err != nil {
		// Whether the batch is in the log is known only after a restart.
		fail(fmt.Errorf("%w; %w", storage.ErrUncertain, e.readOnly(err)))
		return
	}
	e.feed.publish(d.events)
	if e.space.wrote(d.batch.Len()) || d.expiring || d.revision-e.compacted.Load() > e.opts.HistoryCount+e.opts.HistoryCount/8 {
		e.wakeKeeper()
	}
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
	expiring bool
	buf      []byte
}

func (e *Engine) newDraft(n int) *draft {
	return &draft{
		e: e, batch: e.db.NewBatch(), written: make(map[string]int, n), events: make([]storage.Event, 0, n),
		revision: e.feed.revision(), now: e.opts.now().UnixMilli(),
	}
}

func (d *draft) close() {
	if d.it != nil {
		d.it.Close()
	}
	d.batch.Close()
}

// current returns the newest version of a key, from the draft, from the recent events
// in memory, or else from the database.
func (d *draft) current(key string) (kv storage.KeyValue, exists bool, err error) {
	ev, recent := d.e.feed.lastEvent(key)
	if i, ok := d.written[key]; ok {
		ev, recent = d.events[i], true
	}
	if recent {
		if ev.Op == storage.Deleted {
			return kv, false, nil
		}
		return ev.KV, true, nil
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
		d.expiring = true
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
