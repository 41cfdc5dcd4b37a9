package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	corev1 "k8s.io/api/core/v1"
)

// distrust compares what a store says of keys during commits and reads with what is on disk.
type distrust struct {
	storage.Backend
	t             *testing.T
	found, absent atomic.Int64 // versions, and keys without one, that the store knew
}

type distrustful struct {
	storage.Watcher
	of *distrust
}

// Watch implements storage.Backend.
func (d *distrust) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := d.Backend.Watch(ctx, prefix, after)
	return distrustful{w, d}, err
}

// Push implements storage.Pusher.
func (w distrustful) Push(f func(storage.Batch)) error { return w.Watcher.(storage.Pusher).Push(f) }

// PushAsking implements storage.AskingPusher.
func (w distrustful) PushAsking(f func(storage.Batch), lookup storage.Lookup) error {
	return w.Watcher.(storage.AskingPusher).PushAsking(f, func(key string) (storage.KeyValue, int64, bool) {
		d := w.of
		committed, err := d.Backend.Revision(context.Background())
		kv, seen, ok := lookup(key)
		if err != nil || !ok || seen < committed {
			return kv, seen, ok
		}
		// A Get would ask again.
		page, err := d.Backend.List(context.Background(), key, storage.ListOptions{Limit: 1})
		if err != nil {
			d.t.Error(err)
		}
		var on storage.KeyValue
		if len(page.Items) > 0 && page.Items[0].Key == key {
			on = page.Items[0]
		}
		if page.Revision != committed {
			return kv, seen, ok // it is a Get that asks, and somebody writes
		}
		if kv.ModRevision != on.ModRevision || kv.CreateRevision != on.CreateRevision || !bytes.Equal(kv.Value, on.Value) {
			d.t.Errorf("%s: the cache has revision %d, created at %d; on disk are %d and %d", key, kv.ModRevision, kv.CreateRevision, on.ModRevision, on.CreateRevision)
		}
		if kv.ModRevision == 0 {
			d.absent.Add(1)
		} else {
			d.found.Add(1)
		}
		return kv, seen, ok
	})
}

// TestCachesAnswerCommits: what caches tell the backend while it commits is what is on disk,
// whatever is written at the same time, and after a restart.
func TestCachesAnswerCommits(t *testing.T) {
	dir := t.TempDir()
	const keys, writes = 60, 150
	for round := range 3 { // of a process that does not remember what the one before has written
		disk, err := engine.Open(engine.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		d := &distrust{Backend: disk, t: t}
		s, err := Open(t.Context(), d, Options{ValueBytes: 16 << 10}) // some are out of memory
		if err != nil {
			t.Fatal(err)
		}
		r := s.Resource(podDefinition())
		if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for n := range 6 {
			writers.Go(func() {
				for i := range writes {
					name := fmt.Sprint("p", rand.IntN(keys*(round+1)))
					ttl := time.Duration(rand.IntN(2)) * time.Hour
					var err error
					switch rand.IntN(3) {
					case 0:
						_, err = r.Create(t.Context(), r.Key("default", name), newPod(name, ""), ttl)
					case 1:
						_, err = r.Update(t.Context(), r.Key("default", name), func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
							obj.(*corev1.Pod).Spec.NodeName = fmt.Sprint(round, "-", n, "-", i)
							return obj, ttl, nil
						})
					case 2:
						_, err = r.Delete(t.Context(), r.Key("default", name), func(*Record) error { return nil })
					}
					if err != nil && !errors.Is(err, storage.ErrExists) && !errors.Is(err, storage.ErrNotFound) {
						t.Error(err)
					}
				}
			})
		}
		writers.Wait()
		if d.absent.Load() == 0 || round > 0 && d.found.Load() == 0 {
			t.Errorf("round %d: the caches knew %d versions and %d keys without one, want some of both", round, d.found.Load(), d.absent.Load())
		}
		s.Close()
		if err := disk.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
