package api

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/apikeel/kelson/kelsontest"
)

// TestChangedDefinition: a definition that was changed holds for the next request, with
// nothing to wait for: what it allows, and which versions there are.
func TestChangedDefinition(t *testing.T) {
	c := dynamic.NewForConfigOrDie(kelsontest.Start(t).Config())
	ctx := t.Context()
	definitions := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	version := func(name string, stored bool) fields {
		return fields{"name": name, "served": true, "storage": stored, "schema": fields{"openAPIV3Schema": fields{
			"type": "object", "properties": fields{"size": fields{"type": "integer", "maximum": int64(0)}}}}}
	}
	if _, err := definitions.Create(ctx, &unstructured.Unstructured{Object: fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": "things.example.com"},
		"spec": fields{"group": "example.com", "scope": "Cluster", "names": fields{"plural": "things", "kind": "Thing"},
			"versions": []any{version("v1", true), version("v2", false)}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	change := func(patch string) {
		t.Helper()
		if _, err := definitions.Patch(ctx, "things.example.com", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create := func(version string, size int64) error {
		_, err := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "things"}).Create(ctx, &unstructured.Unstructured{Object: fields{
			"apiVersion": "example.com/" + version, "kind": "Thing", "metadata": fields{"generateName": "thing-"}, "size": size,
		}}, metav1.CreateOptions{})
		return err
	}
	for i := range int64(50) {
		if err := create("v1", i+1); !apierrors.IsInvalid(err) {
			t.Fatalf("round %d: more than is allowed: %v", i, err)
		}
		change(fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/size/maximum","value":%d}]`, i+1))
		if err := create("v1", i+1); err != nil {
			t.Fatalf("round %d: what is allowed now: %v", i, err)
		}
		if err := create("v2", 0); err != nil {
			t.Fatalf("round %d: the other version: %v", i, err)
		}
		change(`[{"op":"replace","path":"/spec/versions/1/served","value":false}]`)
		if err := create("v2", 0); !apierrors.IsNotFound(err) {
			t.Fatalf("round %d: the version that is not served any longer: %v", i, err)
		}
		change(`[{"op":"replace","path":"/spec/versions/1/served","value":true}]`)
	}
}

// TestDeletedDefinitionTellsWatchers: who watches custom objects sees each of them go when
// their definition is deleted, before the watch ends.
func TestDeletedDefinitionTellsWatchers(t *testing.T) {
	c := dynamic.NewForConfigOrDie(kelsontest.Start(t).Config())
	ctx := t.Context()
	definitions := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	things := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"})
	for round := range 5 {
		if _, err := definitions.Create(ctx, &unstructured.Unstructured{Object: fields{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": "things.example.com"},
			"spec": fields{"group": "example.com", "scope": "Cluster", "names": fields{"plural": "things", "kind": "Thing"},
				"versions": []any{fields{"name": "v1", "served": true, "storage": true, "schema": fields{"openAPIV3Schema": fields{"type": "object"}}}}},
		}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		const number = 20
		for range number {
			if _, err := things.Create(ctx, &unstructured.Unstructured{Object: fields{
				"apiVersion": "example.com/v1", "kind": "Thing", "metadata": fields{"generateName": "thing-"},
			}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		list, err := things.List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != number {
			t.Fatalf("got %d things, %v, want %d", len(list.Items), err, number)
		}
		w, err := things.Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatal(err)
		}
		gone, err := definitions.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=things.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if err := definitions.Delete(ctx, "things.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		deleted := 0
		for e := range w.ResultChan() {
			if e.Type == watch.Deleted {
				deleted++
			}
		}
		if deleted != number {
			t.Errorf("round %d: got %d events that things were deleted, want %d", round, deleted, number)
		}
		for e := range gone.ResultChan() {
			if e.Type == watch.Deleted {
				gone.Stop()
			}
		}
	}
}
