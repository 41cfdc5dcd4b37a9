package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	corev1 "k8s.io/api/core/v1"
)

// TestWatchesAgreeWithLists writes, trims, lists and watches at the same time. A
// watcher that applies its events to the list at which it began has the last list
// in the end, and never an event at or below its revision.
func TestWatchesAgreeWithLists(t *testing.T) {
	b := &lateFeed{Backend: memory.New(memory.Options{})}
	defer b.Close()
	s, err := Open(t.Context(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := s.Resource(podDefinition())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var background, writers, readers sync.WaitGroup
	background.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			s.trim()
			b.mu.Lock() // the feed falls behind
			pause()
			b.mu.Unlock()
			if rand.IntN(20) == 0 {
				b.breaks.Store(true) // and loses its place
			}
		}
	})
	c := newConsumer(t, func() []*Resource { return []*Resource{r} })
	const keys, writes = 8, 400
	for n := range 4 {
		writers.Go(func() {
			for i := range writes {
				name := fmt.Sprint("p", rand.IntN(keys))
				var err error
				switch rand.IntN(3) {
				case 0:
					_, err = r.Create(ctx, r.Key("default", name), newPod(name, ""), 0)
				case 1:
					_, err = r.Update(ctx, r.Key("default", name), func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
						obj.(*corev1.Pod).Spec.NodeName = fmt.Sprint(n, "-", i)
						return obj, 0, nil
					})
				case 2:
					_, err = r.Delete(ctx, r.Key("default", name), func(*Record) error { return nil })
				}
				if err != nil && !errors.Is(err, storage.ErrExists) && !errors.Is(err, storage.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// What is lost when the feed loses its place is said, not left out.
				if err := follow(ctx, r, stop); err != nil && !errors.Is(err, ErrExpired) && !errors.Is(err, storage.ErrUnavailable) {
					t.Error(err)
					return
				}
			}
		})
	}
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := c.pull(ctx); err != nil && !errors.Is(err, storage.ErrUnavailable) {
				t.Error(err)
				return
			}
		}
	})
	writers.Wait()
	close(stop)
	readers.Wait()
	background.Wait()
	b.breaks.Store(false)
	var last *Snapshot
	for err = storage.ErrUnavailable; errors.Is(err, storage.ErrUnavailable) && ctx.Err() == nil; { // the cache is loaded anew
		if last, err = r.Snapshot(ctx, Read{}); err == nil {
			err = c.pull(ctx)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(c.pods), last.Len(); got != want {
		t.Errorf("the follower has %d pods, want %d", got, want)
	}
	last.Range(r.prefix, "", func(rec *Record) bool {
		obj, err := r.Decode(rec)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.pods[rec.Name], obj.(*corev1.Pod); got == nil || got.Spec.NodeName != want.Spec.NodeName {
			t.Errorf("the follower has %v, want %v", got, want)
		}
		return true
	})
}

// pause lets others go on for a random time.
func pause() {
	for range rand.IntN(500) {
		runtime.Gosched()
	}
}

// follow watches for a while from an old state on, and compares.
func follow(ctx context.Context, r *Resource, stop <-chan struct{}) error {
	begin, err := r.Snapshot(ctx, Read{Any: rand.IntN(2) == 0})
	if err != nil {
		return err
	}
	state := func(s *Snapshot) map[string]int64 {
		m := map[string]int64{}
		s.Range(r.prefix, "", func(rec *Record) bool { m[rec.Name] = rec.Revision; return true })
		return m
	}
	have := state(begin)
	if rand.IntN(2) == 0 {
		pause() // until it may be trimmed
	}
	w, err := r.Watch(ctx, begin.Revision, all)
	if err != nil {
		return err
	}
	defer w.Close()
	at := begin.Revision
	for range 20 {
		events, more, err := w.Poll(ctx)
		if err != nil {
			return err
		}
		for _, ev := range events {
			if ev.Record.Revision <= at {
				return fmt.Errorf("got an event of revision %d, want one above %d", ev.Record.Revision, at)
			}
			at = ev.Record.Revision
			switch _, known := have[ev.Record.Name]; {
			case ev.Type == Added && known, ev.Type != Added && !known:
				return fmt.Errorf("got event %d of %s at %d, which is known: %v", ev.Type, ev.Record.Name, at, known)
			case ev.Type == Deleted:
				delete(have, ev.Record.Name)
			default:
				have[ev.Record.Name] = at
			}
		}
		if w.Revision() < at {
			return fmt.Errorf("at revision %d after an event of %d", w.Revision(), at)
		}
		if !w.Synced() {
			continue
		}
		select {
		case <-more:
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	// All up to Revision has been delivered.
	end, err := r.Snapshot(ctx, Read{Exact: max(w.Revision(), at)})
	if err != nil {
		return err
	}
	if want := state(end); !maps.Equal(have, want) {
		return fmt.Errorf("from %d to %d: got %v, want %v", begin.Revision, end.Revision, have, want)
	}
	return nil
}
