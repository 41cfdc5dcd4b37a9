package storagetest

import (
	"fmt"

	"github.com/apikeel/kelson/storage"
)

// checkStarved: a watcher that nobody reads loses no event, however much is written,
// and blocks nobody.
func checkStarved(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	var starved []*follower
	for _, from := range []int64{0, after} {
		f, err := e.follow(e.prefix, from)
		if err != nil {
			return err
		}
		defer f.w.Close()
		starved = append(starved, f)
	}
	lively, err := e.follow(e.prefix, after)
	if err != nil {
		return err
	}
	defer lively.w.Close()
	h := &history{}
	// More than a store would hold in memory for watchers: 20 MiB.
	const writers, size = 16, 16 << 10
	err = together(writers, func(i int) error {
		w := e.writer(h)
		for n := range e.times(80, 200) {
			if err := w.put(e.key(fmt.Sprintf("%d-%d", i, n%20)), fill(fmt.Sprint(i, n), size)); err != nil {
				return err
			}
			if i == 0 {
				if err := lively.until(w.last); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	log := h.log()
	for _, f := range append(starved, lively) {
		if err := f.matches(log, after); err != nil {
			return err
		}
	}
	return nil
}

// checkStarvedCompacted: a watcher that is not read while its events are
// compacted delivers a part without gaps and then ErrCompacted; or all of it,
// if they were on their way.
func checkStarvedCompacted(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	h := &history{}
	err = together(8, func(i int) error {
		w := e.writer(h)
		for n := range e.times(60, 1000) {
			if err := w.put(e.key(fmt.Sprint(i)), fill(fmt.Sprint(n), 4<<10)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	log := h.log()
	at := h.last()
	if err := e.b.Compact(e.ctx, at); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	if err = f.until(at); err == nil {
		return f.matches(log, after)
	}
	if err := fails("starved watch", err, storage.ErrCompacted); err != nil {
		return err
	}
	if f.pos+1 >= at {
		return fmt.Errorf("watch at %d says compacted, and %d can be watched", f.pos, at)
	}
	var want []storage.Event
	for _, ev := range log {
		if ev.KV.ModRevision <= f.pos {
			want = append(want, ev)
		}
	}
	if err := diffEvents(fmt.Sprintf("events up to %d", f.pos), f.events, want); err != nil {
		return err
	}
	return fails("next after the end", f.next(e.ctx), storage.ErrCompacted)
}

// checkIdleCompacted: a watcher that has come to a revision is not ended by a
// compaction up to there, even if it has never had an event.
func checkIdleCompacted(e *env) error {
	idle, err := e.follow(e.key("idle/"), 0)
	if err != nil {
		return err
	}
	defer idle.w.Close()
	h := &history{}
	w := e.writer(h)
	for i := range e.times(10, 200) {
		for n := range 5 {
			if err := w.put(e.key("busy"), fmt.Sprint(i, n)); err != nil {
				return err
			}
		}
		if err := idle.until(w.last); err != nil {
			return err
		}
		if err := e.b.Compact(e.ctx, w.last); err != nil {
			return fmt.Errorf("compact: %w", err)
		}
	}
	after := w.last
	if err := w.put(e.key("idle/not any more"), "x"); err != nil {
		return err
	}
	return idle.matches(h.log(), after)
}
