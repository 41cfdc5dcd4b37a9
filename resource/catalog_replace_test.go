package resource

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kindIn returns a definition with versions in groups; "" is its own.
func kindIn(resource, kind string, groups ...string) Definition {
	d := Definition{Resource: resource, Kind: kind}
	for _, g := range groups {
		v := Version{
			Name: "v1", Group: g,
			New:     func() Object { return &corev1.ConfigMap{} },
			NewList: func() runtime.Object { return &corev1.ConfigMapList{} },
			ToHub:   func(o Object) (Object, error) { return o, nil },
			FromHub: func(o Object) (Object, error) { return o, nil },
		}
		d.Versions = append(d.Versions, v)
	}
	return d
}

// TestReplaceSharesTheRest: a replaced definition is found wherever the other one was,
// and everything else is the same value as before.
func TestReplaceSharesTheRest(t *testing.T) {
	off := kindIn("offs", "Off", "")
	off.Versions = append(off.Versions, kindIn("offs", "Off", "").Versions[0])
	off.Versions[1].Name, off.Versions[1].Off = "v2", true
	off.StoreAs = "v2"
	base, err := NewCatalog(
		Group{Name: "a", Resources: []Definition{kindIn("zs", "Z", ""), kindIn("bs", "B", "", "other"), off}},
		Group{Name: "c", Resources: []Definition{kindIn("ds", "D", "")}},
	)
	if err != nil {
		t.Fatal(err)
	}
	other := off
	other.Versions = append([]Version{}, off.Versions...)
	other.Versions[1].Off = false
	other.StoreAs = ""
	got, err := base.Replace(Group{Name: "a", Resources: []Definition{kindIn("bs", "B", "", "other"), other, kindIn("unknowns", "U", "")}}, Group{Name: "unknown"})
	if err != nil {
		t.Fatal(err)
	}
	same := func(c *Catalog, group, name string) bool {
		a, _ := base.Lookup(group, "v1", name)
		b, ok := c.Lookup(group, "v1", name)
		return ok && a == b
	}
	if !same(got, "a", "zs") || !same(got, "c", "ds") {
		t.Error("a definition that was not replaced is another one")
	}
	if base.byName["c"] != got.byName["c"] {
		t.Error("a group that was not changed is another one")
	}
	if d, _ := got.Definition("a", "offs"); d.StorageVersion().Name != "v2" {
		t.Errorf("objects are stored in %s, want v2 as before", d.StorageVersion().Name)
	}
	replaced, _ := got.Definition("a", "bs")
	for _, group := range []string{"a", "other"} {
		s, ok := got.Lookup(group, "v1", "bs")
		if !ok || s.Definition != replaced || same(got, group, "bs") {
			t.Errorf("in group %s the definition was not replaced", group)
		}
		if k, _ := got.LookupKind(s.GroupVersionKind()); k != s {
			t.Errorf("in group %s the kind leads to another definition", group)
		}
	}
	if g := got.byName["a"].Versions[0].Resources; len(g) != 3 || g[0].Definition.Resource != "zs" || g[1].Definition != replaced {
		t.Errorf("got %d resources in another order, want that of before", len(g))
	}
	if _, ok := got.Lookup("a", "v2", "offs"); ok {
		t.Error("a version is served that was off before")
	}
	if all := got.Definitions(); len(all) != 4 {
		t.Errorf("got %d definitions, want 4", len(all))
	}
	if _, err := base.Replace(Group{Name: "a", Resources: []Definition{kindIn("bs", "B", "")}}); err == nil {
		t.Error("a definition with fewer versions was taken")
	}
}
