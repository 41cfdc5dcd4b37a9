package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage"
	corev1 "k8s.io/api/core/v1"
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

// TestReplaceIsRefusedForAnOldState checks that Replace writes in place of the newest state only,
// and nothing if it would change nothing.
func TestReplaceIsRefusedForAnOldState(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	first := mustCreate(t, r, newPod("a", "n1"))
	second, err := r.Replace(t.Context(), first, newPod("a", "n2"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Fields(second).Get("spec.nodeName"); got != "n2" || second.Revision <= first.Revision {
		t.Errorf("the record has node %q and revision %d, want n2 and more than %d", got, second.Revision, first.Revision)
	}
	for name, next := range map[string]*corev1.Pod{"something else": newPod("a", "n3"), "what it was": newPod("a", "n1")} {
		if _, err := r.Replace(t.Context(), first, next, 0); !errors.Is(err, storage.ErrConflict) {
			t.Errorf("%s in place of an old state: got %v, want a conflict", name, err)
		}
	}
	before, _ := b.Revision(t.Context())
	same, err := r.Replace(t.Context(), second, newPod("a", "n2"), 0)
	if after, _ := b.Revision(t.Context()); err != nil || same.Revision != second.Revision || after != before {
		t.Errorf("the same again: got revision %d and %v, the store went from %d to %d", same.Revision, err, before, after)
	}
	if _, err := r.Delete(t.Context(), second.Key, func(*Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, next := range []*corev1.Pod{newPod("a", "n2"), newPod("a", "n3")} {
		if _, err := r.Replace(t.Context(), second, next, 0); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("in place of what is gone: got %v, want that it is not found", err)
		}
	}
}
