package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Bounds of the events kept in memory for watchers (number, bytes), and of one batch.
const (
	feedEvents  = 16 << 10
	feedBytes   = 16 << 20
	batchEvents = 1024
	batchBytes  = 4 << 20
	// batchRevisions is how many revisions one statement looks at for events of a
	// prefix.
	batchRevisions = 16 << 10
)

const (
	// pollInterval is how often the feed looks for events of which it was not told, and
	// deafInterval how often while nothing listens.
	pollInterval = time.Second
	deafInterval = 50 * time.Millisecond
	// listenPing is how long the connection that listens may be silent before it is
	// tried.
	listenPing = 15 * time.Second
	// catchUp is how long a compaction waits for the feed.
	catchUp = time.Second
	// keepEvents is how long an event stays in memory, unless the bounds are reached
	// before; at most it is twice this.
	keepEvents = 10 * time.Second
)

// feed holds the most recent events. One goroutine, runFeed, reads them from the
// database as long as there are watchers; a watcher is a position in the stream of
// revisions. A watcher whose position is older than the events here reads from the
// database until it has caught up, so a slow watcher costs no memory. mu guards all
// fields below it.
type feed struct {
	signal chan struct{} // capacity 1: there may be events

	mu        sync.Mutex
	last      int64           // every event up to it has been published
	events    []storage.Event // consecutive revisions, ending with last
	bytes     int             // sum of eventSize over events
	asked     int64           // the revision that is reported as progress
	wanted    bool            // progress was requested since the last read began
	watchers  int
	deaf      bool          // nothing listens
	changed   chan struct{} // closed and replaced when a watcher has to look again
	err       error         // why all watchers have ended
	mark      int64         // last when events were dropped for their age
	markSince time.Time
}

func (f *feed) init() {
	f.signal = make(chan struct{}, 1)
	f.changed = make(chan struct{})
	f.deaf = true
}

func (f *feed) wake() { signal(f.signal) }

// join adds a watcher. The first makes the feed begin at the current revision.
func (f *feed) join(current int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers++; f.watchers == 1 {
		f.restart(current)
	}
	f.wake()
}

func (f *feed) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watchers--
}

// restart drops all events and goes on after a revision. The caller holds mu.
func (f *feed) restart(revision int64) {
	f.events, f.bytes = nil, 0
	if revision > f.last {
		f.last = revision
	}
}

func (f *feed) requestProgress() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = true
	f.wake()
}

// fail ends all watchers.
func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
		f.notify()
	}
}

func (f *feed) close() { f.fail(storage.ErrClosed) }

// notify wakes the watchers. The caller holds mu.
func (f *feed) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// begin returns where to read on, and whether progress is wanted; ok is false if nobody
// watches.
func (f *feed) begin() (after int64, progress, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	progress, f.wanted = f.wanted, false
	return f.last, progress, f.watchers > 0 && f.err == nil
}

// again notes that progress is wanted still, since the read has failed.
func (f *feed) again(progress bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wanted = f.wanted || progress
}

// await waits until the feed has come to a revision, if there are watchers, but not for
// longer than catchUp.
func (f *feed) await(ctx context.Context, revision int64) {
	timeout := time.After(catchUp)
	for f.wake(); ; {
		f.mu.Lock()
		there := f.watchers == 0 || f.err != nil || f.last >= revision
		changed := f.changed
		f.mu.Unlock()
		if there {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-timeout:
			return
		}
	}
}

// isWatched reports whether there are watchers.
func (f *feed) isWatched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watchers > 0
}

// publish appends events that follow the revision after, up to last. It returns false if
// that is not where the feed is: they were published before, or there are others between.
func (f *feed) publish(events []storage.Event, after, last int64, progress bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != after || f.watchers == 0 {
		return false
	}
	moved := last > f.last
	f.events = append(f.events, events...)
	for i := range events {
		f.bytes += eventSize(&events[i])
	}
	f.last = last
	f.trim()
	if progress {
		f.asked = last
	}
	if moved || progress {
		f.notify()
	}
	return true
}

// trim drops the oldest events past the bounds, and those that are older than
// keepEvents. The caller holds mu.
func (f *feed) trim() {
	drop := 0
	for drop < len(f.events) && (f.bytes > feedBytes || len(f.events)-drop > feedEvents) {
		f.bytes -= eventSize(&f.events[drop])
		drop++
	}
	if now := time.Now(); now.Sub(f.markSince) > keepEvents {
		for drop < len(f.events) && f.events[drop].KV.ModRevision <= f.mark {
			f.bytes -= eventSize(&f.events[drop])
			drop++
		}
		f.mark, f.markSince = f.last, now
	}
	if drop > 0 {
		clear(f.events[:drop])
		f.events = f.events[drop:]
	}
	if len(f.events) == 0 {
		f.events = nil
	}
}

// eventSize is the approximate memory of an event.
func eventSize(ev *storage.Event) int {
	return len(ev.KV.Value) + len(ev.Prev.Value) + 2*len(ev.KV.Key) + 256
}

// runFeed reads events whenever there may be some.
func (b *Backend) runFeed() {
	own := &line{b: b}
	defer own.drop()
	failures := 0
	for {
		b.feed.mu.Lock()
		interval := pollInterval
		if b.feed.deaf {
			interval = deafInterval
		}
		b.feed.trim()
		b.feed.mu.Unlock()
		timer := time.NewTimer(interval)
		select {
		case <-b.ctx.Done():
			timer.Stop()
			return
		case <-b.feed.signal:
		case <-timer.C:
		}
		timer.Stop()
		err := b.readFeed(own)
		switch {
		case b.ctx.Err() != nil:
			return
		case err == nil:
			if failures > 0 {
				b.log.Info("watches go on", "failures", failures)
			}
			failures = 0
			continue
		case b.diverged() != nil:
			<-b.ctx.Done()
			return
		}
		if failures++; failures == 1 {
			b.log.Warn("watches are interrupted, the database does not answer; they go on when it does", "error", err)
		}
		own.drop()
		if !backoff(b.ctx, failures) {
			return
		}
		b.feed.wake()
	}
}

// readFeed reads all events that there are.
func (b *Backend) readFeed(own *line) error {
	for {
		after, progress, ok := b.feed.begin()
		if !ok {
			return nil
		}
		caughtUp, err := b.readFeedOnce(own, after, progress)
		if err != nil {
			b.feed.again(progress)
			return err
		}
		if caughtUp {
			return nil
		}
		b.feed.again(progress)
	}
}

func (b *Backend) readFeedOnce(own *line, after int64, progress bool) (caughtUp bool, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.ConnectTimeout)
	defer cancel()
	conn, err := own.get(ctx)
	if err != nil {
		return false, err
	}
	seen, stamp := b.seen.get()
	batch, err := readEvents(ctx, conn, b.text.feed, after, after+batchEvents, batchEvents, batchBytes, seen)
	own.used = time.Now()
	if err != nil {
		return false, err
	}
	if err := b.checkSeen(batch.state, seen, stamp, batch.seen); err != nil {
		return false, err
	}
	if after+1 < batch.compacted {
		// The feed was cut off for longer than history is kept. Watchers that were
		// with it end with ErrCompacted when they look into the database.
		b.feed.mu.Lock()
		b.feed.restart(batch.compacted - 1)
		b.feed.notify()
		b.feed.mu.Unlock()
		return false, nil
	}
	last := after
	for i := range batch.events {
		ev := &batch.events[i]
		if ev.KV.ModRevision != last+1 {
			return false, b.diverge(fmt.Sprintf("revision %d is followed by %d", last, ev.KV.ModRevision))
		}
		last++
		if !ev.KV.Expires.IsZero() {
			b.noteExpiry(ev.KV.Expires)
		}
	}
	b.seen.note(last, batch.stamp)
	caughtUp = last >= batch.revision
	b.feed.publish(batch.events, after, last, progress && caughtUp)
	return caughtUp, nil
}

// eventBatch is the result of a statement that reads events.
type eventBatch struct {
	state
	events []storage.Event
	stamp  int64  // of the last event
	seen   *int64 // the stamp found at the revision that was asked about
	whole  bool   // no bound was reached
}

// readEvents reads events above after, up to upto.
func readEvents(ctx context.Context, conn *pgx.Conn, text string, after, upto int64, most, size int, args ...any) (batch eventBatch, err error) {
	bytes := 0
	err = rows(ctx, conn, func(r raw) error {
		batch.state = state{compacted: r.int(0), revision: r.int(1)}
		if !r.isNull(3) {
			batch.seen = new(int64)
			*batch.seen = r.int(3)
		}
		if r.isNull(5) {
			return nil
		}
		key := string(r[6])
		ev := storage.Event{Op: storage.Created, KV: storage.KeyValue{
			Key: key, ModRevision: r.int(5), CreateRevision: r.int(7), Expires: r.time(8), Value: r.bytes(10),
		}}
		if !r.isNull(11) {
			ev.Op = storage.Updated
			ev.Prev = storage.KeyValue{Key: key, ModRevision: r.int(11), CreateRevision: r.int(12), Expires: r.time(13), Value: r.bytes(14)}
		}
		if r.bool(9) {
			ev.Op = storage.Deleted
		}
		if (ev.Op == storage.Created) != (ev.KV.CreateRevision == ev.KV.ModRevision) {
			return fmt.Errorf("postgres: revision %d has lost the version that it replaced", ev.KV.ModRevision)
		}
		if n := len(batch.events); n > 0 && ev.KV.ModRevision <= batch.events[n-1].KV.ModRevision {
			return fmt.Errorf("postgres: events are out of order at revision %d", ev.KV.ModRevision)
		}
		bytes += len(ev.KV.Value)
		batch.stamp = r.int(4)
		batch.events = append(batch.events, ev)
		return nil
	}, text, append([]any{after, upto, most, size}, args...)...)
	batch.whole = len(batch.events) < most && bytes < size
	return batch, err
}

// listen waits for notifications, each with the last revision of a transaction, and
// wakes the feed.
func (b *Backend) listen() {
	for attempt := 0; b.ctx.Err() == nil; attempt++ {
		if b.listenOnce() {
			attempt = 0
		}
		b.feed.mu.Lock()
		b.feed.deaf = true
		b.feed.mu.Unlock()
		b.feed.wake()
		if !backoff(b.ctx, attempt) {
			return
		}
	}
}

// listenOnce listens on one connection until it breaks. It reports whether it did.
func (b *Backend) listenOnce() (listened bool) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.ConnectTimeout)
	defer cancel()
	conn, err := b.connect(ctx)
	if err != nil {
		return false
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{b.names.channel}.Sanitize()); err != nil {
		return false
	}
	b.feed.mu.Lock()
	b.feed.deaf = false
	b.feed.mu.Unlock()
	b.feed.wake() // for what happened before
	for {
		wait, stop := context.WithTimeout(b.ctx, listenPing)
		note, err := conn.WaitForNotification(wait)
		stop()
		if pgconn.Timeout(err) && b.ctx.Err() == nil {
			ping, stop := context.WithTimeout(b.ctx, 2*time.Second)
			err = conn.Ping(ping)
			stop()
			if err == nil {
				continue
			}
		}
		if err != nil {
			return true
		}
		revision, err := strconv.ParseInt(note.Payload, 10, 64)
		b.feed.mu.Lock()
		known := err == nil && revision <= b.feed.last
		b.feed.mu.Unlock()
		if !known {
			b.feed.wake()
		}
	}
}

// recent returns a copy of the events in memory that follow a position, nil if they are
// not in memory, and the state of the feed.
func (f *feed) recent(position int64) (events []storage.Event, last, asked int64, changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil || position >= f.last || len(f.events) == 0 || f.events[0].KV.ModRevision > position+1 {
		return nil, f.last, f.asked, f.changed, f.err
	}
	i := int(position + 1 - f.events[0].KV.ModRevision)
	n := i
	for size := 0; n < len(f.events) && n-i < batchEvents && size < batchBytes; n++ {
		size += eventSize(&f.events[n])
	}
	return slices.Clone(f.events[i:n]), f.last, f.asked, f.changed, nil
}
