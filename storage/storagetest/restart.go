package storagetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
)

func restartChecks() []check {
	return []check{
		{name: "state", run: checkRestartState, own: true, reopen: true},
		{name: "compaction", run: checkRestartCompaction, own: true, reopen: true},
		{name: "watch", run: checkRestartWatch, own: true, reopen: true},
		{name: "ttl", run: checkRestartTTL, own: true, reopen: true},
		{name: "busy", run: checkRestartBusy, own: true, reopen: true},
	}
}

// checkRestartState: keys, revisions and the whole history survive.
func checkRestartState(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	for round := range e.times(4, 30) {
		if err := t.write(15); err != nil {
			return err
		}
		before, err := e.revision()
		if err != nil {
			return err
		}
		e.reopen()
		after, err := e.revision()
		if err != nil {
			return err
		}
		if after < before {
			return fmt.Errorf("restart %d: revision went from %d back to %d", round, before, after)
		}
		for i := range 6 {
			if err := t.get(e.key(fmt.Sprint(i))); err != nil {
				return fmt.Errorf("restart %d: %w", round, err)
			}
		}
		if err := errors.Join(t.count(e.prefix), t.everything()); err != nil {
			return fmt.Errorf("restart %d: %w", round, err)
		}
	}
	// A restart of a store at rest is none of its history.
	e.reopen()
	e.reopen()
	return errors.Join(t.write(5), t.everything())
}

// checkRestartCompaction: what was compacted stays so, and no more than that.
func checkRestartCompaction(e *env) error {
	t, err := e.twin()
	if err != nil {
		return err
	}
	for range e.times(3, 20) {
		if err := t.write(12); err != nil {
			return err
		}
		at := t.m.revision - 4
		if err := t.compact(at); err != nil {
			return err
		}
		e.reopen()
		if err := errors.Join(
			t.list(e.prefix, storage.ListOptions{Revision: at}),
			t.list(e.prefix, storage.ListOptions{Revision: at - 1}),
			t.compact(at), t.compact(at-1), t.everything()); err != nil {
			return err
		}
		w, err := e.b.Watch(e.ctx, e.prefix, t.rev(at-2))
		if err == nil {
			_, err = w.Next(e.ctx)
			w.Close()
		}
		if err := fails("watch from before the compaction", err, storage.ErrCompacted); err != nil {
			return err
		}
	}
	return nil
}

// checkRestartWatch: a watch ends with the store, and another can go on where
// it was.
func checkRestartWatch(e *env) error {
	after, err := e.revision()
	if err != nil {
		return err
	}
	h := &history{}
	w := e.writer(h)
	rng := e.rand(0)
	pos := after
	var events []storage.Event
	for range e.times(4, 30) {
		for range 10 {
			if err := w.any(rng, e.prefix, 5); err != nil {
				return err
			}
		}
		f, err := e.follow(e.prefix, pos)
		if err != nil {
			return err
		}
		for range rng.IntN(2) {
			if err := f.next(e.ctx); err != nil {
				return err
			}
		}
		pos = f.pos
		events = append(events, f.events...)
		e.reopen()
		if err := over(e.ctx, "watch of the store that was closed", f.w, storage.ErrClosed); err != nil {
			return err
		}
	}
	f, err := e.follow(e.prefix, pos)
	if err != nil {
		return err
	}
	defer f.w.Close()
	if err := f.until(w.last); err != nil {
		return err
	}
	if err := diffEvents("events across restarts", append(events, f.events...), h.log()); err != nil {
		return err
	}
	return e.followAll(e.prefix, after, h.log())
}

// checkRestartTTL: keys with a ttl survive a restart, and go all the same.
func checkRestartTTL(e *env) error {
	for _, kv := range []struct {
		key string
		ttl time.Duration
	}{{"long", longTTL}, {"permanent", 0}} {
		if _, err := e.b.Create(e.ctx, e.key(kv.key), nil, kv.ttl); err != nil {
			return fmt.Errorf("create: %w", err)
		}
	}
	start := time.Now()
	kv, err := e.b.Create(e.ctx, e.key("short"), nil, e.ttl())
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	e.reopen()
	f, err := e.follow(e.prefix, kv.ModRevision)
	if err != nil {
		return err
	}
	defer f.w.Close()
	if err := f.gone(kv.Key, start.Add(e.ttl())); err != nil {
		return err
	}
	page, err := e.b.List(e.ctx, e.prefix, storage.ListOptions{Expiry: true})
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	if len(page.Items) != 2 || page.Items[0].Expires.IsZero() || !page.Items[1].Expires.IsZero() {
		return fmt.Errorf("keys after the restart: %+v", page.Items)
	}
	return nil
}

// checkRestartBusy: of the writes that a restart meets, the acknowledged ones
// are there afterwards, and those refused are not.
func checkRestartBusy(e *env) error {
	type outcome struct {
		key string
		kv  storage.KeyValue
		err error
	}
	for round := range e.times(3, 30) {
		var mu sync.Mutex
		var outcomes []outcome
		enough := make(chan struct{})
		old := e.b
		err := together(9, func(i int) error {
			if i == 0 {
				select {
				case <-enough:
				case <-e.ctx.Done():
				}
				e.reopen()
				return nil
			}
			for n := 0; ; n++ {
				key := e.key(fmt.Sprintf("%d-%d-%d", round, i, n))
				kv, err := old.Create(e.ctx, key, []byte(key), 0)
				mu.Lock()
				outcomes = append(outcomes, outcome{key, kv, err})
				if len(outcomes) == 60 {
					close(enough)
				}
				mu.Unlock()
				switch {
				case errors.Is(err, storage.ErrClosed), errors.Is(err, storage.ErrUncertain):
					return nil
				case err != nil:
					return fmt.Errorf("create: %w", err)
				}
			}
		})
		if err != nil {
			return err
		}
		for _, o := range outcomes {
			kv, err := e.b.Get(e.ctx, o.key)
			switch {
			case o.err == nil && err != nil:
				return fmt.Errorf("acknowledged %s, after the restart: %w", show(o.kv), err)
			case o.err == nil:
				if err := diffKV("after the restart", kv, o.kv); err != nil {
					return err
				}
			case errors.Is(o.err, storage.ErrUncertain) && (err == nil || errors.Is(err, storage.ErrNotFound)):
			case !errors.Is(err, storage.ErrNotFound):
				return fmt.Errorf("write refused with %v, after the restart: %s, error %v", o.err, show(kv), err)
			}
		}
	}
	return nil
}
