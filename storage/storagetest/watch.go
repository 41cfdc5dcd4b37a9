package storagetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
)

func watchChecks() []check {
	return []check{
		{name: "past", run: checkWatchPast},
		{name: "now", run: checkWatchNow},
		{name: "wakes", run: checkWatchWakes},
		{name: "future", run: checkWatchFuture},
		{name: "prefixes", run: checkWatchPrefixes},
		{name: "joins", run: checkWatchJoins},
		{name: "boundary", run: checkWatchBoundary},
		{name: "progress-idle", run: checkProgressIdle},
		{name: "progress-honest", run: checkProgressHonest},
		{name: "next-expires", run: checkNextExpires},
		{name: "starved", run: checkStarved},
		{name: "starved-compacted", run: checkStarvedCompacted},
		{name: "idle-compacted", run: checkIdleCompacted},
	}
}

// followAll opens a watch and compares it with what has happened.
func (e *env) followAll(prefix string, after int64, log []storage.Event) error {
	f, err := e.follow(prefix, after)
	if err != nil {
		return err
	}
	defer f.w.Close()
	return f.matches(log, after)
}

// checkWatchPast: from any past revision a watch delivers what came after it.
func checkWatchPast(e *env) error {
	first, err := e.revision()
	if err != nil {
		return err
	}
	h := &history{}
	w := e.writer(h)
	rng := e.rand(0)
	for i := range e.times(60, 600) {
		if err := w.any(rng, e.key(fmt.Sprintf("%d/", i%2)), 4); err != nil {
			return err
		}
	}
	log := h.log()
	for after := first; after <= w.last; after += 1 + rng.Int64N(16) {
		prefixes := []string{"", "0/", "1/01", "none/"}
		err := together(len(prefixes), func(i int) error { return e.followAll(e.key(prefixes[i]), after, log) })
		if err != nil {
			return err
		}
	}
	return e.followAll(e.prefix, w.last, log)
}

// checkWatchNow: a watch after 0 delivers all that is written once Watch has
// returned, and nothing that was acknowledged before it was called.
func checkWatchNow(e *env) error {
	h := &history{}
	w := e.writer(h)
	for i := range e.times(30, 500) {
		if err := w.put(e.key("before"), fmt.Sprint(i)); err != nil {
			return err
		}
		before := w.last
		f, err := e.follow(e.prefix, 0)
		if err != nil {
			return err
		}
		defer f.w.Close()
		if err := errors.Join(w.put(e.key("after"), fmt.Sprint(i)), w.remove(e.key("after"))); err != nil {
			return err
		}
		if err := f.matches(h.log(), before); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	return nil
}

// checkWatchWakes: an event is delivered when it happens. Nothing else happens
// here, and nobody asks for progress.
func checkWatchWakes(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	patience, cancel := context.WithTimeout(e.ctx, 20*time.Second)
	defer cancel()
	h := &history{}
	w := e.writer(h)
	for i := range e.times(50, 1000) {
		err := together(2, func(part int) error {
			if part == 0 {
				return w.put(e.key("a"), fmt.Sprint(i))
			}
			for len(f.events) == i {
				if err := f.next(patience); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	return f.matches(h.log(), after)
}

// checkWatchFuture: a watch after a revision that has not been reached stays
// silent until then.
func checkWatchFuture(e *env) error {
	now, err := e.revision()
	if err != nil {
		return err
	}
	h := &history{}
	w := e.writer(h)
	for _, ahead := range []int64{1, 3, 8} {
		f, err := e.follow(e.prefix, now+ahead)
		if err != nil {
			return err
		}
		defer f.w.Close()
		for w.last < now+ahead+5 {
			if err := w.any(e.rand(int(w.last)), e.prefix, 3); err != nil {
				return err
			}
		}
		if err := f.matches(h.log(), now+ahead); err != nil {
			return err
		}
		if now, err = e.revision(); err != nil {
			return err
		}
	}
	return nil
}

// checkWatchPrefixes: a watch delivers the keys of its prefix and no other.
func checkWatchPrefixes(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	prefixes := append([]string{"", "z", "a/b/cd"}, trickyKeys()...)
	var followers []*follower
	for _, prefix := range prefixes {
		f, err := e.follow(e.key(prefix), 0)
		if err != nil {
			return err
		}
		defer f.w.Close()
		followers = append(followers, f)
	}
	h := &history{}
	w := e.writer(h)
	for round := range 2 {
		for _, key := range trickyKeys() {
			if err := w.put(e.key(key), fmt.Sprint(key, round)); err != nil {
				return err
			}
		}
	}
	for _, key := range trickyKeys() {
		if err := w.remove(e.key(key)); err != nil {
			return err
		}
	}
	log := h.log()
	for _, f := range followers {
		if err := errors.Join(f.matches(log, after), e.followAll(f.prefix, after, log)); err != nil {
			return err
		}
	}
	return nil
}

// checkWatchJoins: watchers that join at random moments and revisions, while
// several write, all see the same.
func checkWatchJoins(e *env) error {
	const writers = 4
	first, err := e.revision()
	if err != nil {
		return err
	}
	h := e.churn(writers, e.times(150, 1500), func(i, round int, w *writer) error {
		return w.any(e.rand(i<<20+round), e.key(fmt.Sprintf("%d/", i)), 6)
	})
	defer h.stop()
	type join struct {
		*follower
		after  int64 // as asked for
		latest int64 // the revision at which a watch after 0 has begun at the latest
	}
	joins := make([][]join, 6)
	err = together(len(joins), func(i int) error {
		rng := e.rand(-1 - i)
		for len(joins[i]) < e.times(5, 20) && h.allow(25) {
			j := join{after: first + rng.Int64N(max(1, h.last()-first))}
			if rng.IntN(3) == 0 {
				j.after = 0
			}
			prefix := e.prefix
			if rng.IntN(3) == 0 {
				prefix = e.key(fmt.Sprintf("%d/", rng.IntN(writers)))
			}
			var err error
			if j.follower, err = e.follow(prefix, j.after); err != nil {
				return err
			}
			if j.latest, err = e.revision(); err != nil {
				return err
			}
			joins[i] = append(joins[i], j)
			if err := j.until(j.latest); err != nil {
				return err
			}
		}
		return nil
	})
	defer func() {
		for _, js := range joins {
			for _, j := range js {
				j.w.Close()
			}
		}
	}()
	if err := errors.Join(err, h.wait()); err != nil {
		return err
	}
	log := h.log()
	for _, js := range joins {
		for _, j := range js {
			after := j.after
			if err := j.until(h.last()); err != nil {
				return err
			}
			if after == 0 {
				// It began somewhere between two known revisions.
				after = j.latest
				if len(j.events) > 0 {
					after = min(after, j.events[0].KV.ModRevision-1)
				}
			}
			if err := j.matches(log, after); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkWatchBoundary: a watch can begin with the events of the compaction
// revision, whatever they are, and not one revision before.
func checkWatchBoundary(e *env) error {
	h := &history{}
	w := e.writer(h)
	key, other := e.key("a"), e.key("b")
	for i, write := range []func() error{
		func() error { return w.put(key, "1") },
		func() error { return w.put(key, "2") },
		func() error { return w.remove(key) },
	} {
		if err := errors.Join(w.put(other, fmt.Sprint(i)), write()); err != nil {
			return err
		}
		at := w.last
		if err := w.put(other, fmt.Sprint(i, "after")); err != nil {
			return err
		}
		if err := e.b.Compact(e.ctx, at); err != nil {
			return fmt.Errorf("compact %d: %w", at, err)
		}
		log := h.log()
		for after := at - 1; after <= at+1; after++ {
			if err := e.followAll(e.prefix, after, log); err != nil {
				return fmt.Errorf("compacted at %d: %w", at, err)
			}
		}
		// The second prefix has no events; ErrCompacted is right there too.
		for _, prefix := range []string{e.prefix, e.key("none/")} {
			for _, after := range []int64{at - 2, 1} {
				f, err := e.follow(prefix, after)
				if err == nil {
					err = f.next(e.ctx)
					f.w.Close()
				}
				if err := fails(fmt.Sprintf("compacted at %d: watch of %q after %d", at, prefix, after), err, storage.ErrCompacted); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// checkNextExpires: a context that ends during Next ends that call only, and
// takes no event with it.
func checkNextExpires(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	f, err := e.follow(e.prefix, 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	cancelled, cancel := context.WithCancel(e.ctx)
	cancel()
	// A watcher may begin with a progress report.
	for err = f.next(cancelled); err == nil; err = f.next(cancelled) {
	}
	if err := fails("next", err, context.Canceled); err != nil {
		return err
	}
	h := &history{}
	w := e.writer(h)
	rng := e.rand(0)
	for i := range e.times(150, 3000) {
		err := together(2, func(part int) error {
			if part == 0 {
				return w.put(e.key("a"), fmt.Sprint(i))
			}
			ctx, cancel := context.WithTimeout(e.ctx, time.Duration(rng.IntN(300))*time.Microsecond)
			defer cancel()
			if err := f.next(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return f.matches(h.log(), after)
}
