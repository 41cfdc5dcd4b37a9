package store

import (
	"testing"
)

// TestProgress: what a watcher is up to date with, which is what bookmarks say,
// goes on with writes that it does not see, and is past the initial state only
// when that has been taken.
func TestProgress(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	ctx := t.Context()
	seen := mustCreate(t, r, newPod("a", "n1"))
	snap, err := r.Snapshot(ctx, Read{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := r.WatchFrom(ctx, snap, r.prefix, true, func(rec *Record) bool { return rec.Key == seen.Key })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if w.Synced() {
		t.Error("synced before the initial state was taken")
	}
	events, _, err := w.Poll(ctx)
	if err != nil || len(events) != 1 || events[0].Type != Added || !w.Synced() || w.Revision() != snap.Revision {
		t.Fatalf("%v %v, synced %v, at %d", events, err, w.Synced(), w.Revision())
	}
	unseen := mustCreate(t, r, newPod("b", "n1"))
	if err := s.WaitFor(ctx, unseen.Revision); err != nil {
		t.Fatal(err)
	}
	events, _, err = w.Poll(ctx)
	if err != nil || len(events) != 0 || w.Revision() != unseen.Revision {
		t.Errorf("%v %v, at %d instead of %d", events, err, w.Revision(), unseen.Revision)
	}
}
