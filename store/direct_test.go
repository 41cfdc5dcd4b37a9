package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/wire"
)

// silentFeed is a backend whose feed brings nothing while it is silent, as that of a
// server whose etcd member does not answer.
type silentFeed struct {
	storage.Backend
	lists atomic.Int64

	mu      sync.Mutex
	resumed chan struct{} // nil unless the feed is silent
}

func (b *silentFeed) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	b.lists.Add(1)
	return b.Backend.List(ctx, prefix, opts)
}

func (b *silentFeed) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := b.Backend.Watch(ctx, prefix, after)
	return silentWatcher{w, b}, err
}

func (b *silentFeed) silence() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resumed = make(chan struct{})
}

func (b *silentFeed) resume() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resumed != nil {
		close(b.resumed)
	}
	b.resumed = nil
}

type silentWatcher struct {
	storage.Watcher
	b *silentFeed
}

func (w silentWatcher) Next(ctx context.Context) (storage.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	w.b.mu.Lock()
	resumed := w.b.resumed
	w.b.mu.Unlock()
	if resumed != nil {
		select {
		case <-resumed:
		case <-ctx.Done():
			return storage.Batch{}, ctx.Err()
		}
	}
	return batch, err
}

func podNames(s *Snapshot) (names []string) {
	if s != nil {
		s.Range("", "", func(r *Record) bool { names = append(names, r.Name); return true })
	}
	return names
}

// createElsewhere writes a pod as another server does.
func (b *silentFeed) createElsewhere(t *testing.T, r *Resource, name string) storage.KeyValue {
	t.Helper()
	value, err := wire.EncodeStored(r.def, newPod(name, ""))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := b.Create(t.Context(), r.Key("default", name), value, 0)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// runSilent runs a test on a store with one pod, in a bubble with a clock of its own. The
// feed is silent from the start of the test on.
func runSilent(t *testing.T, test func(t *testing.T, b *silentFeed, r *Resource)) {
	synctest.Test(t, func(t *testing.T) {
		b := &silentFeed{Backend: memory.New(memory.Options{})}
		s, err := Open(t.Context(), b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		r := s.Resource(podDefinition())
		mustCreate(t, r, newPod("known", ""))
		if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
			t.Fatal(err)
		}
		b.silence()
		test(t, b, r)
		b.resume()
		s.Close()
		b.Close()
	})
}

// A read that the feed keeps waiting reads from the backend, and sees what was
// acknowledged before.
func TestReadsGoPastSilentFeed(t *testing.T) {
	runSilent(t, func(t *testing.T, b *silentFeed, r *Resource) {
		kv := b.createElsewhere(t, r, "new")
		for name, read := range map[string]Read{"newest": {}, "not older than": {AtLeast: kv.ModRevision}} {
			began := time.Now()
			if rec, err := r.Get(t.Context(), kv.Key, read); err != nil || rec.Revision != kv.ModRevision {
				t.Errorf("get, %s: got %+v, %v, want revision %d", name, rec, err, kv.ModRevision)
			}
			if took := time.Since(began); took > getPatience {
				t.Errorf("get, %s: took %v, want at most %v", name, took, getPatience)
			}
			began = time.Now()
			snap, err := r.Snapshot(t.Context(), read)
			if err != nil {
				t.Fatal(err)
			}
			if got := podNames(snap); !slices.Equal(got, []string{"known", "new"}) || snap.Revision < kv.ModRevision {
				t.Errorf("list, %s: got %v at %d, want known and new at %d", name, got, snap.Revision, kv.ModRevision)
			}
			if took := time.Since(began); took > listPatience {
				t.Errorf("list, %s: took %v, want at most %v", name, took, listPatience)
			}
		}
		snap, err := r.Snapshot(t.Context(), Read{Exact: kv.ModRevision - 1})
		if err != nil || !slices.Equal(podNames(snap), []string{"known"}) {
			t.Errorf("exact: got %v, %v, want known", podNames(snap), err)
		}
		_, err = r.Snapshot(t.Context(), Read{Exact: kv.ModRevision + 1})
		if !errors.Is(err, storage.ErrFutureRevision) {
			t.Errorf("exact, in the future: got %v, want %v", err, storage.ErrFutureRevision)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if rec, err := r.Get(ctx, kv.Key, Read{AtLeast: kv.ModRevision + 1}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not older than the future: got %+v, %v, want to wait", rec, err)
		}
	})
}

// Lists that wait at the same time share what one of them reads, and the records that
// have not changed.
func TestListsPastSilentFeedAreShared(t *testing.T) {
	runSilent(t, func(t *testing.T, b *silentFeed, r *Resource) {
		known, err := r.Get(t.Context(), r.Key("default", "known"), Read{Any: true})
		if err != nil {
			t.Fatal(err)
		}
		b.createElsewhere(t, r, "new")
		before := b.lists.Load()
		var readers sync.WaitGroup
		for range 20 {
			readers.Go(func() {
				snap, err := r.Snapshot(t.Context(), Read{})
				if err != nil {
					t.Error(err)
					return
				}
				if rec, _ := snap.Get(known.Key); rec != known {
					t.Error("a record that has not changed was made again")
				}
			})
		}
		readers.Wait()
		if n := b.lists.Load() - before; n != 1 {
			t.Errorf("20 readers read %d times, want once", n)
		}
	})
}

// A watch from a state that was read past the feed gets each later event once, when the
// feed is back.
func TestWatchFromStatePastSilentFeed(t *testing.T) {
	runSilent(t, func(t *testing.T, b *silentFeed, r *Resource) {
		b.createElsewhere(t, r, "before")
		snap, err := r.Snapshot(t.Context(), Read{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := r.WatchFrom(t.Context(), snap, r.prefix, false, all)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		b.createElsewhere(t, r, "after")
		b.resume()
		if got := collect(t, w, 1); len(got) != 1 {
			t.Errorf("got %v, want the event of the pod after", got)
		}
	})
}

// A resource that is first used while the feed is silent is read from the backend too.
func TestFirstReadPastSilentFeed(t *testing.T) {
	runSilent(t, func(t *testing.T, b *silentFeed, r *Resource) {
		fresh := r.store.Resource(definitionAt("fresh", 0))
		kv := b.createElsewhere(t, fresh, "new")
		if rec, err := fresh.Get(t.Context(), kv.Key, Read{}); err != nil || rec.Revision != kv.ModRevision {
			t.Errorf("get: got %+v, %v, want revision %d", rec, err, kv.ModRevision)
		}
		snap, err := fresh.Snapshot(t.Context(), Read{})
		if err != nil || snap.Len() != 1 {
			t.Errorf("list: got %v, %v, want one pod", snap, err)
		}
	})
}
