package managedfields

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/resource"
)

// podOf returns a pod with finalizers and with environment variables, in that order.
func podOf(finalizers, variables []int) *unstructured.Unstructured {
	var set, env []any
	for _, i := range finalizers {
		set = append(set, fmt.Sprintf("a/%06d", i))
	}
	for _, i := range variables {
		env = append(env, map[string]any{"name": fmt.Sprintf("n%06d", i), "value": "v"})
	}
	container := map[string]any{"name": "a", "image": "i"}
	meta := map[string]any{"name": "a", "namespace": "b"}
	if len(set) > 0 {
		meta["finalizers"] = set
	}
	if len(env) > 0 {
		container["env"] = env
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": map[string]any{"containers": []any{container}},
	}}
}

// upTo returns the numbers from 0 to n, without n.
func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestMergeOrderLikeStock applies lists of which some items are the object's, in any order.
func TestMergeOrderLikeStock(t *testing.T) {
	for seed := range randomtest.Seeds(t, scale(400)) {
		r := randomtest.Rand(seed, 11)
		some := func() []int { return r.Perm(9)[:1+r.IntN(8)] }
		ours, err := New(goOptions(podKind))
		if err != nil {
			t.Fatal(err)
		}
		theirs := stockManager(t, ours.opts)
		live, err := bothApply(t, ours, theirs, nil, podOf(some(), some()), "m1", false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			live.SetUID("u")
			live.GetObjectKind().SetGroupVersionKind(podKind)
			age(live)
			patch := podOf(some(), some())
			if live, err = bothApply(t, ours, theirs, live, patch, fmt.Sprintf("m%d", i+2), true); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestApplyInAnotherOrderIsMergedHere applies a long list in reverse: structured-merge-diff, which
// would take minutes, is not asked.
func TestApplyInAnotherOrderIsMergedHere(t *testing.T) {
	m, err := New(goOptions(podKind))
	if err != nil {
		t.Fatal(err)
	}
	items := upTo(20_000)
	live, err := m.Apply(nil, podOf(items, nil), "m1", false, oldTime.Time)
	if err != nil {
		t.Fatal(err)
	}
	backwards := slices.Clone(items)
	slices.Reverse(backwards)
	got, err := m.Apply(live, podOf(backwards, nil), "m1", false, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if list := got.GetFinalizers(); len(list) != len(items) || list[0] != "a/019999" || list[len(list)-1] != "a/000000" {
		t.Errorf("got %d finalizers from %s to %s, want %d in reverse", len(list), list[0], list[len(list)-1], len(items))
	}
}

// TestApplyRefusesLongListsInDisorder removes one item of a long list. That is for
// structured-merge-diff, which takes a time that grows with the square of the items if they are not
// sorted.
func TestApplyRefusesLongListsInDisorder(t *testing.T) {
	m, err := New(goOptions(podKind))
	if err != nil {
		t.Fatal(err)
	}
	items := upTo(12_000)
	backwards := slices.Clone(items)
	slices.Reverse(backwards)
	for _, c := range []struct {
		name        string
		live, patch *unstructured.Unstructured
		code        int
	}{
		{"sorted", podOf(items, nil), podOf(items[1:], nil), http.StatusOK},
		{"the set of the configuration", podOf(items, nil), podOf(backwards[1:], nil), http.StatusRequestEntityTooLarge},
		{"the set of the object", podOf(backwards, nil), podOf(items[1:], nil), http.StatusRequestEntityTooLarge},
		{"the list of the configuration", podOf(nil, items), podOf(nil, backwards[1:]), http.StatusRequestEntityTooLarge},
		{"a shorter list", podOf(nil, backwards[:1000]), podOf(nil, backwards[1:1000]), http.StatusOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			live, err := m.Apply(nil, c.live, "m1", false, oldTime.Time)
			if err != nil {
				t.Fatal(err)
			}
			var got resource.Object
			got, err = m.Apply(live, c.patch, "m1", false, time.Now())
			code := http.StatusOK
			if status, ok := err.(apierrors.APIStatus); ok {
				code = int(status.Status().Code)
			}
			if code != c.code || (got == nil) != (err != nil) {
				t.Errorf("got status %d (%v), want %d", code, err, c.code)
			}
		})
	}
}

// TestInversions counts pairs that are in the wrong order.
func TestInversions(t *testing.T) {
	for seed := range randomtest.Seeds(t, 50) {
		r := randomtest.Rand(seed, 12)
		items := make([]listItem, r.IntN(20))
		for i := range items {
			items[i] = listItem{[]keyVal{{val: scalar{kind: isString, s: string(rune('a' + r.IntN(9)))}}}, i}
		}
		want := 0
		for i := range items {
			for j := range i {
				if compareKeys(items[j].keys, items[i].keys) > 0 {
					want++
				}
			}
		}
		sorted := sortItems(slices.Clone(items))
		got := inversions(items, make([]listItem, len(items)))
		if got != want {
			t.Errorf("got %d pairs, want %d", got, want)
		}
		if !slices.EqualFunc(items, sorted, func(a, b listItem) bool { return a.index == b.index }) {
			t.Errorf("the items are not sorted: %v", items)
		}
	}
}
