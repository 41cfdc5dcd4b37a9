package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// This file keeps versions for history longer than watches need them, and reads them.
// compacted is what lists and watches see, with or without it; floor is where the versions
// really end.

var _ storage.Historian = (*Engine)(nil)

// loadFloor sets floor from the database. first is the first revision that has an event.
func (e *Engine) loadFloor(first int64) error {
	compacted := e.compacted.Load()
	floor, err := e.meta(metaFloor)
	missing := errors.Is(err, pebble.ErrNotFound)
	if err != nil && !missing {
		return err
	}
	switch {
	case e.opts.RetainAge == 0 && missing:
		floor = compacted
	case e.opts.RetainAge == 0: // it was kept once, and is not any more
		floor = compacted
		if err := e.db.Delete(metaKey(metaFloor), pebble.Sync); err != nil {
			return err
		}
	case missing:
		floor = compacted
		if err := e.db.Set(metaKey(metaFloor), metaValue(floor), pebble.Sync); err != nil {
			return err
		}
	}
	// A version of this program that knows nothing of floor removes what is below compacted.
	if first > max(floor, e.base+1) {
		floor = first
	}
	e.floor.Store(floor)
	e.counted = max(floor, e.base+1)
	return nil
}

// trimRetained removes what is older than RetainAge, and the oldest of what is more than
// RetainBytes, of the history that lists and watches do not see any more.
func (e *Engine) trimRetained() error {
	if e.opts.RetainAge == 0 {
		return nil
	}
	e.compactMu.Lock()
	defer e.compactMu.Unlock()
	top := e.compacted.Load()
	if top <= e.counted {
		top = e.counted
	}
	if err := e.eachEvent(e.counted, top, func(_ int64, b []byte, ev event) bool {
		e.retained.Add(retainedSize(b, ev))
		return true
	}); err != nil {
		return err
	}
	e.counted = top
	horizon := e.opts.now().Add(-e.opts.RetainAge).UnixMilli()
	full := e.admit(storage.Created) != nil
	target, left := top, e.retained.Load()
	first := max(e.floor.Load(), e.base+1)
	if err := e.eachEvent(first, top, func(revision int64, b []byte, ev event) bool {
		if ev.time >= horizon && left <= e.opts.RetainBytes && !full {
			target = revision
			return false
		}
		left -= retainedSize(b, ev)
		return true
	}); err != nil || target <= first {
		return err
	}
	if err := e.db.Set(metaKey(metaFloor), metaValue(target), pebble.Sync); err != nil {
		return err
	}
	if err := e.fs.Err(); err != nil {
		return err
	}
	e.floor.Store(target)
	e.retained.Store(left)
	return e.removeHistory(e.ctx, target)
}

// retainedSize is what an event counts against RetainBytes: itself, and the version that it
// replaced.
func retainedSize(b []byte, ev event) int64 { return int64(len(b)) + int64(ev.prevSize) }

// eachEvent calls f for the events of the revisions [low, high), oldest first, until it
// returns false.
func (e *Engine) eachEvent(low, high int64, f func(revision int64, b []byte, ev event) bool) error {
	if low >= high {
		return nil
	}
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, low), UpperBound: eventKey(nil, high)})
	if err != nil {
		return err
	}
	defer it.Close()
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		if n++; n%1024 == 0 && e.ctx.Err() != nil {
			return e.ctx.Err()
		}
		revision, b, ev, err := eventAt(it)
		if err != nil {
			return err
		}
		if !f(revision, b, ev) {
			break
		}
	}
	return it.Error()
}

// eventAt parses the event at the position of an iterator.
func eventAt(it *pebble.Iterator) (revision int64, b []byte, ev event, err error) {
	if revision, err = parseEventKey(it.Key()); err != nil {
		return 0, nil, ev, err
	}
	if b, err = it.ValueAndErr(); err != nil {
		return 0, nil, ev, err
	}
	ev, err = parseEvent(b)
	return revision, b, ev, err
}

// KeptHistory implements storage.Historian.
func (e *Engine) KeptHistory(ctx context.Context) (k storage.Kept, err error) {
	if err := e.enter(ctx); err != nil {
		return storage.Kept{}, err
	}
	defer e.leave(&err)
	k = storage.Kept{Oldest: max(e.floor.Load(), e.base), Newest: e.feed.revision(), Times: true, Age: e.opts.HistoryAge}
	if e.opts.RetainAge > 0 {
		k.Age, k.Bytes, k.MaxBytes = max(k.Age, e.opts.RetainAge), e.retained.Load(), e.opts.RetainBytes
	}
	err = e.eachEvent(k.Oldest, k.Newest+1, func(_ int64, _ []byte, ev event) bool {
		k.Since = time.UnixMilli(ev.time)
		return false
	})
	return k, err
}

// RevisionAt implements storage.Historian. It finds the revision by the times of events,
// which are in order unless the clock was set back.
func (e *Engine) RevisionAt(ctx context.Context, t time.Time) (revision int64, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave(&err)
	now, oldest := e.feed.revision(), max(e.floor.Load(), e.base)
	at := t.UnixMilli()
	next, err := e.firstAfter(oldest, now+1, func(ev event) bool { return ev.time > at })
	if err != nil {
		return 0, err
	}
	if next-1 >= oldest {
		return next - 1, nil
	}
	if oldest == e.base {
		return oldest, nil // before the first write
	}
	return 0, fmt.Errorf("%w: history begins with revision %d", storage.ErrCompacted, oldest)
}

// maxSeenEvents is how many events one call of Changes reads of which none is wanted.
const maxSeenEvents = 200_000

// Changes implements storage.Historian.
func (e *Engine) Changes(ctx context.Context, opts storage.ChangesOptions, each func(*storage.Change) error) (from int64, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave(&err)
	now := e.feed.revision()
	if opts.To == 0 || opts.To > now {
		opts.To = now
	}
	events, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceEvent}, UpperBound: eventKey(nil, opts.To+1)})
	if err != nil {
		return 0, err
	}
	defer events.Close()
	versions, err := e.versions()
	if err != nil {
		return 0, err
	}
	defer versions.Close()
	// Both iterators exist now: what was not removed before is in them.
	opts.From = max(opts.From, e.floor.Load(), e.base+1)
	if opts.From > opts.To {
		return opts.From, nil
	}
	if opts.Key != "" {
		return keyChanges(ctx, events, versions, opts, each)
	}
	return allChanges(ctx, events, versions, opts, each)
}

// allChanges reads events backwards, and the versions of those that are wanted.
func allChanges(ctx context.Context, events, versions *pebble.Iterator, opts storage.ChangesOptions, each func(*storage.Change) error) (int64, error) {
	n, size, seen := 0, 0, 0
	for ok := events.Last(); ok; ok = events.Prev() {
		revision, _, stored, err := eventAt(events)
		if err != nil {
			return 0, err
		}
		if revision < opts.From {
			return opts.From, nil
		}
		if opts.Done(n, size) || seen >= maxSeenEvents {
			return revision + 1, nil
		}
		if seen++; seen%1024 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if !opts.Wants(stored.key) {
			continue
		}
		ev, err := readEvent(versions, stored, revision)
		if err != nil {
			return 0, err
		}
		n, size = n+1, size+len(ev.KV.Value)+len(ev.Prev.Value)
		if err := each(&storage.Change{Event: ev, Time: time.UnixMilli(stored.time)}); err != nil {
			return 0, err
		}
	}
	return opts.From, events.Error()
}

// keyChanges reads the versions of one key, which are there newest first, and the events
// that made them.
func keyChanges(ctx context.Context, events, versions *pebble.Iterator, opts storage.ChangesOptions, each func(*storage.Change) error) (int64, error) {
	n, size := 0, 0
	for revision := opts.To; revision >= opts.From; {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if opts.Done(n, size) {
			return revision + 1, nil
		}
		v, ok, err := readVersion(versions, opts.Key, revision)
		if err != nil {
			return 0, err
		}
		if !ok || v.revision < opts.From {
			break
		}
		seek := eventKey(nil, v.revision)
		if !events.SeekGE(seek) || !bytes.Equal(events.Key(), seek) {
			return 0, errors.Join(events.Error(), fmt.Errorf("%w: event %d of %s is missing", errCorrupt, v.revision, opts.Key))
		}
		_, _, stored, err := eventAt(events)
		if err != nil {
			return 0, err
		}
		ev, err := readEvent(versions, stored, v.revision)
		if err != nil {
			return 0, err
		}
		n, size = n+1, size+len(ev.KV.Value)+len(ev.Prev.Value)
		if err := each(&storage.Change{Event: ev, Time: time.UnixMilli(stored.time)}); err != nil {
			return 0, err
		}
		revision = v.revision - 1
	}
	return opts.From, nil
}
