package managedfields

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/resource"
)

// TestServed: the types of custom kinds are those of their definitions, as long as they
// are served.
func TestServed(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	converted := 0
	catalogWith := func(listType string) *resource.Catalog {
		own := &spec.Schema{}
		text := `{"type":"object","properties":{"list":{"type":"array","x-kubernetes-list-type":"` + listType + `","items":{"type":"string"}}}}`
		if err := json.Unmarshal([]byte(text), own); err != nil {
			t.Fatal(err)
		}
		catalog, err := resource.NewCatalog(resource.Group{Name: kind.Group, Resources: []resource.Definition{{
			Group: kind.Group, Resource: "widgets", Singular: "widget", Kind: kind.Kind, StorageKey: "example.com/widgets", Hub: kind.Version, Verbs: []string{"get"},
			Versions: []resource.Version{{
				Name: kind.Version, New: func() resource.Object { return newLoose(kind) },
				Schema: func() *spec.Schema { converted++; return own },
			}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return catalog
	}
	catalog := catalogWith("set")
	types := &Served{Catalog: func() *resource.Catalog { return catalog }}
	isAtomic := func() bool {
		t.Helper()
		typ, ok := types.Type(kind)
		if !ok {
			t.Fatal("got no type of a kind that is served")
		}
		def, _ := typ.Schema.Resolve(typ.TypeRef)
		for _, f := range def.Map.Fields {
			if f.Name == "list" {
				list, _ := typ.Schema.Resolve(f.Type)
				return list.List.ElementRelationship == "atomic"
			}
		}
		t.Fatalf("got %+v, want a field list", def.Map)
		return false
	}
	for range 2 {
		if isAtomic() {
			t.Error("got an atomic list, want a set")
		}
	}
	if converted != 1 {
		t.Errorf("got %d conversions of the schema, want one", converted)
	}
	if catalog = catalogWith("atomic"); !isAtomic() {
		t.Error("got a set, want the list of the definition that is served now")
	}
	var err error
	if catalog, err = resource.NewCatalog(); err != nil {
		t.Fatal(err)
	}
	if _, ok := types.Type(kind); ok || len(types.custom) > 0 {
		t.Error("got a type of a kind that is not served any more")
	}
	if _, ok := types.Type(podKind); !ok {
		t.Error("got no type of a built-in kind")
	}
}
