package store

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// lockable is a backend whose values cannot be decrypted while it is locked, and that
// counts reads of a key.
type lockable struct {
	storage.Backend
	locked atomic.Bool
	gets   atomic.Int64
}

var errLocked = errors.New("no key")

// Get implements storage.Backend.
func (b *lockable) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	b.gets.Add(1)
	kv, err := b.Backend.Get(ctx, key)
	if err == nil && b.locked.Load() {
		kv.Value, kv.Err = nil, errLocked
		err = kv.Err
	}
	return kv, err
}

// TestDoubtIsConfirmedOnce reads objects after their keys have changed: each once from the
// backend, and never what the cache alone has.
func TestDoubtIsConfirmedOnce(t *testing.T) {
	ctx := t.Context()
	b := &lockable{Backend: memory.New(memory.Options{})}
	s, err := Open(ctx, b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); b.Close() })
	r := s.Resource(podDefinition())
	mustCreate(t, r, newPod("a", ""))
	get := func(name string, read Read, wantErr error, wantGets int64) {
		t.Helper()
		b.gets.Store(0)
		rec, err := r.Get(ctx, r.Key("default", name), read)
		if !errors.Is(err, wantErr) || err == nil && rec.Name != name || b.gets.Load() != wantGets {
			t.Errorf("get of %s: got %v, %v and %d reads of the backend, want %v and %d reads", name, rec, err, b.gets.Load(), wantErr, wantGets)
		}
	}
	doubt := func(yes bool) {
		t.Helper()
		if err := s.Doubt(ctx, func(def *resource.Definition) bool { return yes && def.Resource == "pods" }); err != nil {
			t.Fatal(err)
		}
	}
	get("a", Read{}, nil, 0)
	b.locked.Store(true)
	doubt(false)
	get("a", Read{}, nil, 0)
	doubt(true)
	get("a", Read{}, errLocked, 1)
	get("a", Read{}, errLocked, 1)
	get("a", Read{Any: true}, nil, 0)
	get("none", Read{}, storage.ErrNotFound, 0)
	mustCreate(t, r, newPod("b", ""))
	get("b", Read{}, nil, 0)
	if snap, err := r.Snapshot(ctx, Read{}); err != nil || snap.Len() != 2 {
		t.Errorf("snapshot: got %v, %v, want two objects of the cache", snap, err)
	}
	b.locked.Store(false)
	get("a", Read{}, nil, 1)
	get("a", Read{}, nil, 0)
	doubt(true)
	get("a", Read{}, nil, 1)
	get("b", Read{}, nil, 1)
}
