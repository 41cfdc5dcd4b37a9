package builtin

import (
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestOnceOfLongErrors has errors that share a text of a megabyte: they are not all
// written to compare them.
func TestOnceOfLongErrors(t *testing.T) {
	detail := strings.Repeat("x", 1<<20)
	first := field.Required(field.NewPath("spec"), "")
	errs := field.ErrorList{first, first}
	for i := range 2000 {
		errs = append(errs, field.Required(field.NewPath("spec").Index(i), detail))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := once(nil, errs)
	runtime.ReadMemStats(&after)
	if len(got) != len(errs)-1 {
		t.Errorf("%d errors, of which one is there twice, are %d", len(errs), len(got))
	}
	if size := after.TotalAlloc - before.TotalAlloc; size > 256<<20 {
		t.Errorf("to compare them takes %d bytes", size)
	}
}
