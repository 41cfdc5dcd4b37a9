package resource

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestDeclaredLast(t *testing.T) {
	path := func(name string) *field.Path { return field.NewPath(name) }
	declared := func(p *field.Path) *field.Error { return Declared(field.Required(p, ""))[0] }
	immutable := func(p *field.Path) *field.Error { return Immutable(p)[0] }
	items := path("items")
	for _, test := range []struct {
		name string
		errs field.ErrorList
		want []string
	}{
		{"none", nil, nil},
		{"one", field.ErrorList{declared(items)}, []string{"items"}},
		{"in the order of the rules", field.ErrorList{declared(path("kind")), field.Required(path("z"), ""), declared(items.Index(0)), field.Required(path("a"), "")},
			[]string{"z", "a", "kind", "items[0]"}},
		{"an origin that is no mark", field.ErrorList{field.Required(path("z"), "").WithOrigin("minimum"), field.Required(path("a"), "")}, []string{"z", "a"}},
		{"what may not change hides the rest", field.ErrorList{
			declared(path("itemsToo")), declared(items.Index(1).Child("name")), immutable(items), declared(items.Child("kind")), Declared(field.TooMany(items, 5, 3))[0],
		}, []string{"items[1].name", "items.kind", "items", "itemsToo", "items"}},
		{"and not that it is missing", field.ErrorList{declared(items), immutable(items), field.Required(path("a"), "")}, []string{"a", "items", "items"}},
		{"what is not declared hides nothing", field.ErrorList{declared(items.Child("kind")), field.Invalid(items, nil, "field is immutable")}, []string{"items", "items.kind"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, err := range DeclaredLast(test.errs) {
				got = append(got, err.Field)
				if IsDeclared(err) {
					t.Errorf("%v is still marked", err)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
