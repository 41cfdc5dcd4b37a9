package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/memory"
)

// TestCreatesAreRefusedWhenMemoryIsFull: there is no memory for one more object. Updates and
// deletes go on, and deletes make room.
func TestCreatesAreRefusedWhenMemoryIsFull(t *testing.T) {
	onDisk, err := engine.Open(engine.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]storage.Backend{"on disk": onDisk, "in memory": memory.New(memory.Options{})} {
		t.Run(name, func(t *testing.T) {
			const room = 20
			s, err := Open(t.Context(), b, Options{ValueBytes: 1 << 20, ObjectBytes: room * objectMemory})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close(); b.Close() })
			r := s.Resource(podDefinition())
			create := func(i int) error {
				if err := s.current(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.objects.measured.Store(0) // it is measured now
				p := newPod(fmt.Sprint("p", i), "n", "i", "1")
				_, err := r.Create(t.Context(), r.Key(p.Namespace, p.Name), p, 0)
				return err
			}
			created := 0
			for ; err == nil && created < 2*room; created++ {
				err = create(created)
			}
			created--
			if !errors.Is(err, storage.ErrNoSpace) || !strings.Contains(err.Error(), "memory limit") {
				t.Fatalf("after %d objects: got %v, want an error that says that memory is full", created, err)
			}
			if created > room || name == "on disk" && created != room {
				t.Errorf("got %d objects, want at most %d", created, room)
			}
			if created == 0 {
				t.Fatal("not even one object was created")
			}
			update(t, r, fmt.Sprint("p", created-1), func(p *corev1.Pod) { p.Spec.NodeName = "other" })
			for i := range created {
				if _, err := r.Delete(t.Context(), r.Key("default", fmt.Sprint("p", i)), func(*Record) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
			revision, err := b.Revision(t.Context())
			if err == nil {
				err = b.Compact(t.Context(), revision)
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := create(created); err != nil {
				t.Errorf("after deletes: got %v, want that one more is created", err)
			}
		})
	}
}
