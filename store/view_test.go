package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage"
	corev1 "k8s.io/api/core/v1"
)

// TestViewShares wants a shared view to decode an object once and others to
// decode it for each caller, all with the resourceVersion.
func TestViewShares(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	first := mustCreate(t, r, newPod("a", "")).Revision
	own, shared := r.View(Read{}), r.View(Read{Acknowledged: true}).Shared()
	get := func(v View) *corev1.Pod {
		t.Helper()
		obj, err := v.Get(t.Context(), "default", "a")
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*corev1.Pod)
	}
	if mine, yours := get(own), get(own); mine == yours {
		t.Error("two callers got the same object, which each of them may change")
	}
	one := get(shared)
	if one != get(shared) {
		t.Error("an object was decoded again")
	}
	if got, want := one.ResourceVersion, fmt.Sprint(first); got != want {
		t.Errorf("got resourceVersion %s, want %s", got, want)
	}
	list, err := shared.List(t.Context(), "")
	if err != nil || len(list) != 1 || list[0] != one {
		t.Errorf("got %v and %v, want the object that was decoded before", list, err)
	}
	update(t, r, "a", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	if got := get(shared).Spec.NodeName; got != "n" {
		t.Errorf("got node %q after a change, want %q", got, "n")
	}
	if list, err := shared.List(t.Context(), "elsewhere"); len(list) != 0 || err != nil {
		t.Errorf("got %v and %v in another namespace, want nothing", list, err)
	}
	if _, err := shared.Get(t.Context(), "default", "none"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("got %v, want not found", err)
	}
}

// TestDecodedObjectsAreBounded reads, and changes, more than may be kept.
func TestDecodedObjectsAreBounded(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	view := r.View(Read{Acknowledged: true}).Shared()
	const each = 512 << 10
	for i := range 3 * maxDecoded / each {
		name := fmt.Sprint("p", i%10) // some are new, some have changed
		if i < 10 {
			mustCreate(t, r, newPod(name, ""))
		}
		update(t, r, name, func(p *corev1.Pod) { p.Spec.NodeName = strings.Repeat("x", each-i) })
		if _, err := view.Get(t.Context(), "default", name); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, d := range r.decoded.byKey {
			kept += d.stored
		}
		if kept != r.decoded.stored || kept > maxDecoded || kept == 0 {
			t.Fatalf("got %d bytes kept and %d counted, want the same, at most %d", kept, r.decoded.stored, maxDecoded)
		}
	}
}
