package history

import (
	"strings"
	"testing"
)

// TestComparisonIsBounded compares objects whose paths together are far longer than they
// are themselves: deep, with long names, and wide, with long values.
func TestComparisonIsBounded(t *testing.T) {
	deep := func(leaf any) map[string]any {
		out := map[string]any{}
		for at, n := out, 0; n < 1900; n++ {
			next := map[string]any{}
			at["a"], at[strings.Repeat("b", 500)] = leaf, next
			at = next
		}
		return out
	}
	wide := func(leaf string) map[string]any {
		out := map[string]any{}
		for i := range 5000 {
			out[strings.Repeat("k", i%50+1)+string(rune('a'+i%26))+strings.Repeat("n", i/1000)] = leaf + strings.Repeat("v", 8<<10)
		}
		return out
	}
	for name, pair := range map[string][2]map[string]any{
		"deep": {deep(1), deep(2)}, "deep and new": {{}, deep(2)}, "deep and gone": {deep(1), {}}, "wide": {wide("1"), wide("2")},
	} {
		fields, _ := compare(pair[0], pair[1])
		if got := sizeOf(fields); len(fields) == 0 || got > maxFieldBytes+2*maxValue+2*maxPath {
			t.Errorf("%s: got %d fields with %d bytes, want some, with at most about %d bytes", name, len(fields), got, maxFieldBytes)
		}
		for _, f := range fields {
			if len(f.Path) > 2*maxPath {
				t.Errorf("%s: got a path of %d bytes", name, len(f.Path))
			}
		}
	}
}
