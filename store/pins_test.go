package store

import (
	"slices"
	"testing"

	"github.com/apikeel/kelson/wire"
)

// TestPinsEnd: a state is kept as long as somebody reads on in it, and then goes with
// all that only it had; who comes later gets it from the history.
func TestPinsEnd(t *testing.T) {
	s, b := openStore(t)
	r := s.Resource(podDefinition())
	ctx := t.Context()
	kept := func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.pins)
	}
	old := mustCreate(t, r, newPod("a", ""))
	state, err := r.Snapshot(ctx, Read{})
	if err != nil {
		t.Fatal(err)
	}
	r.Pin(state)
	if _, _, err := b.Delete(ctx, old.Key, old.Revision); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Snapshot(ctx, Read{}); err != nil { // so that it has arrived
		t.Fatal(err)
	}
	page := func() {
		t.Helper()
		got, err := r.Snapshot(ctx, Read{Exact: state.Revision})
		if err != nil || !slices.Equal(names(got, r.prefix), []string{"a@2"}) {
			t.Fatalf("the next page: %v, %v", got, err)
		}
		r.Pin(got)
	}
	for range 4 {
		s.trim()
		page()
	}
	r.mu.Lock()
	own := r.pins[0].own
	r.mu.Unlock()
	if own != old.Size() {
		t.Errorf("%d bytes are counted for a state with an old record of %d", own, old.Size())
	}
	s.trim()
	s.trim()
	if n := kept(); n != 0 {
		t.Fatalf("%d states are kept for nobody", n)
	}
	page()
	if n := kept(); n != 1 {
		t.Fatalf("%d states are kept, not the one from the history", n)
	}
}

// TestPinsBound: there are only so many states, and what they have besides the cache
// is bounded, but for the one that is being read.
func TestPinsBound(t *testing.T) {
	var ps pins
	revisions := func() (out []int64) {
		for _, p := range ps {
			out = append(out, p.Revision)
		}
		return out
	}
	for i := range int64(maxPins + 2) {
		ps.add(&Snapshot{Revision: i})
	}
	if len(ps) != maxPins || ps[0].Revision != 2 {
		t.Errorf("of many %v are left", revisions())
	}
	if ps.find(2) == nil || ps[len(ps)-1].Revision != 2 || ps.find(0) != nil {
		t.Errorf("found, it is the last of %v", revisions())
	}
	ps = nil
	for i := range int64(3) {
		ps.add(&Snapshot{Revision: i, own: maxPinBytes / 2})
	}
	if got := revisions(); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("of large ones %v are left", got)
	}
	ps.outlive(1, 2) // state 1 is older
	if got := revisions(); !slices.Equal(got, []int64{2}) {
		t.Errorf("after the log has dropped something %v are left", got)
	}
	ps.outlive(maxPinBytes, 3)
	if got := revisions(); !slices.Equal(got, []int64{2}) {
		t.Errorf("the one that is being read: %v", got)
	}
}

// TestLogDrops: the log tells what it drops, for want of room and with time.
func TestLogDrops(t *testing.T) {
	record := func(size int) *Record { return wire.NewRecord(Record{}, make([]byte, size), nil, nil, nil, nil) }
	l := newEventLog(nil)
	first, second := record(10), record(logBytes)
	if n := l.append(logEntry{revision: 1, now: first}); n != 0 {
		t.Errorf("an entry of something new drops %d", n)
	}
	if n := l.append(logEntry{revision: 2, old: first, now: record(20)}); n != 0 {
		t.Errorf("there is room, and %d are dropped", n)
	}
	if n := l.append(logEntry{revision: 3, now: second}); n != first.Size() {
		t.Errorf("%d bytes are dropped, not the record of %d", n, first.Size())
	}
	if n, left := l.trim(); n != 0 || !left {
		t.Errorf("a first trim drops %d, and there is more: %v", n, left)
	}
	l.append(logEntry{revision: 4, old: second})
	if n, left := l.trim(); n != 0 || !left {
		t.Errorf("a trim drops %d, and there is more: %v", n, left)
	}
	if n, left := l.trim(); n != second.Size() || left {
		t.Errorf("a last trim drops %d, and there is more: %v", n, left)
	}
}
