package store

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
)

// wants returns requirements: a label, and a node.
func wants(label, node string) (wanted []Equals) {
	if label != "" {
		wanted = append(wanted, Equals{Attribute{Label: "app"}, label})
	}
	if node != "" {
		wanted = append(wanted, Equals{Attribute{Field: "spec.nodeName"}, node})
	}
	return wanted
}

// fulfils reports whether a record fulfils all requirements.
func fulfils(r *Resource, rec *Record, wanted []Equals) bool {
	return !slices.ContainsFunc(wanted, func(w Equals) bool {
		value, ok := r.value(rec, w.Attribute)
		return !ok || value != w.Value
	})
}

// looked lists without an index, as often as one is worth it.
func looked(t *testing.T, r *Resource, wanted []Equals) {
	t.Helper()
	for range indexAfter {
		s, err := r.Snapshot(t.Context(), Read{})
		if err != nil {
			t.Fatal(err)
		}
		r.Looked(s, wanted, indexFrom, 1)
	}
}

// TestSelectFindsWhatRangeFinds writes at random while lists of all that has a label or a
// node, with an index and without, are compared.
func TestSelectFindsWhatRangeFinds(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	random := randomtest.New(t)
	const pods, values = 300, 40
	value := func() string { return fmt.Sprint("v", random.IntN(values)) }
	for i := range pods {
		var labels []string
		if i%3 > 0 {
			labels = []string{"app", value()}
		}
		mustCreate(t, r, newPod(fmt.Sprint("p", i), value(), labels...))
	}
	indexed := 0
	for round := range testsize.Pick(300, 2000, 20000) {
		name := fmt.Sprint("p", random.IntN(pods))
		key := r.Key("default", name)
		switch random.IntN(4) {
		case 0:
			_, _ = r.Delete(t.Context(), key, func(*Record) error { return nil })
		case 1:
			_, _ = r.Create(t.Context(), key, newPod(name, value(), "app", value()), 0)
		default:
			label, node := value(), value()
			_, _ = r.Update(t.Context(), key, func(_ *Record, obj resource.Object) (resource.Object, time.Duration, error) {
				pod := obj.(*corev1.Pod)
				pod.Spec.NodeName, pod.Labels = node, nil
				if label != "v0" {
					pod.Labels = map[string]string{"app": label}
				}
				return pod, 0, nil
			})
		}
		wanted := wants(value(), "")
		switch random.IntN(3) {
		case 1:
			wanted = wants("", value())
		case 2:
			wanted = wants(value(), value())
		}
		if round%50 == 0 {
			looked(t, r, wanted)
		}
		if round%700 == 699 {
			r.reset() // without indexes
		}
		snap, err := r.Snapshot(t.Context(), Read{})
		if err != nil {
			t.Fatal(err)
		}
		start := ""
		if random.IntN(2) == 0 {
			start = r.Key("default", fmt.Sprint("p", random.IntN(pods)))
		}
		var want, got []string
		snap.Range(r.prefix, start, func(rec *Record) bool {
			if fulfils(r, rec, wanted) {
				want = append(want, rec.Key)
			}
			return true
		})
		if !r.Select(snap, r.prefix, start, wanted, func(rec *Record) bool {
			if fulfils(r, rec, wanted) {
				got = append(got, rec.Key)
			}
			return true
		}) {
			continue
		}
		indexed++
		if !slices.Equal(got, want) {
			t.Fatalf("round %d, %v from %q: got %v with the index, want %v", round, wanted, start, got, want)
		}
	}
	if indexed == 0 {
		t.Error("no index was used")
	}
}

// TestIndexWhileWriting makes indexes while others write: what was written meanwhile is in
// them.
func TestIndexWhileWriting(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	const pods = 200
	for i := range pods {
		mustCreate(t, r, newPod(fmt.Sprint("p", i), "", "app", fmt.Sprint("v", i%20)))
	}
	for round := range testsize.Pick(20, 100, 1000) {
		var writing sync.WaitGroup
		for n := range 2 {
			writing.Go(func() {
				for i := range 20 {
					update(t, r, fmt.Sprint("p", (round*7+n*100+i)%pods), func(p *corev1.Pod) { p.Labels["app"] = fmt.Sprint("v", (round+i)%20) })
				}
			})
		}
		looked(t, r, wants("v1", ""))
		writing.Wait()
		snap, err := r.Snapshot(t.Context(), Read{})
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.indexes) != 1 {
			t.Fatalf("got %d indexes, want 1", len(snap.indexes))
		}
		if got := snap.indexes[0].tree.Len(); got != pods {
			t.Fatalf("round %d: got %d entries, want %d", round, got, pods)
		}
		snap.indexes[0].tree.All(func(rec *Record) bool {
			if now, ok := snap.Get(rec.Key); !ok || now != rec {
				t.Errorf("round %d: the index has another %s than the tree", round, rec.Key)
			}
			return true
		})
		r.reset()
	}
}

// TestIndexesAreBounded has lists that ask for ever other labels.
func TestIndexesAreBounded(t *testing.T) {
	s, _ := openStore(t)
	r := s.Resource(podDefinition())
	mustCreate(t, r, newPod("p", ""))
	for i := range 10 * maxHints {
		looked(t, r, []Equals{{Attribute{Label: fmt.Sprint("l", i)}, "v"}})
		if n := len(r.indexes.hints); n > maxHints {
			t.Fatalf("got %d hints, want at most %d", n, maxHints)
		}
	}
	if got := len(r.indexes.all); got != maxIndexes {
		t.Errorf("got %d indexes, want %d: those that were used a moment ago stay", got, maxIndexes)
	}
	r.indexes.all[1].used.Store(time.Now().Add(-2 * indexUnused).UnixNano())
	looked(t, r, wants("v", ""))
	if got := r.indexes.all[maxIndexes-1].by; got.Label != "app" || len(r.indexes.all) != maxIndexes {
		t.Errorf("got %d indexes, the last on %v, want %d and app", len(r.indexes.all), got, maxIndexes)
	}
	looked(t, r, []Equals{{Attribute{Field: "spec.nodeName"}, ""}})
	for _, x := range r.indexes.all {
		if x.by.Field != "" {
			t.Error("there is an index for a value that all have")
		}
	}
}

// BenchmarkSelect lists the 0.1% of 200,000 objects that have a label.
func BenchmarkSelect(b *testing.B) {
	s, _ := openStore(b)
	r := s.Resource(podDefinition())
	for i := range 200_000 {
		mustCreate(b, r, newPod(fmt.Sprint("p", i), "", "app", fmt.Sprint("v", i%1000)))
	}
	wanted := wants("v7", "")
	list := func() (n int) {
		snap, err := r.Snapshot(b.Context(), Read{})
		if err != nil {
			b.Fatal(err)
		}
		match := func(rec *Record) bool {
			if fulfils(r, rec, wanted) {
				n++
			}
			return true
		}
		if !r.Select(snap, r.prefix, "", wanted, match) {
			snap.Range(r.prefix, "", match)
		}
		return n
	}
	for _, name := range []string{"all", "index"} {
		b.Run(name, func(b *testing.B) {
			if name == "index" {
				for range indexAfter {
					snap, err := r.Snapshot(b.Context(), Read{})
					if err != nil {
						b.Fatal(err)
					}
					r.Looked(snap, wanted, indexFrom, 1)
				}
			}
			for b.Loop() {
				if got := list(); got != 200 {
					b.Fatalf("got %d, want 200", got)
				}
			}
		})
	}
}
