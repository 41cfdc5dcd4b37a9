package storagetest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// checkProgressIdle: a watch of a prefix without traffic learns how far the
// store has come when somebody asks, from its beginning on.
func checkProgressIdle(e *env) error {
	h := &history{}
	w := e.writer(h)
	if err := w.put(e.key("busy"), "0"); err != nil {
		return err
	}
	f, err := e.follow(e.key("idle/"), 0)
	if err != nil {
		return err
	}
	defer f.w.Close()
	patience, cancel := context.WithTimeout(e.ctx, 20*time.Second)
	defer cancel()
	for i := range e.times(20, 200) {
		now, err := e.revision()
		if err != nil {
			return err
		}
		// Not until(), to which the beginning of the watch is good enough.
		for f.reported < now {
			if err := e.b.Progress(e.ctx); err != nil {
				return fmt.Errorf("progress: %w", err)
			}
			ctx, cancel := context.WithTimeout(patience, 100*time.Millisecond)
			err := f.next(ctx)
			cancel()
			if err != nil && (!errors.Is(err, context.DeadlineExceeded) || patience.Err() != nil) {
				return fmt.Errorf("waiting for progress to %d: %w", now, err)
			}
		}
		for range 1 + i%3 {
			if err := w.put(e.key("busy"), fmt.Sprint(i)); err != nil {
				return err
			}
		}
	}
	if len(f.events) > 0 {
		return fmt.Errorf("events of a prefix without traffic: %s", showEvent(f.events[0]))
	}
	return nil
}

// checkProgressHonest: progress that several ask for all the time while they
// write never runs ahead of the events. The follower sees to that.
func checkProgressHonest(e *env) error {
	const writers = 3
	after, err := e.revision()
	if err != nil {
		return err
	}
	h := e.churn(writers, e.times(120, 2000), func(i, round int, w *writer) error {
		if err := e.b.Progress(e.ctx); err != nil {
			return fmt.Errorf("progress: %w", err)
		}
		return w.any(e.rand(i<<20+round), e.key(fmt.Sprintf("%d/", i)), 3)
	})
	defer h.stop()
	prefixes := []string{e.prefix, e.key("0/"), e.key("1/01"), e.key("none/")}
	err = together(len(prefixes), func(i int) error {
		f, err := e.follow(prefixes[i], after)
		if err != nil {
			return err
		}
		defer f.w.Close()
		for h.allow(2) {
			ctx, cancel := context.WithTimeout(e.ctx, time.Millisecond)
			err := f.next(ctx)
			cancel()
			if err != nil && (!errors.Is(err, context.DeadlineExceeded) || e.ctx.Err() != nil) {
				return err
			}
		}
		return f.matches(h.log(), after)
	})
	return errors.Join(err, h.wait())
}
