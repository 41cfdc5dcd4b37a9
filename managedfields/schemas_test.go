package managedfields

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// TestSchemas checks that a schema tells which lists are what, and that the types
// it refers to are there.
func TestSchemas(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	own := &spec.Schema{}
	if err := json.Unmarshal([]byte(`{"type":"object","properties":{
		"metadata":{"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]},
		"spec":{"type":"object","properties":{
			"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
			"plain":{"type":"array","items":{"type":"string"}}}}}}`), own); err != nil {
		t.Fatal(err)
	}
	types := &Schemas{Builtin: &Builtin{}, Schema: func(k schema.GroupVersionKind) *spec.Schema {
		if k == kind {
			return own
		}
		return nil
	}}
	var c Cache
	k, ok := c.kind(types, kind)
	if !ok {
		t.Fatal("the kind has no type")
	}
	in := k.typ.field("spec")
	if in.field("set").list.atomic || !in.field("plain").list.atomic {
		t.Error("a set is atomic, or a plain list is not")
	}
	if owners := k.typ.field("metadata").field("ownerReferences"); owners == nil || len(owners.list.keys) != 1 {
		t.Error("the metadata has no type")
	}
	if _, ok := c.kind(types, kind.GroupKind().WithVersion("v2")); ok {
		t.Error("a kind without a schema has a type")
	}
	c.Forget(types)
	c.kinds.Range(func(key, _ any) bool {
		t.Errorf("%v is kept", key)
		return true
	})
}
