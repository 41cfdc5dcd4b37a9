package store

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// Bounds of the log of a resource.
const (
	logEntries = 16 << 10
	logBytes   = 64 << 20
	// Where bytes can be read again, the log has oldBytes of replaced records in memory if they
	// are on a disk of this machine, else logBytes, or one in logShare of what the cache of values
	// may have, if that is less.
	oldBytes = 4 << 20
	logShare = 8
	// batchEntries is how many events a watcher takes at a time.
	batchEntries = 512
)

// logEntry is one event in the log of a resource.
type logEntry struct {
	revision int64
	old      *Record // as it was before, nil if it was created
	last     *Record // old with the revision of this event, for who sees it go
	now      *Record // as it is, nil if it was deleted
}

// eventLog is the recent events of a resource, in the order of revisions.
// Positions in it count from the first event ever, so that dropping old ones
// does not move the others.
type eventLog struct {
	values  *wire.ValueCache // has the bytes of the records; nil if all are kept
	entries []logEntry
	first   int64 // position of entries[0]
	bytes   int
	// out is the position of the first entry whose replaced record may be in memory.
	out int64
	// lost is the position of the first entry that was not dropped for want of
	// room, mark that of the first one which is younger than the last trim.
	lost, mark int64
	// since: every event with a greater revision is in the log.
	since int64
	last  int64 // revision of the newest event, or since
	// changed is closed when there is something new; nil if nobody waits for that.
	changed chan struct{}
	// waiting are the channels of those who wait for several logs at once; each has
	// room for one signal.
	waiting map[chan<- struct{}]struct{}
	err     error // set when the log has ended

	// topics are those that watchers are about, attributes how many of them each label
	// or field has, and touched those with new events, whose watchers are not woken yet.
	topics     map[Topic]*topic
	attributes map[Attribute]int
	touched    []*topic
}

func newEventLog(values *wire.ValueCache) *eventLog {
	return &eventLog{values: values}
}

func (l *eventLog) reset(revision int64) {
	l.entries, l.bytes = nil, 0
	l.since, l.last = revision, revision
	for _, t := range l.topics {
		t.hits, t.created = nil, l.first
	}
}

// forget drops the entries up to a revision, as some before it may be missing. Who
// needs them finds them in the history of the backend.
func (l *eventLog) forget(revision int64) {
	n := 0
	for n < len(l.entries) && l.entries[n].revision <= revision {
		n++
	}
	l.drop(n)
	l.entries = slices.Clone(l.entries)
	l.since, l.last = max(l.since, revision), max(l.last, revision)
	for _, t := range l.topics {
		t.hits, t.created = nil, l.first+int64(len(l.entries)) // what is missing may be about it
	}
}

// append adds an event and returns how many bytes of records went for it that are not
// in the cache.
func (l *eventLog) append(e logEntry) (dropped int) {
	l.entries = append(l.entries, e)
	l.bytes += l.size(len(l.entries) - 1)
	l.last = e.revision
	n, bytes := 0, l.bytes
	for len(l.entries)-n > logEntries || l.values == nil && bytes > logBytes && len(l.entries)-n > 1 {
		bytes -= l.size(n)
		n++
	}
	if n > 0 {
		dropped = l.drop(n)
		l.lost = l.first
	}
	if l.values != nil {
		l.dropBytes()
	}
	return dropped
}

// dropBytes bounds the memory of the log without dropping entries: the bytes of records
// that were replaced first go, and are read from the history of storage if a watcher
// wants them.
func (l *eventLog) dropBytes() {
	limit := logBytes
	if l.values.Near {
		limit = oldBytes
	}
	limit = min(limit, int(l.values.Limit/logShare))
	l.out = max(l.out, l.first)
	for l.bytes > limit && l.out < l.first+int64(len(l.entries)) {
		n := int(l.out - l.first)
		l.bytes -= l.size(n)
		l.entries[n].release(l.values)
		l.out++
	}
}

// drop drops the first n entries, and returns the size of what they have made old, whose
// bytes nobody needs any more.
func (l *eventLog) drop(n int) (dropped int) {
	if n == 0 {
		return 0
	}
	for i := range n {
		e := &l.entries[i]
		l.bytes -= l.size(i)
		l.since = e.revision
		if e.old != nil {
			dropped += e.old.MemorySize()
			e.release(l.values)
		}
		l.entries[i] = logEntry{}
	}
	l.entries = l.entries[n:]
	l.first += int64(n)
	return dropped
}

// trim drops the entries that were there already at the last trim, and reports
// whether there are others. Who needs them finds them in the history of the
// backend. dropped is as with append.
func (l *eventLog) trim() (dropped int, left bool) {
	if n := int(l.mark - l.first); n > 0 {
		dropped = l.drop(n)
		l.entries = slices.Clone(l.entries)
	}
	l.mark = l.first + int64(len(l.entries))
	return dropped, len(l.entries) > 0
}

// size is what the entry with an index counts for in bytes. If bytes can be dropped from
// memory, only those count that the log alone still has.
func (l *eventLog) size(i int) int {
	e := &l.entries[i]
	switch {
	case l.values == nil && e.now != nil:
		return e.now.Size()
	case l.values == nil:
		return e.old.Size()
	case e.old == nil || l.first+int64(i) < l.out:
		return 0
	}
	return e.old.Size()
}

// release lets go of the bytes of what the event has replaced.
func (e *logEntry) release(values *wire.ValueCache) {
	if e.old != nil {
		values.Drop(e.old)
		values.Drop(e.last)
	}
}

func (l *eventLog) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	l.wakeTopics()
	for c := range l.waiting {
		select {
		case c <- struct{}{}:
		default: // it has one already
		}
	}
}

func (l *eventLog) end(err error) {
	if l.err == nil {
		l.err = err
		l.wake()
		l.endTopics()
	}
}

// EventType says what an event means to a watcher.
type EventType uint8

const (
	Added EventType = iota + 1
	Modified
	Deleted
)

// Event is a change as one watcher sees it: with a selector, an object that
// begins to match is Added, and one that ceases to match is Deleted, with its
// last state.
type Event struct {
	Type   EventType
	Record *Record
}

// Match decides which records a watcher or a list is about.
type Match func(*Record) bool

// Watcher follows a resource. It is a position in its log: no goroutine, no
// queue. Only one goroutine may use it.
type Watcher struct {
	r     *Resource
	match Match

	initial  []Event         // to deliver first
	history  storage.Watcher // older events come from the backend, nil if none do
	log      *eventLog
	position int64 // in the log
	// revision is how far the watcher has come: events up to it are never delivered.
	// It may be above all of the log, when the client or the history of the backend
	// has seen more than the feed has brought yet.
	revision int64

	about Topic
	topic *topic // of log; nil if the watcher is about all of the resource
}

// Watch follows the events after a revision of the records that match. If the
// log of the resource does not reach back that far, the history of the backend
// is read first; ErrExpired says that it does not either.
func (r *Resource) Watch(ctx context.Context, after int64, match Match) (*Watcher, error) {
	if err := r.load(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != isLoaded {
		return nil, errReset()
	}
	w := &Watcher{r: r, match: match, log: r.log, revision: after}
	if after < r.log.since {
		history, err := r.store.backend.Watch(ctx, r.prefix, after)
		if err != nil {
			return nil, expired(err, after)
		}
		w.history = history
	}
	w.seek(after)
	return w, nil
}

// WatchFrom follows a resource from a state of it on. With initial set, the
// records of the state that match are delivered first, as Added.
func (r *Resource) WatchFrom(ctx context.Context, s *Snapshot, prefix string, initial bool, match Match) (*Watcher, error) {
	w, err := r.Watch(ctx, s.Revision, match)
	if err != nil {
		return nil, err
	}
	if initial {
		// A selector may have a hundred thousand requirements.
		s.Range(prefix, "", func(rec *Record) bool {
			if match(rec) {
				w.initial = append(w.initial, Event{Added, rec})
			}
			return ctx.Err() == nil
		})
		if err := ctx.Err(); err != nil {
			w.Close()
			return nil, err
		}
	}
	return w, nil
}

// ChangedSince reports whether there may have been an event after a revision.
func (r *Resource) ChangedSince(revision int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state != isLoaded || r.log.last > revision || r.log.since > revision
}

// seek puts the watcher behind the entries up to a revision. The resource's
// mutex is held.
func (w *Watcher) seek(revision int64) {
	lo, hi := 0, len(w.log.entries)
	for lo < hi {
		mid := (lo + hi) / 2
		if w.log.entries[mid].revision <= revision {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	w.position = w.log.first + int64(lo)
}

// expired turns the backend's word for lost history into ours.
func expired(err error, after int64) error {
	if errors.Is(err, storage.ErrCompacted) {
		return fmt.Errorf("%w: %d: %w", ErrExpired, after, err)
	}
	return err
}

// Revision returns how far the watcher has come: all events up to it have been
// delivered.
func (w *Watcher) Revision() int64 { return w.revision }

// Close frees what the watcher holds.
func (w *Watcher) Close() {
	w.leave()
	if w.history != nil {
		w.history.Close()
	}
}

// Poll returns the events that are there, at most a few hundred, and a channel
// that is closed when there may be more. Without events it may still have
// moved Revision.
func (w *Watcher) Poll(ctx context.Context) (events []Event, more <-chan struct{}, err error) {
	if len(w.initial) > 0 {
		n := min(len(w.initial), batchEntries)
		events, w.initial = w.initial[:n:n], w.initial[n:]
		if len(w.initial) == 0 {
			w.initial = nil // or records that are long gone would stay as long as the watch
		}
		w.r.counts.initial.Add(int64(n))
		return events, closed(), nil
	}
	if w.history != nil {
		events, err := w.past(ctx)
		return events, closed(), err
	}
	position := w.r.store.Revision()
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	l := w.log
	if events, more, ok := w.pollTopic(position); ok {
		return events, more, nil
	}
	if l.err != nil && w.position < l.first {
		return nil, nil, l.err
	}
	if w.position < l.first && w.position >= l.lost {
		history, err := w.r.store.backend.Watch(w.r.store.ctx, w.r.prefix, w.revision)
		if err != nil {
			return nil, nil, expired(err, w.revision)
		}
		w.history = history
		return nil, closed(), nil
	}
	if w.position < l.first {
		return nil, nil, fmt.Errorf("%w: the watch was too slow, events after %d are gone", ErrExpired, w.revision)
	}
	// Entries above the position belong to a batch that is still being brought
	// in, or came since: they are for the next time. Events of one revision are
	// not parted, or Revision would be that of events which are still to come.
	entries, n := l.entries[w.position-l.first:], 0
	for n < len(entries) && entries[n].revision <= position &&
		(n < batchEntries || entries[n].revision == entries[n-1].revision) {
		if e := &entries[n]; e.revision > w.revision {
			if ev, ok := w.see(e); ok {
				events = append(events, ev)
			}
		}
		n++
	}
	w.position += int64(n)
	if l.err != nil && n == 0 {
		return nil, nil, l.err // after all events that came before the end
	}
	if n < len(entries) || l.err != nil {
		more = closed()
		if n > 0 {
			w.revision = max(w.revision, entries[n-1].revision)
		}
	} else {
		if w.topic != nil {
			more = w.topic.changed
		} else {
			if l.changed == nil {
				l.changed = make(chan struct{})
			}
			more = l.changed
		}
		w.revision = max(w.revision, position)
	}
	return events, more, nil
}

// see returns what an entry of the log means to this watcher.
func (w *Watcher) see(e *logEntry) (Event, bool) {
	matched := e.old != nil && w.match(e.old)
	matches := e.now != nil && w.match(e.now)
	switch {
	case matches && matched:
		return Event{Modified, e.now}, true
	case matches:
		return Event{Added, e.now}, true
	case matched:
		return Event{Deleted, e.last}, true
	}
	return Event{}, false
}

// past reads events from the backend until the log of the resource goes on.
func (w *Watcher) past(ctx context.Context) ([]Event, error) {
	batch, err := w.nextPast(ctx)
	if err != nil {
		return nil, expired(err, w.revision)
	}
	var events []Event
	for i := range batch.Events {
		entry, err := w.r.entry(&batch.Events[i])
		if err != nil {
			w.r.store.log.Error("store: object cannot be read", "key", batch.Events[i].KV.Key, "error", err)
			return nil, fmt.Errorf("%w: %d: %w", ErrExpired, w.revision, err)
		}
		if ev, ok := w.see(entry); ok {
			events = append(events, ev)
		}
	}
	w.revision = max(w.revision, batch.Revision)
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	if w.revision >= w.log.since {
		w.history.Close()
		w.history = nil
		w.seek(w.revision)
	}
	return events, nil
}

// nextPast returns the next batch of the history. A history in which the resource has
// not changed says nothing by itself: it is asked how far it is, and the batch is
// empty, so that the caller can look at its own time meanwhile.
func (w *Watcher) nextPast(ctx context.Context) (storage.Batch, error) {
	wait, cancel := context.WithTimeout(ctx, progressEvery)
	defer cancel()
	batch, err := w.history.Next(wait)
	if err == nil || wait.Err() == nil || ctx.Err() != nil {
		return batch, err
	}
	return storage.Batch{Revision: w.revision}, w.r.store.backend.Progress(ctx)
}

// entry makes an entry of a log from an event of the backend.
func (r *Resource) entry(ev *storage.Event) (*logEntry, error) {
	e := &logEntry{revision: ev.KV.ModRevision}
	var err error
	if ev.Op != storage.Created {
		if e.old, err = r.readOrLeaveOut(&ev.Prev); err != nil {
			return nil, err
		}
		if e.old != nil {
			e.last = e.old.At(ev.KV.ModRevision)
		}
	}
	if ev.Op != storage.Deleted {
		if e.now, err = r.readOrLeaveOut(&ev.KV); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// closed returns a channel that is closed.
func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Synced reports that the initial state and the past have been delivered.
func (w *Watcher) Synced() bool { return len(w.initial) == 0 && w.history == nil }
