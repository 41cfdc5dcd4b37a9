package api

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestSelectedLists lists the few of many objects that have a label, whole and in pages,
// again and again: the answers are the same with an index and without, and right after
// objects have got and lost the label.
func TestSelectedLists(t *testing.T) {
	server := kelsontest.Start(t, kelsontest.NoControllers())
	objects := kubernetes.NewForConfigOrDie(server.Config()).CoreV1().ConfigMaps("default")
	const many, rare = 2500, 100 // every rare-th has the label
	for i := range many {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%04d", i), Labels: map[string]string{"all": "yes"}}}
		if i%rare == 0 {
			o.Labels["some"] = "yes"
		}
		if _, err := objects.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// pages lists in pages, and returns the names in each, and whether more were announced.
	pages := func(selector string, limit int64) (all []string) {
		o := metav1.ListOptions{LabelSelector: selector, Limit: limit}
		for {
			list, err := objects.List(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, item := range list.Items {
				names = append(names, item.Name)
			}
			text, err := json.Marshal(names)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s %v %v", text, list.Continue != "", list.RemainingItemCount))
			if o.Continue = list.Continue; o.Continue == "" {
				return all
			}
		}
	}
	limits := []int64{0, 1, 5, many / rare, many}
	var want [][]string
	for _, limit := range limits {
		want = append(want, pages("some in (yes,never)", limit)) // for which there is no index
	}
	for round := range 3 {
		for i, limit := range limits {
			if got := pages("some=yes,all in (yes)", limit); !slices.Equal(got, want[i]) {
				t.Errorf("round %d, pages of %d: got %s, want %s", round, limit, got, want[i])
			}
		}
	}
	label := func(name string, value any) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{"some": value}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := objects.Patch(t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("c0001", "yes")
	label("c0100", nil)
	label("c0200", "no")
	if err := objects.Delete(t.Context(), "c0300", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var names []string
	list, err := objects.List(t.Context(), metav1.ListOptions{LabelSelector: "some=yes", Limit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		names = append(names, item.Name)
	}
	if want := []string{"c0000", "c0001", "c0400"}; !slices.Equal(names, want) {
		t.Errorf("after changes: got %v, want %v", names, want)
	}
}
