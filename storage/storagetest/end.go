package storagetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/apikeel/kelson/storage"
)

func endChecks() []check {
	return []check{
		{name: "watcher", run: checkEndWatcher},
		{name: "context", run: checkEndContext},
		{name: "store", run: checkEndStore, own: true},
		{name: "busy-store", run: checkEndBusyStore, own: true},
	}
}

// over reads a watcher that must have ended with want. Events that were in flight may
// still come.
func over(ctx context.Context, what string, w storage.Watcher, want error) error {
	var err error
	for err == nil {
		_, err = w.Next(ctx)
	}
	for range 3 {
		if err := fails(what, err, want); err != nil {
			return err
		}
		_, err = w.Next(ctx)
	}
	return nil
}

// checkEndWatcher: Close ends a watch, before, during and after Next, whether
// or not there is something to deliver.
func checkEndWatcher(e *env) error {
	for i := range e.times(40, 500) {
		w, err := e.b.Watch(e.ctx, e.prefix, 0)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		if i%2 == 0 {
			if _, err := e.b.Create(e.ctx, e.key(fmt.Sprint(i)), nil, 0); err != nil {
				return fmt.Errorf("create: %w", err)
			}
		}
		if i%4 < 2 {
			started := make(chan struct{})
			err = together(2, func(part int) error {
				if part == 0 {
					close(started)
					return over(e.ctx, "next of a watcher that is being closed", w, storage.ErrClosed)
				}
				<-started
				w.Close()
				return nil
			})
		}
		w.Close()
		w.Close()
		if err == nil {
			_, err = w.Next(e.ctx)
			err = fails("next of a closed watcher", err, storage.ErrClosed)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEndContext: the context of a watch ends it.
func checkEndContext(e *env) error {
	for i := range e.times(20, 300) {
		ctx, cancel := context.WithCancel(e.ctx)
		w, err := e.b.Watch(ctx, e.prefix, 0)
		if err != nil {
			cancel()
			return fmt.Errorf("watch: %w", err)
		}
		if i%2 == 0 {
			if _, err := e.b.Create(e.ctx, e.key(fmt.Sprint(i)), nil, 0); err != nil {
				cancel()
				return fmt.Errorf("create: %w", err)
			}
		}
		started := make(chan struct{})
		err = together(2, func(part int) error {
			if part == 0 {
				close(started)
				return over(e.ctx, "next of a cancelled watch", w, context.Canceled)
			}
			<-started
			cancel()
			return nil
		})
		w.Close()
		if err == nil {
			// The reason that came first stays.
			_, err = w.Next(e.ctx)
			err = fails("next of a watch cancelled, then closed", err, context.Canceled)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEndStore: Close ends the watchers, and every call says so from then on.
func checkEndStore(e *env) error {
	kv, err := e.b.Create(e.ctx, e.key("a"), nil, 0)
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	var watchers []storage.Watcher
	for _, after := range []int64{0, kv.ModRevision - 1, kv.ModRevision + 100} {
		w, err := e.b.Watch(e.ctx, e.prefix, after)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		watchers = append(watchers, w)
	}
	started := make(chan struct{}, len(watchers))
	err = together(len(watchers)+1, func(i int) error {
		if i < len(watchers) {
			started <- struct{}{}
			return over(e.ctx, "next of a watcher of a closed store", watchers[i], storage.ErrClosed)
		}
		for range watchers {
			<-started
		}
		if err := e.b.Close(); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range watchers {
		w.Close()
		if _, err := w.Next(e.ctx); !errors.Is(err, storage.ErrClosed) {
			return fails("next", err, storage.ErrClosed)
		}
	}
	_, create := e.b.Create(e.ctx, e.key("b"), nil, 0)
	_, update := e.b.Update(e.ctx, kv.Key, nil, kv.ModRevision, 0)
	_, _, remove := e.b.Delete(e.ctx, kv.Key, kv.ModRevision)
	_, get := e.b.Get(e.ctx, kv.Key)
	_, list := e.b.List(e.ctx, e.prefix, storage.ListOptions{})
	_, old := e.b.List(e.ctx, e.prefix, storage.ListOptions{Revision: kv.ModRevision})
	_, _, count := e.b.Count(e.ctx, e.prefix)
	_, revision := e.b.Revision(e.ctx)
	_, watch := e.b.Watch(e.ctx, e.prefix, 0)
	_, status := e.b.Status(e.ctx)
	if err := e.b.Close(); err != nil {
		if err := fails("second close", err, storage.ErrClosed); err != nil {
			return err
		}
	}
	return errors.Join(
		fails("create", create, storage.ErrClosed),
		fails("update", update, storage.ErrClosed),
		fails("delete", remove, storage.ErrClosed),
		fails("get", get, storage.ErrClosed),
		fails("list", list, storage.ErrClosed),
		fails("list at a revision", old, storage.ErrClosed),
		fails("count", count, storage.ErrClosed),
		fails("revision", revision, storage.ErrClosed),
		fails("watch", watch, storage.ErrClosed),
		fails("progress", e.b.Progress(e.ctx), storage.ErrClosed),
		fails("compact", e.b.Compact(e.ctx, kv.ModRevision), storage.ErrClosed),
		fails("status", status, storage.ErrClosed))
}

// checkEndBusyStore: when Close runs in the middle of calls, every call is answered: it
// succeeded, or the store is closed.
func checkEndBusyStore(e *env) error {
	var writes atomic.Int64
	enough := make(chan struct{})
	return together(10, func(i int) error {
		if i == 0 {
			select {
			case <-enough:
			case <-e.ctx.Done():
			}
			return e.b.Close()
		}
		for n := 0; ; n++ {
			runtime.Gosched() // the readers do not wait for anything
			var err error
			switch i % 3 {
			case 0:
				_, err = e.b.Create(e.ctx, e.key(fmt.Sprint(i, "-", n)), []byte("x"), 0)
				// A write under way may have reached a remote store or not.
				if errors.Is(err, storage.ErrUncertain) {
					err = storage.ErrClosed
				}
				if writes.Add(1) == int64(e.times(50, 1000)) {
					close(enough)
				}
			case 1:
				_, err = e.b.List(e.ctx, e.prefix, storage.ListOptions{Limit: 10})
			case 2:
				var w storage.Watcher
				if w, err = e.b.Watch(e.ctx, e.prefix, 0); err == nil {
					_, err = w.Next(e.ctx)
					w.Close()
				}
			}
			if err != nil {
				return fails("call during close", err, storage.ErrClosed)
			}
		}
	})
}
