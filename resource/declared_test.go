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

// TestBetaRulesGiveWayToHandWrittenOnes: what is declared in beta is reported by one of its
// two forms, by the declared one last.
func TestBetaRulesGiveWayToHandWrittenOnes(t *testing.T) {
	errs := func() field.ErrorList {
		spec := field.NewPath("spec")
		list := BetaInstead(field.ErrorList{field.Required(spec.Child("verbs"), "")}, field.ErrorList{field.Required(spec.Child("verbs"), "at least one")})
		list = append(list, DeclaredBeta(field.Required(spec.Child("name"), ""))...)
		list = append(list, BetaInstead(nil, field.ErrorList{field.Required(spec.Child("only"), "by hand")})...)
		list = append(list, Declared(field.Required(spec.Child("new"), ""))...)
		list = append(list, DeclaredBeta(field.Required(field.NewPath("frozen", "part"), ""))...)
		list = append(list, ImmutableValue(field.NewPath("frozen"), "x")...)
		return append(list, field.Required(spec.Child("last"), ""))
	}
	for _, test := range []struct {
		beta bool
		want []string
	}{
		{true, []string{
			"spec.only: Required value: by hand", "frozen.part: Required value", "spec.last: Required value",
			"spec.verbs: Required value", "spec.name: Required value", "spec.new: Required value", "frozen: Invalid value: null: field is immutable",
		}},
		{false, []string{
			"spec.verbs: Required value: at least one", "spec.name: Required value", "spec.only: Required value: by hand",
			"frozen.part: Required value", `frozen: Invalid value: "x": field is immutable`, "spec.last: Required value", "spec.new: Required value",
		}},
	} {
		list := errs()
		if !test.beta {
			list = dropBeta(list)
		}
		var got []string
		for _, err := range DeclaredLast(list) {
			got = append(got, err.Error())
			if err.Origin != "" {
				t.Errorf("beta %t: %v is still marked", test.beta, err)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("beta %t: got %q, want %q", test.beta, got, test.want)
		}
	}
}
