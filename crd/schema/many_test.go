package schema

import (
	"context"
	"strings"
	"testing"
)

// TestManyErrors has lists and maps in which everything is wrong: some errors are listed,
// and one says that there are more.
func TestManyErrors(t *testing.T) {
	s := mustCompile(t, `{type: object, properties: {
		list: {type: array, items: {type: string}},
		map: {type: object, additionalProperties: {type: string}},
		either: {x-kubernetes-preserve-unknown-fields: true, anyOf: [{items: {type: string}}, {items: {type: integer}}]}}}`)
	numbers := func(n int) (list []any) {
		for i := range n {
			list = append(list, int64(i))
		}
		return list
	}
	if errs := s.Validate(context.Background(), map[string]any{"list": numbers(maxFound)}); len(errs) != maxFound {
		t.Errorf("%d wrong items are %d errors", maxFound, len(errs))
	}
	// Without a bound this would take minutes.
	errs := s.Validate(context.Background(), map[string]any{"list": numbers(100_000)})
	if len(errs) != maxFound+1 || !strings.Contains(errs[maxFound].Detail, "list has more problems than are listed") {
		t.Errorf("many wrong items are %d errors, the last %v", len(errs), errs[len(errs)-1])
	}
	wrong := map[string]any{}
	for i := range 50_000 {
		wrong[strings.Repeat("x", i%100)+string(rune('a'+i%26))+strings.Repeat("y", i/100)] = int64(1)
	}
	if errs := s.Validate(context.Background(), map[string]any{"map": wrong}); len(errs) != maxFound+1 {
		t.Errorf("many wrong properties are %d errors, want %d", len(errs), maxFound+1)
	}
	// What one alternative finds says nothing about the other.
	if errs := s.Validate(context.Background(), map[string]any{"either": numbers(2 * maxFound), "list": numbers(1)}); len(errs) != 1 {
		t.Errorf("a wrong item is %d errors beside a list that only one alternative allows: %v", len(errs), errs)
	}
}
