package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage"
)

// TestFailedWritesLeaveNothing wants no records of creates that have failed.
func TestFailedWritesLeaveNothing(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mustCreate(t, r, newPod(fmt.Sprint("p", i), ""))
	}
	for i := range 100 {
		name := fmt.Sprint("p", i)
		if _, err := r.Create(t.Context(), r.Key("default", name), newPod(name, "other"), 0); !errors.Is(err, storage.ErrExists) {
			t.Fatalf("got %v, want that it exists", err)
		}
	}
	last := mustCreate(t, r, newPod("c", "")).Revision
	if err := s.WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending.records) != 0 || r.pending.bytes != 0 {
		t.Errorf("got %d pending records with %d bytes, want none", len(r.pending.records), r.pending.bytes)
	}
}

// TestPendingRecordsAreBounded holds events back while large objects are written.
func TestPendingRecordsAreBounded(t *testing.T) {
	s, g := openGated(t)
	r := s.Resource(podDefinition())
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	const each = 512 << 10
	var last int64
	for i := range 2 * maxPending / each {
		last = mustCreate(t, r, newPod(fmt.Sprint("p", i), strings.Repeat("x", each))).Revision
	}
	r.mu.Lock()
	bytes, n := r.pending.bytes, len(r.pending.records)
	r.mu.Unlock()
	g.mu.Unlock()
	if bytes > maxPending || n == 0 {
		t.Errorf("got %d pending records with %d bytes, want some, with at most %d", n, bytes, maxPending)
	}
	if err := s.WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending.bytes != 0 {
		t.Errorf("got %d bytes pending after all events, want none", r.pending.bytes)
	}
}
