package store

import (
	"bytes"
	"context"
	"fmt"
	"testing"
)

// TestEncodingsAreShared makes an encoding once for all who ask, the writer and the
// cache among them.
func TestEncodingsAreShared(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	if _, err := r.Snapshot(context.Background(), Read{}); err != nil {
		t.Fatal(err)
	}
	made := 0
	encode := func(rec *Record) ([]byte, error) { made++; return []byte(fmt.Sprint(rec.Revision)), nil }
	written := mustCreate(t, r, newPod("a", ""))
	first, err := written.Encoding(1, encode)
	if err != nil {
		t.Fatal(err)
	}
	read, err := r.Get(context.Background(), written.Key, Read{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := read.Encoding(1, encode)
	if err != nil {
		t.Fatal(err)
	}
	if made != 1 || !bytes.Equal(first, second) || read.Revision != written.Revision {
		t.Errorf("made %d times: %s at %d, %s at %d", made, first, written.Revision, second, read.Revision)
	}
	if other, _ := read.Encoding(2, encode); made != 2 || !bytes.Equal(other, first) {
		t.Errorf("another encoding: made %d times, %s", made, other)
	}
	// What an object was before it went is another record.
	if gone, _ := read.At(read.Revision+1).Encoding(1, encode); bytes.Equal(gone, first) {
		t.Error("the last state of an object has the encoding of an earlier one")
	}
}
