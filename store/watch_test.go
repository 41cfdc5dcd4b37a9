package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/wire"
)

// lateFeed is a backend whose feed can be held back, as that of a server which is
// behind its etcd. Watches on one resource, which read the history, go on.
type lateFeed struct {
	storage.Backend
	mu     sync.Mutex  // held while the feed is held back
	breaks atomic.Bool // the feed is to lose its place, once
}

func (b *lateFeed) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := b.Backend.Watch(ctx, prefix, after)
	if err != nil || prefix != storage.Root {
		return w, err
	}
	return lateWatcher{w, b}, nil
}

type lateWatcher struct {
	storage.Watcher
	b *lateFeed
}

func (w lateWatcher) Next(ctx context.Context) (storage.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	if w.b.breaks.CompareAndSwap(true, false) {
		return storage.Batch{}, storage.ErrCompacted
	}
	return batch, err
}

func openLate(t testing.TB) (*Store, *lateFeed) {
	t.Helper()
	b := &lateFeed{Backend: memory.New(memory.Options{})}
	s, err := Open(context.Background(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); b.Close() })
	return s, b
}

func all(*Record) bool { return true }

// TestWatchFromAheadOfCacheNeverRepeats begins a watch at the revision of a write
// whose event has not reached the cache: the client has that object already.
func TestWatchFromAheadOfCacheNeverRepeats(t *testing.T) {
	s, b := openLate(t)
	r := s.Resource(podDefinition())
	mustCreate(t, r, newPod("before", ""))
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	mustCreate(t, r, newPod("early", ""))
	known := mustCreate(t, r, newPod("known", "")).Revision
	w, err := r.Watch(t.Context(), known, all)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	mustCreate(t, r, newPod("after", ""))
	if events, _, err := w.Poll(t.Context()); err != nil || len(events) != 0 {
		t.Errorf("got %v, %v while the feed is held back, want nothing", events, err)
	}
	b.mu.Unlock()
	if got, want := collect(t, w, 1), []string{fmt.Sprintf("ADDED after@%d", known+1)}; !slices.Equal(got, want) {
		t.Errorf("a watch from %d got %q, want %q", known, got, want)
	}
}

// TestWatchFromHistoryToLogNeverRepeats moves a watch to the log of the resource
// when the history of the backend has told it more than the feed has brought.
func TestWatchFromHistoryToLogNeverRepeats(t *testing.T) {
	s, b := openLate(t)
	r := s.Resource(podDefinition())
	first := mustCreate(t, r, newPod("a", "")).Revision
	second := mustCreate(t, r, newPod("b", "")).Revision
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	s.trim()
	s.trim()
	b.mu.Lock()
	third := mustCreate(t, r, newPod("c", "")).Revision
	w, err := r.Watch(t.Context(), first, all)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Synced() {
		t.Fatal("the watch does not begin in the history")
	}
	want := []string{fmt.Sprintf("ADDED b@%d", second), fmt.Sprintf("ADDED c@%d", third)}
	if got := collect(t, w, 2); !slices.Equal(got, want) || !w.Synced() {
		t.Fatalf("from the history: got %q, want %q", got, want)
	}
	last := mustCreate(t, r, newPod("d", "")).Revision
	b.mu.Unlock()
	want = []string{fmt.Sprintf("ADDED d@%d", last)}
	if got := collect(t, w, 1); !slices.Equal(got, want) {
		t.Errorf("from the log: got %q, want %q", got, want)
	}
}

// TestWatchKeepsRevisionTogether fills a resource with events of one revision, as
// etcd does when a lease ends: Revision, which bookmarks tell, must not be that of
// events that are still to come, and none may be left out.
func TestWatchKeepsRevisionTogether(t *testing.T) {
	s, _ := openLate(t)
	r := s.Resource(podDefinition())
	snap, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.WatchFrom(t.Context(), snap, "", false, all)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const events = batchEntries + 10
	batch := storage.Batch{Revision: snap.Revision + 1}
	for i := range events {
		value, err := wire.EncodeStored(podDefinition(), newPod(fmt.Sprint("p", i), ""))
		if err != nil {
			t.Fatal(err)
		}
		kv := storage.KeyValue{Key: r.Key("default", fmt.Sprint("p", i)), Value: value, CreateRevision: batch.Revision, ModRevision: batch.Revision}
		batch.Events = append(batch.Events, storage.Event{Op: storage.Created, KV: kv})
	}
	s.apply(batch)
	for got := 0; got < events; {
		polled, _, err := w.Poll(t.Context())
		if err != nil || len(polled) == 0 {
			t.Fatalf("got %d events and then %d, %v, want %d", got, len(polled), err, events)
		}
		if got += len(polled); w.Revision() >= batch.Revision && got < events {
			t.Fatalf("at revision %d after %d events, want all %d", w.Revision(), got, events)
		}
	}
}

// TestWatchOfQuietHistoryComesToItsEnd begins a watch before the resource was
// loaded, and nothing of the resource has changed since: Poll must not wait for the
// next event, and so keep the watch from its bookmarks and its end.
func TestWatchOfQuietHistoryComesToItsEnd(t *testing.T) {
	b := memory.New(memory.Options{})
	defer b.Close()
	var start, newest int64
	for _, key := range []string{"b/default/one", "b/default/two"} {
		kv, err := b.Create(t.Context(), storage.Root+key, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		start, newest = newest, kv.ModRevision
	}
	s, err := Open(t.Context(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := s.Resource(definitionAt("a", 0))
	w, err := r.Watch(t.Context(), start, all)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Synced() {
		t.Fatal("the watch does not begin in the history")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !w.Synced() {
		if events, _, err := w.Poll(ctx); err != nil || len(events) != 0 {
			t.Fatalf("got %v, %v at revision %d, want to come to %d without events", events, err, w.Revision(), newest)
		}
	}
	if got := w.Revision(); got != newest {
		t.Errorf("got to revision %d, want %d", got, newest)
	}
}

// TestSelectingEndsWithItsRequest cancels a watch while it looks for its first objects.
func TestSelectingEndsWithItsRequest(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	for _, name := range []string{"a", "b", "c"} {
		mustCreate(t, r, newPod(name, "n1"))
	}
	snap, err := r.Snapshot(t.Context(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	looked := 0
	_, err = r.WatchFrom(ctx, snap, r.prefix, true, func(*Record) bool {
		looked++
		cancel()
		return true
	})
	if !errors.Is(err, context.Canceled) || looked != 1 {
		t.Errorf("got %v after %d objects, want %v after one", err, looked, context.Canceled)
	}
}
