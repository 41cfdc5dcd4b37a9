package controlplane

import (
	"slices"
	"testing"
)

func TestReadHeap(t *testing.T) {
	before := readHeap()
	garbage := make([]byte, 1<<20)
	now := readHeap()
	if now.allocated < before.allocated+uint64(len(garbage)) {
		t.Errorf("%d bytes were allocated before, %d after a megabyte more", before.allocated, now.allocated)
	}
	if now.live == 0 && now.idle == 0 {
		t.Error("the runtime does not say what memory is used for")
	}
}

func TestGiveBack(t *testing.T) {
	const mb = 1 << 20
	var q quiet
	var use heapUse
	for i, c := range []struct {
		allocated, live, idle uint64 // the first since the moment before
		want                  bool
	}{
		{100 * mb, 50 * mb, 50 * mb, false}, // busy
		{mb, 50 * mb, 51 * mb, true},
		{mb, 50 * mb, mb, false},
		{mb, 50 * mb, 2 * mb, false},
		{mb, 50 * mb, 3 * mb, false},
		{mb, 50 * mb, 4 * mb, false},
		{mb, 50 * mb, 5 * mb, true}, // caches have dropped what they had
		{mb, 10 * mb, mb, false},
		{mb, 10 * mb, 5 * mb, true}, // the runtime has collected by itself
		{5 * mb, 10 * mb, 5 * mb, false},
		{mb, 10 * mb, 3 * mb, false},
	} {
		use = heapUse{allocated: use.allocated + c.allocated, live: c.live, idle: c.idle}
		if got := q.due(use); got != c.want {
			t.Errorf("moment %d: due is %v", i, got)
		}
	}
	// Caches drop what they have for a minute and a half; after that nothing changes.
	q, use = quiet{}, heapUse{live: 50 * mb, idle: mb}
	var due []int
	for moment := 1; moment <= 4*lastLook; moment++ {
		if q.due(use) {
			due = append(due, moment)
		}
	}
	if want := []int{6, 12, 18}; !slices.Equal(due, want) {
		t.Errorf("at rest: got %v, want %v", due, want)
	}
}
