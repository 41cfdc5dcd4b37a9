package crd

import (
	"reflect"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/resource"
)

// served makes the definition of a custom resource from its versions.
func served(t *testing.T, versions string) (*resource.Definition, *resource.Catalog) {
	t.Helper()
	crd := named("foos", "Foo", true)
	crd.Spec.Versions = nil
	if err := yaml.Unmarshal([]byte(versions), &crd.Spec.Versions); err != nil {
		t.Fatal(err)
	}
	server, db := quietServer(), &states{t: t}
	db.put(crd)
	server.updateEntries(db.all)
	def := server.entries[crd.Name].definition
	if def == nil {
		t.Fatal("it is not served")
	}
	catalog, err := resource.NewCatalog(resource.Group{Name: "example.com", Resources: []resource.Definition{*def}})
	if err != nil {
		t.Fatal(err)
	}
	return def, catalog
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return obj
}

const differing = `
- name: v2
  served: true
  storage: true
  subresources: {status: {}, scale: {specReplicasPath: .spec.count, statusReplicasPath: .status.count}}
  schema: {openAPIV3Schema: {type: object, properties: {
    spec: {type: object, properties: {a: {type: string, default: hub}, count: {type: integer}, x: {type: string}}}, status: {type: object, properties: {count: {type: integer}}}}}}
- name: v1
  served: true
  storage: false
  deprecated: true
  subresources: {scale: {specReplicasPath: .spec.x, statusReplicasPath: .status.x}}
  schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {b: {type: string}, x: {type: integer}}}}}}
- name: v1beta1
  served: true
  storage: false
  deprecated: true
  deprecationWarning: go away
  schema: {openAPIV3Schema: {type: object}}
`

// TestSubresources: every version has its own.
func TestSubresources(t *testing.T) {
	_, catalog := served(t, differing)
	for version, want := range map[string][]string{"v2": {"status", "scale"}, "v1": {"scale"}, "v1beta1": nil} {
		s, ok := catalog.Lookup("example.com", version, "foos")
		if !ok {
			t.Fatal(version)
		}
		var got []string
		for sub := range s.Subresources() {
			got = append(got, sub.Name)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s has %v, want %v", version, got, want)
		}
	}
	obj := object(t, `{apiVersion: example.com/v2, kind: Foo, metadata: {name: a}, spec: {count: 2, x: 3}}`)
	for version, want := range map[string]int32{"v2": 2, "v1": 3} {
		s, _ := catalog.Lookup("example.com", version, "foos")
		scale, err := s.Subresource("scale").Projection.Get(obj)
		if err != nil || scale.(*autoscalingv1.Scale).Spec.Replicas != want {
			t.Errorf("%s: %v, %v", version, scale, err)
		}
	}
}

func TestDeprecation(t *testing.T) {
	def, _ := served(t, differing)
	for i, want := range []string{"", "example.com/v1 Foo is deprecated; use example.com/v2 Foo", "go away"} {
		if got := def.Versions[i].Deprecation; got != want {
			t.Errorf("%s: %q", def.Versions[i].Name, got)
		}
	}
}

// TestVersionsDiffer: an object has in a version what that knows.
func TestVersionsDiffer(t *testing.T) {
	def, _ := served(t, differing)
	stored := object(t, `{apiVersion: example.com/v2, kind: Foo, metadata: {name: a}, spec: {a: hub, x: 1}}`)
	read, err := def.Versions[1].FromHub(stored)
	if err != nil {
		t.Fatal(err)
	}
	want := object(t, `{apiVersion: example.com/v1, kind: Foo, metadata: {name: a}, spec: {x: 1}}`)
	if !reflect.DeepEqual(read, resource.Object(want)) {
		t.Errorf("%v", read)
	}
	if _, ok, _ := unstructured.NestedString(stored.Object, "spec", "a"); !ok {
		t.Error("reading has changed what is stored")
	}
	sent := object(t, `{apiVersion: example.com/v1, kind: Foo, metadata: {name: a}, spec: {b: only here, x: 1}}`)
	kept, err := def.Versions[1].ToHub(sent)
	if err != nil {
		t.Fatal(err)
	}
	want = object(t, `{apiVersion: example.com/v2, kind: Foo, metadata: {name: a}, spec: {x: 1}}`)
	if !reflect.DeepEqual(kept, resource.Object(want)) {
		t.Errorf("%v", kept)
	}
	if _, ok, _ := unstructured.NestedString(sent.Object, "spec", "b"); !ok {
		t.Error("storing has changed what was sent")
	}
}

// TestBookmarks: no webhook is asked about what is no object.
func TestBookmarks(t *testing.T) {
	h := converting(t, func(*apiextensions.ConversionReview, []map[string]any) { t.Error("it was asked") })
	mark := object(t, `{apiVersion: example.com/v1, kind: Foo, metadata: {resourceVersion: "7", annotations: {k8s.io/initial-events-end: "true"}}}`)
	out, err := h.convert([]resource.Object{mark}, "example.com/v2")
	if err != nil || out[0].GetResourceVersion() != "7" || content(out[0])["apiVersion"] != "example.com/v2" {
		t.Errorf("%v, %v", out, err)
	}
}
