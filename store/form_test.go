package store

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
)

// TestFormsShared makes an encoding once for all who ask, the writer and the
// cache among them.
func TestFormsShared(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition(), podCodec{})
	if _, err := r.Snapshot(context.Background(), Read{}); err != nil {
		t.Fatal(err)
	}
	made := 0
	encode := func(rec *Record) ([]byte, error) { made++; return []byte(fmt.Sprint(rec.Revision)), nil }
	written := mustCreate(t, r, newPod("a", ""))
	first, err := written.Form(1, encode)
	if err != nil {
		t.Fatal(err)
	}
	read, err := r.Get(context.Background(), written.Key, Read{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := read.Form(1, encode)
	if err != nil {
		t.Fatal(err)
	}
	if made != 1 || !bytes.Equal(first, second) || read.Revision != written.Revision {
		t.Errorf("made %d times: %s at %d, %s at %d", made, first, written.Revision, second, read.Revision)
	}
	if other, _ := read.Form(2, encode); made != 2 || !bytes.Equal(other, first) {
		t.Errorf("another form: made %d times, %s", made, other)
	}
	// What an object was before it went is another record.
	if gone, _ := read.at(read.Revision+1).Form(1, encode); bytes.Equal(gone, first) {
		t.Error("the last state of an object has the form of an earlier one")
	}
}

// TestFormBudget asks for more encodings than may be kept.
func TestFormBudget(t *testing.T) {
	s, _ := openStore(t)
	const limit, size, objects = 64 << 10, 1 << 10, 300
	s.forms.limit = limit
	r := s.Resource(podDefinition(), podCodec{})
	for i := range objects {
		mustCreate(t, r, newPod(fmt.Sprintf("p%03d", i), ""))
	}
	snap, err := r.Snapshot(context.Background(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	kept := func() (bytes int) {
		s.eachForms(func(fs *forms) {
			for f := fs.first.Load(); f != nil; f = f.next {
				bytes += f.size
			}
		})
		return bytes
	}
	var readers sync.WaitGroup
	for reader := range 4 {
		readers.Go(func() {
			for range 5 {
				snap.Range(r.prefix, "", func(rec *Record) bool {
					b, err := rec.Form(FormID(reader%2), func(*Record) ([]byte, error) { return bytes.Repeat([]byte{byte(reader % 2)}, size), nil })
					if err != nil || len(b) != size || b[0] != byte(reader%2) {
						t.Errorf("%s: %d bytes, %v", rec.Key, len(b), err)
					}
					return true
				})
			}
		})
	}
	readers.Wait()
	// Readers that add while another sweeps may go over it a little. The last of them
	// may have swept all away; then there is room.
	if n := kept(); n > 2*limit {
		t.Errorf("%d bytes of forms are kept, the limit is %d", n, limit)
	}
	again := 0
	for range 10 {
		snap.Range(r.prefix, "", func(rec *Record) bool {
			_, _ = rec.Form(0, func(*Record) ([]byte, error) { again++; return make([]byte, size), nil })
			return false // the first is enough
		})
	}
	if again > 2 {
		t.Errorf("a form that is asked for ten times was made %d times", again)
	}
}

// TestFormBudgetKeepsUsed drops what nobody uses first.
func TestFormBudgetKeepsUsed(t *testing.T) {
	s, _ := openStore(t)
	const size = 1 << 10
	s.forms.limit = 16 * size
	r := s.Resource(podDefinition(), podCodec{})
	var recs []*Record
	for i := range 40 {
		mustCreate(t, r, newPod(fmt.Sprintf("p%03d", i), ""))
	}
	snap, err := r.Snapshot(context.Background(), Read{})
	if err != nil {
		t.Fatal(err)
	}
	snap.Range(r.prefix, "", func(rec *Record) bool { recs = append(recs, rec); return true })
	made := map[string]int{}
	get := func(rec *Record) {
		if _, err := rec.Form(0, func(rec *Record) ([]byte, error) { made[rec.Key]++; return make([]byte, size), nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range recs {
		get(recs[0])
		get(recs[i])
	}
	if n := made[recs[0].Key]; n > 3 {
		t.Errorf("the form that is used all the time was made %d times", n)
	}
}
