//go:build unix

package managedfields

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// BenchmarkApplyOrder applies long lists and sets in the order of the object and in reverse, with
// all items and with one less than before.
func BenchmarkApplyOrder(b *testing.B) {
	m, err := New(goOptions(podKind))
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{200 << 10, 750 << 10, 3 << 20} {
		for _, shape := range []string{"set", "list"} {
			make, bytes := podOf, 11
			if shape == "list" {
				make, bytes = func(a, b []int) *unstructured.Unstructured { return podOf(b, a) }, 32
			}
			items := upTo(size / bytes)
			live, err := m.Apply(nil, make(items, nil), "gitops", false, oldTime.Time)
			if err != nil {
				b.Fatal(err)
			}
			backwards := slices.Clone(items)
			slices.Reverse(backwards)
			for order, list := range map[string][]int{"same": items, "reversed": backwards, "shorter": items[1:], "shorter-reversed": backwards[1:]} {
				b.Run(fmt.Sprintf("%s/%dKiB/%s", shape, size>>10, order), func(b *testing.B) {
					patch := make(list, nil)
					defer measureCPU(b)()
					for b.Loop() {
						if _, err := m.Apply(live, patch, "gitops", false, time.Now()); err != nil && err != error(errUnsorted) {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}
