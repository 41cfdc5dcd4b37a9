package builtin_test

import (
	"reflect"
	"testing"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/recorded"
)

// TestColumns compares the columns of tables with those that kubectl users know.
func TestColumns(t *testing.T) {
	type column struct {
		Name, Type, Format, Description string
		Priority                        int32
	}
	want := recorded.ReadOne[map[string][]column](t, "testdata/columns.json.gz")
	got := map[string][]column{}
	for _, g := range builtin.Groups(builtin.Config{}) {
		for _, d := range g.Resources {
			name := "v1/" + d.Resource
			if g.Name != "" {
				name = g.Name + "/" + name
			}
			for _, c := range d.Columns {
				got[name] = append(got[name], column(c))
			}
		}
	}
	for name, columns := range want {
		if !reflect.DeepEqual(got[name], columns) {
			t.Errorf("%s:\n%+v\nwant\n%+v", name, got[name], columns)
		}
	}
}

// TestDefinitions wants what every definition needs.
func TestDefinitions(t *testing.T) {
	keys := map[string]string{}
	for _, g := range builtin.Groups(builtin.Config{}) {
		for _, d := range g.Resources {
			if d.Group != g.Name || d.Resource == "" || d.Kind == "" || len(d.Versions) == 0 {
				t.Errorf("%s/%s: incomplete: group %q, kind %q, %d versions", g.Name, d.Resource, d.Group, d.Kind, len(d.Versions))
			}
			if (d.Columns == nil) != (d.Cells == nil) {
				t.Errorf("%s: columns without cells, or cells without columns", d.Resource)
			}
			for _, v := range d.Versions {
				if v.New == nil || v.New() == nil || d.Answer == nil && len(d.Verbs) != 1 && v.NewList == nil {
					t.Errorf("%s: version %s cannot make objects", d.Resource, v.Name)
				}
				for name, path := range v.FieldNames {
					found := false
					for _, f := range d.Fields {
						found = found || f.Path == path
					}
					if !found {
						t.Errorf("%s: %s stands for the unknown field %s", d.Resource, name, path)
					}
				}
			}
			if d.StorageKey != "" && keys[d.StorageKey] != "" {
				t.Errorf("%s and %s have the storage key %s", d.Resource, keys[d.StorageKey], d.StorageKey)
			}
			keys[d.StorageKey] = d.Resource
			for _, s := range d.Subresources {
				n := 0
				for _, set := range []bool{s.Part != nil, s.Projection != nil, s.Action != nil, s.Connect != nil} {
					if set {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%s/%s: %d of Part, Projection, Action and Connect are set", d.Resource, s.Name, n)
				}
			}
		}
	}
}

// TestGatesExist wants the gates that kinds and fields are behind to be in the table,
// and to be ones that can be set here.
func TestGatesExist(t *testing.T) {
	table := features.Kubernetes()
	kinds, fields := 0, 0
	check := func(what, gate string) {
		if got := table[gate].Does; got != features.DoesHere {
			t.Errorf("%s is behind the gate %q: got does=%s in gates.txt, want does=%s", what, gate, got, features.DoesHere)
		}
	}
	for _, g := range builtin.Groups(builtin.Config{}) {
		for _, d := range g.Resources {
			if d.Gate != "" {
				kinds++
				check(d.Resource, d.Gate)
			}
			for _, f := range d.GatedFields {
				fields++
				check(d.Resource+" "+f.Path, f.Gate)
			}
		}
	}
	if kinds < 8 || fields < 30 {
		t.Errorf("got %d kinds and %d fields behind gates, want at least 8 and 30", kinds, fields)
	}
}
