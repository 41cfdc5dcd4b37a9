package crd

import (
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
)

// TestOwnersOfVersions: who owns what is looked for in objects as the request sees
// them. Other versions get those as they are, and what they do not know is in the
// way of an apply; an update leaves owners alone then.
func TestOwnersOfVersions(t *testing.T) {
	for _, hub := range []string{"v1", "v2"} {
		_, catalog := served(t, strings.NewReplacer("is"+hub, "true", "isv1", "false", "isv2", "false").Replace(`
- {name: v1, served: true, storage: isv1, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}, c: {type: string}}}}}}}
- {name: v2, served: true, storage: isv2, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {b: {type: string}, c: {type: string}}}}}}}
`))
		var owners managedfields.Owners
		at := func(version string) *resource.Served {
			s, ok := catalog.Lookup("example.com", version, "foos")
			if !ok {
				t.Fatal(version)
			}
			return s
		}
		apply := func(version, manager string, live resource.Object, spec string) (resource.Object, error) {
			patch := `{"apiVersion":"example.com/` + version + `","kind":"Foo","metadata":{"name":"x"},"spec":` + spec + `}`
			return owners.Apply(at(version), "", live, []byte(patch), manager, true, time.Now())
		}
		sets := func(obj resource.Object) (all []string) {
			for _, e := range obj.GetManagedFields() {
				all = append(all, e.Manager+" "+string(e.FieldsV1.GetRawBytes()))
			}
			return all
		}
		live, err := apply("v1", "m1", nil, `{"a":"1","c":"1"}`)
		if err != nil {
			t.Fatal(err)
		}
		if v := live.GetObjectKind().GroupVersionKind().Version; v != "v1" {
			t.Errorf("hub %s: the result is of %s", hub, v)
		}
		live.SetUID("u")
		if live, err = at("v1").Version.ToHub(live); err == nil {
			live, err = at("v2").Version.FromHub(live)
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = apply("v2", "m2", live.DeepCopyObject().(resource.Object), `{"b":"1"}`)
		if want := "failed to convert new object: .spec.b: field not declared in schema"; err == nil || err.Error() != want {
			t.Errorf("hub %s: %v, want %s", hub, err, want)
		}
		if _, err = apply("v2", "m2", live.DeepCopyObject().(resource.Object), `{"c":"2"}`); err != nil {
			t.Errorf("hub %s: what both versions know: %v", hub, err)
		}
		// The writer sees what its version knows.
		changed := live.DeepCopyObject().(resource.Object)
		content(changed)["spec"] = map[string]any{"b": "2", "c": "1"}
		owned, err := owners.Update(at("v2"), "", live, changed, "u2", time.Now())
		if got := strings.Join(sets(owned), "; "); err == nil || got != `m1 {"f:spec":{"f:a":{},"f:c":{}}}` {
			t.Errorf("hub %s: %v, owners %s", hub, err, got)
		}
		content(changed)["spec"] = map[string]any{"c": "9"}
		owned, err = owners.Update(at("v2"), "", live, changed, "u2", time.Now())
		if got := strings.Join(sets(owned), "; "); err != nil || got != `m1 {"f:spec":{"f:a":{}}}; u2 {"f:spec":{"f:c":{}}}` {
			t.Errorf("hub %s: %v, owners %s", hub, err, got)
		}
	}
}

// TestOwnersOfWrong: nobody comes to own anything by a write of what does not fit
// the schema, be it where the write cannot change anything, or where only another
// owner's version has it.
func TestOwnersOfWrong(t *testing.T) {
	_, catalog := served(t, `
- {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: {type: string}}}, status: {type: object, properties: {n: {type: integer}}}}}}}
- {name: v2, served: true, storage: false, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {b: {type: string}}}, status: {type: object, properties: {n: {type: integer}}}}}}}
`)
	v1, _ := catalog.Lookup("example.com", "v1", "foos")
	var owners managedfields.Owners
	write := func(subresource string, live resource.Object, text string) (resource.Object, error) {
		obj := object(t, `{apiVersion: example.com/v1, kind: Foo, metadata: {name: x, uid: u}, `+text+`}`)
		return owners.Update(v1, subresource, live, obj, "m", time.Now())
	}
	if obj, err := write("", nil, `spec: {a: x}, status: {n: wrong}`); err == nil || len(obj.GetManagedFields()) != 0 {
		t.Errorf("wrong where nothing changes: %v, %v", obj.GetManagedFields(), err)
	}
	live, err := write("", nil, `spec: {a: x}, status: {n: 1}`)
	if err != nil || len(live.GetManagedFields()) != 1 {
		t.Fatal(live, err)
	}
	v2, _ := catalog.Lookup("example.com", "v2", "foos")
	other := object(t, `{apiVersion: example.com/v2, kind: Foo, metadata: {name: x, uid: u}, spec: {}}`)
	if _, err := owners.Update(v2, "", nil, other, "n", time.Now()); err != nil {
		t.Fatal(err)
	}
	live.SetManagedFields(append(live.GetManagedFields(), other.GetManagedFields()...))
	// Of v2, spec.a is wrong.
	if obj, err := write("status", live, `spec: {a: x}, status: {n: 2}`); err == nil || len(obj.GetManagedFields()) != 2 {
		t.Errorf("wrong in another version: %v, %v", obj.GetManagedFields(), err)
	}
}
