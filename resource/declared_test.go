package resource

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestDeclaredLast(t *testing.T) {
	declared := []string{"kind: Required value", "items: Too many", "items: Invalid value: field is immutable", "items[*].name: Required value", "items[*].parts[*].size: Invalid value: at least", "items[*].end: Required value"}
	items := field.NewPath("items")
	for _, test := range []struct {
		name string
		errs field.ErrorList
		want []string
	}{
		{"one", field.ErrorList{field.Required(items.Index(0).Child("name"), "")}, []string{"items[0].name"}},
		{"rules first", field.ErrorList{field.Required(field.NewPath("kind"), ""), field.Required(field.NewPath("z"), ""), field.Required(field.NewPath("a"), "")},
			[]string{"z", "a", "kind"}},
		{"by index, then by field", field.ErrorList{
			field.Required(items.Index(10).Child("name"), ""), field.Required(items.Index(2).Child("end"), ""), field.Required(items.Index(2).Child("name"), ""),
			field.Invalid(items.Index(2).Child("parts").Index(1).Child("size"), 0, "must be at least 1"), field.TooMany(items, 5, 3),
		}, []string{"items", "items[2].name", "items[2].parts[1].size", "items[2].end", "items[10].name"}},
		{"another type, another text", field.ErrorList{
			field.Required(field.NewPath("kind"), ""), field.Invalid(items.Index(0).Child("name"), "", "x"), field.Invalid(items.Index(0).Child("parts").Index(0).Child("size"), 0, "odd"),
		}, []string{"items[0].name", "items[0].parts[0].size", "kind"}},
		{"what may not change hides the rest", field.ErrorList{
			field.Required(items.Index(1).Child("name"), ""), field.Invalid(items, 0, "field is immutable"), field.TooMany(items, 5, 3), field.Required(field.NewPath("kind"), ""),
		}, []string{"items[1].name", "items", "kind", "items"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, err := range DeclaredLast(test.errs, declared) {
				got = append(got, err.Field)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
