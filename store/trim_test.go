package store

import (
	"runtime"
	"slices"
	"testing"
	"weak"
)

// TestTrim: events that are forgotten are still there for those who ask for
// them, and for watchers that have not come that far.
func TestTrim(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	start := mustCreate(t, r, newPod("a", "")).Revision
	if _, err := r.Snapshot(t.Context(), Read{}); err != nil {
		t.Fatal(err)
	}
	all := func(*Record) bool { return true }
	slow, err := r.Watch(t.Context(), start, all)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	last := mustCreate(t, r, newPod("b", "")).Revision
	if err := s.WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	quick, err := r.Watch(t.Context(), last, all)
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	s.trim()
	last = mustCreate(t, r, newPod("c", "")).Revision
	if err := s.WaitFor(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	s.trim()
	r.mu.Lock()
	left := len(r.log.entries)
	r.mu.Unlock()
	if left != 1 {
		t.Fatalf("%d events are left, want the last one", left)
	}
	late, err := r.Watch(t.Context(), start, all)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	for name, w := range map[string]*Watcher{"slow": slow, "late": late} {
		if got := collect(t, w, 2); !slices.Equal(got, []string{"ADDED b@3", "ADDED c@4"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := collect(t, quick, 1); !slices.Equal(got, []string{"ADDED c@4"}) {
		t.Errorf("quick: %q", got)
	}
}

// TestWatchLetsGo: a watch that has told of the state it began with does not keep it.
func TestWatchLetsGo(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	ctx := t.Context()
	w, first := func() (*Watcher, weak.Pointer[Record]) { // so that nothing else has it
		mustCreate(t, r, newPod("a", ""))
		state, err := r.Snapshot(ctx, Read{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := r.WatchFrom(ctx, state, r.prefix, true, func(*Record) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		events, _, err := w.Poll(ctx)
		if err != nil || len(events) != 1 {
			t.Fatalf("%v, %v", events, err)
		}
		return w, weak.Make(events[0].Record)
	}()
	defer w.Close()
	if _, _, err := b.Delete(ctx, r.Key("default", "a"), 2); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, w, 1); !slices.Equal(got, []string{"DELETED a@3"}) {
		t.Fatalf("%q", got)
	}
	s.trim()
	s.trim()
	for range 10 {
		if runtime.GC(); first.Value() == nil {
			return
		}
	}
	t.Error("the record that was deleted is still there")
}
