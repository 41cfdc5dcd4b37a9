package engine

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

const (
	// removeEvents is how many events one batch of a compaction removes.
	removeEvents = 4096
	// rewriteBytes is how many bytes must have been deleted before the tables are
	// rewritten to return the space to the disk.
	rewriteBytes = 32 << 20
)

// Compact implements storage.Backend.
func (e *Engine) Compact(ctx context.Context, revision int64) (err error) {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave(&err)
	e.compactMu.Lock()
	defer e.compactMu.Unlock()
	if oldest := e.compacted.Load(); revision <= oldest {
		return fmt.Errorf("%w: history before %d is gone already", storage.ErrCompacted, oldest)
	}
	if now := e.feed.revision(); revision > now {
		return fmt.Errorf("%w: cannot compact to %d, the newest is %d", storage.ErrFutureRevision, revision, now)
	}
	if err := e.fs.Err(); err != nil {
		return e.readOnly(err)
	}
	// The new compaction revision is stored first: if the process crashes while history
	// is being removed, removeLeftover finishes it.
	if err := e.db.Set(metaKey(metaCompact), metaValue(revision), pebble.Sync); err != nil {
		return err
	}
	if err := e.fs.Err(); err != nil {
		return fmt.Errorf("%w; %w", storage.ErrUncertain, e.readOnly(err))
	}
	e.compacted.Store(revision)
	if e.opts.RetainAge > 0 {
		return nil // trimRetained removes it in its time
	}
	e.floor.Store(revision)
	return e.removeHistory(ctx, revision)
}

// removeHistory removes the events before a revision, and the versions that they
// replaced, in batches. An event goes in the same batch as the version that it
// replaced, so a crash leaves no version without the event that leads to it. The
// batches are not synced: what a crash undoes is removed again by removeLeftover.
func (e *Engine) removeHistory(ctx context.Context, revision int64) error {
	for {
		more, err := e.removeStep(revision)
		if err != nil || !more {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func (e *Engine) removeStep(revision int64) (more bool, err error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceEvent}, UpperBound: eventKey(nil, revision)})
	if err != nil {
		return false, err
	}
	defer it.Close()
	batch := e.db.NewBatch()
	defer batch.Close()
	var buf []byte
	var first, end, garbage int64
	n := 0
	ok := it.First()
	for ; ok && n < removeEvents; ok = it.Next() {
		n++
		if end, err = parseEventKey(it.Key()); err != nil {
			return false, err
		}
		if first == 0 {
			first = end
		}
		b, err := it.ValueAndErr()
		if err != nil {
			return false, err
		}
		ev, err := parseEvent(b)
		if err != nil {
			return false, err
		}
		garbage += int64(len(b))
		if ev.prev != 0 {
			buf = versionKey(buf[:0], ev.key, ev.prev)
			must(batch.DeleteSized(buf, ev.prevSize, nil))
			garbage += int64(ev.prevSize)
		}
		if ev.op == storage.Deleted {
			buf = versionKey(buf[:0], ev.key, end)
			must(batch.DeleteSized(buf, versionHeader, nil))
		}
	}
	if err := it.Error(); err != nil || n == 0 {
		return false, err
	}
	must(batch.DeleteRange(eventKey(nil, first), eventKey(nil, end+1), nil))
	must(batch.DeleteRange(userKey(0), userKey(end+1), nil))
	if err := e.db.Apply(batch, pebble.NoSync); err != nil {
		return false, err
	}
	e.garbage.Add(garbage)
	return ok, nil
}

// keep is the housekeeping goroutine: it deletes expired keys, compacts history that is
// older or longer than Options say, and rewrites tables to reclaim space. It sleeps
// until the next of these is due.
func (e *Engine) keep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-timer.C:
		case <-e.wake:
		}
		e.rests.Store(math.MaxInt64)
		next, err := e.keepOnce()
		if e.ctx.Err() != nil {
			return
		}
		if err != nil {
			e.opts.Logger.Warn("storage: housekeeping failed", "error", err)
			next = time.Minute
		}
		e.rests.Store(e.opts.now().Add(next).UnixMilli())
		timer.Reset(next)
	}
}

// wakeKeeper makes keep run now.
func (e *Engine) wakeKeeper() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// keepOnce does the housekeeping that is due and returns the time until the next run.
func (e *Engine) keepOnce() (time.Duration, error) {
	// Every tenth of HistoryAge, so that history is kept at most a tenth too long.
	next := max(e.opts.HistoryAge/10, 10*time.Millisecond)
	if e.fs.Err() != nil {
		return next, nil
	}
	e.measureDisk()
	expiry, err := e.expire()
	if err != nil {
		return 0, err
	}
	if err := e.removeLeftover(); err != nil {
		return 0, err
	}
	if err := e.trimHistory(); err != nil {
		return 0, err
	}
	if err := e.trimRetained(); err != nil {
		return 0, err
	}
	if err := e.reclaimSpace(); err != nil {
		return 0, err
	}
	if e.admit(storage.Created) != nil {
		next = min(next, time.Second) // creates are refused for lack of space: see soon whether there is room again
	}
	return min(next, expiry), nil
}

// removeLeftover removes history that was there when the store was opened and that nobody can
// read: what a crash has left of a compaction, or what was kept with RetainAge, which is off
// now.
func (e *Engine) removeLeftover() error {
	if !e.leftover {
		return nil
	}
	e.compactMu.Lock()
	defer e.compactMu.Unlock()
	err := e.removeHistory(e.ctx, e.floor.Load())
	e.leftover = err != nil
	return err
}

// trimHistory compacts to the oldest revision that HistoryAge and HistoryCount allow to
// keep.
func (e *Engine) trimHistory() error {
	now, oldest := e.feed.revision(), e.compacted.Load()
	keep := max(oldest, now-e.opts.HistoryCount+1)
	horizon := e.opts.now().Add(-e.opts.HistoryAge).UnixMilli()
	// The newest event is never removed: load reads the current revision from it.
	young, err := e.firstAfter(keep, now, func(ev event) bool { return ev.time >= horizon })
	if err != nil || young <= oldest || young <= 1 {
		return err
	}
	return e.Compact(e.ctx, young)
}

// reclaimSpace rewrites the tables when at least a quarter of the store is deleted data.
// Pebble rewrites tables only when new data arrives, so a store that shrank and then
// rests would keep its size.
func (e *Engine) reclaimSpace() error {
	garbage := e.garbage.Load()
	if garbage < rewriteBytes || garbage < e.space.size()/4 {
		return nil
	}
	e.garbage.Store(0)
	if err := e.db.Flush(); err != nil {
		return err
	}
	return e.db.Compact(e.ctx, []byte{spaceVersion}, []byte{spaceExpiry + 1}, false)
}
