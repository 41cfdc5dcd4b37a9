package api

import (
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
