package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

const (
	// removeEvents is how many events one step of a compaction removes.
	removeEvents = 4096
	// rewriteBytes is how much must have been removed before the tables are
	// rewritten to give the space back.
	rewriteBytes = 32 << 20
)

// Compact implements storage.Backend.
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.calls.leave()
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
	// The decision comes first: a restart finishes what it announces.
	if err := e.db.Set(metaKey(metaCompact), metaValue(revision), e.sync); err != nil {
		return err
	}
	if err := e.fs.Err(); err != nil {
		return fmt.Errorf("%w; %w", storage.ErrUncertain, e.readOnly(err))
	}
	e.compacted.Store(revision)
	return e.removeHistory(ctx, revision)
}

// removeHistory removes the events before a revision, and the versions that
// they replaced. Each step is one batch, so a crash leaves no version behind
// without the event that leads to it. Steps are not synced: what a crash undoes
// is done again.
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
	if err := e.db.Apply(batch, pebble.NoSync); err != nil {
		return false, err
	}
	e.garbage.Add(garbage)
	return ok, nil
}

// keep is the keeper: it drops history that is too old or too long, lets keys
// expire, and gives space back. It sleeps until one of these is due.
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
		next, err := e.keepOnce()
		if e.ctx.Err() != nil {
			return
		}
		if err != nil {
			e.opts.Logger.Warn("storage: housekeeping failed", "error", err)
			next = time.Minute
		}
		timer.Reset(next)
	}
}

// wakeKeeper makes the keeper look again now.
func (e *Engine) wakeKeeper() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// keepOnce does what is due and returns when to look again.
func (e *Engine) keepOnce() (time.Duration, error) {
	// A tenth of the window, so that history is at most that much too long.
	next := max(e.opts.HistoryAge/10, 10*time.Millisecond)
	if e.fs.Err() != nil {
		return next, nil
	}
	e.lookAtDisk()
	expiry, err := e.expire()
	if err != nil {
		return 0, err
	}
	if err := e.trimHistory(); err != nil {
		return 0, err
	}
	if err := e.giveBack(); err != nil {
		return 0, err
	}
	if e.admit(storage.Created) != nil {
		next = min(next, time.Second) // somebody is making room, one hopes
	}
	return min(next, expiry), nil
}

// trimHistory compacts to the revision at which the window of history begins.
func (e *Engine) trimHistory() error {
	now, oldest := e.feed.revision(), e.compacted.Load()
	keep := max(oldest, now-e.opts.HistoryCount+1)
	horizon := e.opts.now().Add(-e.opts.HistoryAge).UnixMilli()
	// The newest event stays: it holds the revision.
	young, err := e.firstAfter(keep, now, func(ev event) bool { return ev.time >= horizon })
	if err != nil || young <= oldest || young <= 1 {
		return err
	}
	return e.Compact(e.ctx, young)
}

// giveBack rewrites the tables when a good part of them is garbage. Without
// it, a store that shrank and then rests would keep its size.
func (e *Engine) giveBack() error {
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
