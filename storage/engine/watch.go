package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// Bounds of the events kept in memory for watchers (number, bytes), and of one batch.
const (
	feedEvents  = 16 << 10
	feedBytes   = 4 << 20
	batchEvents = 1024
	batchBytes  = 4 << 20
)

// feed holds the committed revision and the most recent events. A watcher is a position
// in the stream of revisions. A watcher whose position is older than the events kept
// here reads from the database until it has caught up, so a slow watcher costs no
// memory. mu guards all fields.
type feed struct {
	mu      sync.Mutex
	last    int64            // the committed revision, the one that reads see
	events  []storage.Event  // consecutive revisions, ending with last
	bytes   int              // sum of eventSize over events
	newest  map[string]int64 // key -> revision of its newest event in events
	asked   int64            // the committed revision when progress was last requested
	changed chan struct{}    // closed and replaced when any of the above changes
	closed  bool
	// trimmer runs trim every keepEvents while there are events; mark is the committed
	// revision when trim last ran. Events up to mark are dropped by the next run.
	trimmer *time.Timer
	mark    int64
}

// keepEvents is how long an event stays in memory, unless the bounds are reached
// before; at most it is twice this.
const keepEvents = 10 * time.Second

func (f *feed) init(revision int64) {
	f.last = revision
	f.newest = map[string]int64{}
	f.changed = make(chan struct{})
}

func (f *feed) revision() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// publish appends committed events and moves the committed revision.
func (f *feed) publish(events []storage.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, events...)
	for i := range events {
		f.bytes += eventSize(&events[i])
		f.newest[events[i].KV.Key] = events[i].KV.ModRevision
	}
	drop := 0
	for f.bytes > feedBytes || len(f.events)-drop > feedEvents {
		f.drop(drop)
		drop++
	}
	// append moves the slice to a new array when the old one is full, so the dropped
	// events at the front never take more room than the kept ones.
	f.events = f.events[drop:]
	f.last = events[len(events)-1].KV.ModRevision
	if f.trimmer == nil && !f.closed {
		f.trimmer = time.AfterFunc(keepEvents, f.trim)
	}
	f.notify()
}

// drop removes event i from the maps and sums and clears it. The caller holds mu and
// cuts the slice.
func (f *feed) drop(i int) {
	ev := &f.events[i]
	f.bytes -= eventSize(ev)
	if f.newest[ev.KV.Key] == ev.KV.ModRevision {
		delete(f.newest, ev.KV.Key)
	}
	*ev = storage.Event{}
}

// trim drops the events that were there when it last ran, and runs again after
// keepEvents as long as there are events.
func (f *feed) trim() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trimmer = nil
	if f.closed {
		return
	}
	drop := 0
	for drop < len(f.events) && f.events[drop].KV.ModRevision <= f.mark {
		f.drop(drop)
		drop++
	}
	if drop > 0 {
		f.events = slices.Clone(f.events[drop:])
	}
	f.mark = f.last
	if len(f.events) > 0 {
		f.trimmer = time.AfterFunc(keepEvents, f.trim)
	}
}

// lastEvent returns the newest event of a key if it is still in memory. Else, the key has
// not changed after the revision since.
func (f *feed) lastEvent(key string) (ev storage.Event, since int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	since = f.last - int64(len(f.events))
	revision, ok := f.newest[key]
	if ok {
		ev = f.events[revision-f.events[0].KV.ModRevision]
	}
	return ev, since, ok
}

func (f *feed) requestProgress() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = f.last
	f.notify()
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	if f.trimmer != nil {
		f.trimmer.Stop()
	}
	f.notify()
}

func (f *feed) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// eventSize is the approximate memory of an event. Prev is not counted: usually it
// shares its value with an earlier event.
func eventSize(ev *storage.Event) int { return len(ev.KV.Value) + len(ev.KV.Key) + 256 }

// Watch implements storage.Backend.
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.calls.leave()
	now := e.feed.revision()
	if after == 0 {
		after = now
	}
	if oldest := e.compacted.Load(); after < 0 || after+1 < oldest {
		return nil, compactedWatch(after, oldest)
	}
	return &watcher{e: e, ctx: ctx, prefix: prefix, position: after, done: make(chan struct{})}, nil
}

func compactedWatch(after, oldest int64) error {
	return fmt.Errorf("%w: events after %d are asked for, the oldest kept is of %d", storage.ErrCompacted, after, oldest)
}

// watcher implements storage.Watcher. It has no goroutine and no buffer: Next reads
// from the feed or from the database.
type watcher struct {
	e      *Engine
	ctx    context.Context
	prefix string

	mu       sync.Mutex // held by Next: one call at a time
	position int64      // every event up to it has been delivered or filtered out
	reported int64      // Revision of the last batch, 0 before the first
	err      error

	closing sync.Once
	done    chan struct{}
}

// Close implements storage.Watcher.
func (w *watcher) Close() { w.closing.Do(func() { close(w.done) }) }

// Next implements storage.Watcher.
func (w *watcher) Next(ctx context.Context) (storage.Batch, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil {
		select { // checked first: an ended watch delivers nothing more
		case <-w.ctx.Done():
			w.err = w.ctx.Err()
			return storage.Batch{}, w.err
		case <-w.done:
			w.err = storage.ErrClosed
			return storage.Batch{}, w.err
		default:
		}
		batch, wait, err := w.poll()
		if err != nil {
			w.err = err
			break
		}
		if len(batch.Events) > 0 || batch.Revision > w.reported {
			w.reported = batch.Revision
			return batch, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		case <-w.ctx.Done():
		case <-w.done:
		}
	}
	return storage.Batch{}, w.err
}

// pushes are the watchers whose batches are brought to a function, see Push. mu guards
// all fields. Whoever commits locks it before the next commit may begin, so batches are
// delivered in their order.
type pushes struct {
	mu  sync.Mutex
	all []*push
	// asked is one of them that has a lookup, nil if none has. It is written under mu and
	// read without it: a commit does not wait for what is being delivered.
	asked atomic.Pointer[push]
}

type push struct {
	w      *watcher
	f      func(storage.Batch)
	lookup storage.Lookup // may be nil
	failed chan error     // has room for one: f has panicked
}

// Push implements storage.Pusher.
func (w *watcher) Push(f func(storage.Batch)) error { return w.PushAsking(f, nil) }

// PushAsking implements storage.AskingPusher.
func (w *watcher) PushAsking(f func(storage.Batch), lookup storage.Lookup) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &push{w: w, f: f, lookup: lookup, failed: make(chan error, 1)}
	if err := w.beginPush(p); err != nil {
		return err
	}
	var err error
	select {
	case <-w.ctx.Done():
		err = w.ctx.Err()
	case <-w.done:
		err = storage.ErrClosed
	case <-w.e.ctx.Done():
		err = storage.ErrClosed
	case err = <-p.failed:
	}
	all := &w.e.pushes
	all.mu.Lock()
	defer all.mu.Unlock()
	all.all = slices.DeleteFunc(all.all, func(other *push) bool { return other == p })
	all.choose()
	w.err = err
	return err
}

// beginPush delivers what was committed before, and has p called from now on.
func (w *watcher) beginPush(p *push) error {
	all := &w.e.pushes
	all.mu.Lock()
	defer all.mu.Unlock()
	for w.err == nil {
		batch, _, err := w.poll()
		if err != nil {
			w.err = err
			break
		}
		if len(batch.Events) > 0 {
			p.call(batch)
		}
		if w.position >= w.e.feed.revision() {
			all.all = append(all.all, p)
			all.choose()
			break
		}
	}
	return w.err
}

// choose sets the function that is asked. The mutex is held.
func (p *pushes) choose() {
	p.asked.Store(nil)
	if i := slices.IndexFunc(p.all, func(push *push) bool { return push.lookup != nil }); i >= 0 {
		p.asked.Store(p.all[i])
	}
}

// newest asks a function that gets all batches for the newest version of a key that has not
// changed after the revision since. The version is zero if there is none.
func (p *pushes) newest(key string, since int64) (storage.KeyValue, bool) {
	asked := p.asked.Load()
	if asked == nil || !strings.HasPrefix(key, asked.w.prefix) {
		return storage.KeyValue{}, false
	}
	kv, seen, ok := asked.lookup(key)
	return kv, ok && seen >= since
}

// deliver brings events, which were just committed, to the functions that want them.
func (p *pushes) deliver(events []storage.Event) {
	if len(events) == 0 {
		return
	}
	last := events[len(events)-1].KV.ModRevision
	for _, push := range p.all {
		w := push.w
		// beginPush may have found them already.
		first, _ := slices.BinarySearchFunc(events, w.position+1, func(ev storage.Event, revision int64) int { return cmp.Compare(ev.KV.ModRevision, revision) })
		if first == len(events) {
			continue
		}
		w.position = last
		push.call(storage.Batch{Events: w.filter(slices.Clone(events[first:])), Revision: last})
	}
}

// call calls the function. If it panics, the watch ends: what it has missed is not known.
func (p *push) call(batch storage.Batch) {
	defer func() {
		if cause := recover(); cause != nil {
			p.w.position = math.MaxInt64 // nothing more is delivered
			p.failed <- fmt.Errorf("storage: a watcher has panicked: %v\n%s", cause, debug.Stack())
		}
	}()
	p.f(batch)
}

// poll returns the next events or progress, if there are any, and a channel that is
// closed when poll should be called again.
func (w *watcher) poll() (batch storage.Batch, again <-chan struct{}, err error) {
	if !w.e.calls.enter() {
		return batch, nil, storage.ErrClosed
	}
	defer w.e.leave(&err)
	events, last, asked, changed := w.recent()
	switch {
	case changed == nil:
		return batch, nil, storage.ErrClosed
	case events != nil:
		w.position = events[len(events)-1].KV.ModRevision
		batch.Events = w.filter(events)
	case w.position < last:
		if batch.Events, err = w.stored(last); err != nil {
			return batch, nil, err
		}
	}
	switch {
	case len(batch.Events) > 0:
		batch.Revision = w.position
	case w.position < last:
		return batch, closedChannel(), nil
	case w.position == last && asked > w.reported:
		batch.Revision = last
	}
	return batch, changed, nil
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// recent returns the events in memory that follow the position, nil if they are not in
// memory any more, and the state of the feed. The channel is nil if the feed is closed.
func (w *watcher) recent() (events []storage.Event, last, asked int64, changed <-chan struct{}) {
	f := &w.e.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, 0, 0, nil
	}
	if w.position >= f.last || len(f.events) == 0 || f.events[0].KV.ModRevision > w.position+1 {
		return nil, f.last, f.asked, f.changed
	}
	// Revisions in memory are consecutive.
	i := int(w.position + 1 - f.events[0].KV.ModRevision)
	n := i
	for size := 0; n < len(f.events) && n-i < batchEvents && size < batchBytes; n++ {
		size += eventSize(&f.events[n])
	}
	// The feed clears what it drops, so the events must be copied; they are
	// small, and their values are shared.
	return append([]storage.Event(nil), f.events[i:n]...), f.last, f.asked, f.changed
}

// filter keeps the events of the watched prefix, in place.
func (w *watcher) filter(events []storage.Event) []storage.Event {
	kept := events[:0]
	for _, ev := range events {
		if strings.HasPrefix(ev.KV.Key, w.prefix) {
			kept = append(kept, ev)
		}
	}
	return kept
}

// stored reads the events that follow the watcher's position from the
// database, up to the committed revision, and moves the position.
func (w *watcher) stored(last int64) ([]storage.Event, error) {
	it, err := w.e.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, w.position+1), UpperBound: eventKey(nil, last+1)})
	if err != nil {
		return nil, err
	}
	defer it.Close()
	versions, err := w.e.versions()
	if err != nil {
		return nil, err
	}
	defer versions.Close()
	// Both iterators exist now: what was not removed before is in them.
	if oldest := w.e.compacted.Load(); w.position+1 < oldest {
		return nil, compactedWatch(w.position, oldest)
	}
	var events []storage.Event
	size, seen := 0, 0
	ok := it.First()
	for ; ok && len(events) < batchEvents && size < batchBytes && seen < 16*batchEvents; ok = it.Next() {
		seen++
		revision, err := parseEventKey(it.Key())
		if err != nil {
			return nil, err
		}
		b, err := it.ValueAndErr()
		if err != nil {
			return nil, err
		}
		stored, err := parseEvent(b)
		if err != nil {
			return nil, err
		}
		if revision > max(w.position, w.e.base)+1 {
			return nil, fmt.Errorf("%w: the changes of revisions %d to %d are missing", errCorrupt, w.position+1, revision-1)
		}
		w.position = revision
		if !strings.HasPrefix(stored.key, w.prefix) {
			continue
		}
		ev, err := readEvent(versions, stored, revision)
		if err != nil {
			return nil, err
		}
		size += eventSize(&ev)
		events = append(events, ev)
	}
	if err := it.Error(); err != nil {
		return nil, err
	}
	if !ok {
		w.position = last
	}
	return events, nil
}

// readEvent completes an event with the versions that it made and replaced.
func readEvent(versions *pebble.Iterator, stored event, revision int64) (storage.Event, error) {
	ev := storage.Event{Op: stored.op}
	read := func(rev int64) (version, error) {
		v, ok, err := readVersion(versions, stored.key, rev)
		if err == nil && (!ok || v.revision != rev) {
			err = fmt.Errorf("%w: version %d of %s is missing", errCorrupt, rev, stored.key)
		}
		return v, err
	}
	if stored.prev != 0 {
		prev, err := read(stored.prev)
		if err != nil {
			return ev, err
		}
		ev.Prev = prev.keyValue(stored.key)
	}
	v, err := read(revision)
	if err != nil {
		return ev, err
	}
	ev.KV = v.keyValue(stored.key)
	if v.deleted {
		ev.KV.Value = nil
	}
	return ev, nil
}

// firstAfter returns the first revision in [low, high) whose event satisfies
// pred, which must be false and then true as revisions grow; high if none does.
func (e *Engine) firstAfter(low, high int64, pred func(event) bool) (int64, error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, low), UpperBound: eventKey(nil, high)})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	n := sort.Search(int(high-low), func(i int) bool {
		if err != nil || !it.SeekGE(eventKey(nil, low+int64(i))) {
			return true
		}
		var b []byte
		var ev event
		if b, err = it.ValueAndErr(); err == nil {
			ev, err = parseEvent(b)
		}
		return err != nil || pred(ev)
	})
	if err == nil {
		err = it.Error()
	}
	return low + int64(n), err
}
