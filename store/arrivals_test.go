package store

import (
	"context"
	"fmt"
	"testing"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	corev1 "k8s.io/api/core/v1"
)

// heldList is a backend whose first list waits after it has read.
type heldList struct {
	storage.Backend
	read, resume chan struct{}
	held         bool
}

func (b *heldList) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	page, err := b.Backend.List(ctx, prefix, opts)
	if !b.held {
		b.held = true
		close(b.read)
		<-b.resume
	}
	return page, err
}

// TestLoadIsBounded writes more while a resource is loaded than is kept of it: the
// memory is bounded, and neither the objects nor the events of a watch are lost.
func TestLoadIsBounded(t *testing.T) {
	b := &heldList{Backend: memory.New(memory.Options{}), read: make(chan struct{}), resume: make(chan struct{})}
	defer b.Close()
	s, err := Open(t.Context(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := s.Resource(podDefinition())
	r.counted.Store(true) // writes do not load it
	start := mustCreate(t, r, newPod("a", "")).Revision
	loaded := make(chan error)
	go func() {
		_, err := r.Snapshot(context.Background(), Read{})
		loaded <- err
	}()
	<-b.read
	const size, writes = 256 << 10, 200 // 50 MB
	large := make([]byte, size)
	for i := range large {
		large[i] = 'x'
	}
	var last int64
	for i := range writes {
		last = update(t, r, "a", func(p *corev1.Pod) { p.Annotations = map[string]string{"n": fmt.Sprint(i, string(large))} }).Revision
	}
	gone := mustCreate(t, r, newPod("b", "")).Revision
	remove(t, r, "b")
	if err := s.WaitFor(t.Context(), gone+1); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	if got := r.arrived.bytes; got > maxArrivals {
		t.Errorf("got %d bytes of events, want at most %d", got, maxArrivals)
	}
	r.mu.Unlock()
	close(b.resume)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if rec, err := r.Get(t.Context(), r.Key("default", "a"), Read{}); err != nil || rec.Revision != last {
		t.Errorf("got %v, %v, want revision %d", rec, err, last)
	}
	w, err := r.Watch(t.Context(), start, all)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got := collect(t, w, writes+2)
	for i, want := range got[:writes] {
		if want != fmt.Sprintf("MODIFIED a@%d", start+1+int64(i)) {
			t.Fatalf("got %q as event %d, want every update", got[i], i)
		}
	}
	if want := []string{fmt.Sprintf("ADDED b@%d", gone), fmt.Sprintf("DELETED b@%d", gone+1)}; fmt.Sprint(got[writes:]) != fmt.Sprint(want) {
		t.Errorf("got %q in the end, want %q", got[writes:], want)
	}
}
