package controlplane

import "testing"

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
