package controller_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// conditionsOf returns what an object says of itself, a line each.
func conditionsOf(obj *unstructured.Unstructured) (all []string) {
	conditions, _, _ := unstructured.NestedSlice(obj.Object, "status", "conditions")
	for _, x := range conditions {
		x := x.(map[string]any)
		all = append(all, fmt.Sprintf("%v %v %v: %v", x["type"], x["status"], x["reason"], x["message"]))
	}
	return all
}

// Objects are stored in the version that is the one to store, when somebody asks
// for that, and the definition knows it.
func TestMigration(t *testing.T) {
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	c := start(t, kelsontest.Backend(backend))
	c.define(apiextensions.NamespaceScoped)
	for i := range 3 {
		c.widget(ns, fmt.Sprint("old-", i))
	}
	const more = `[{"op":"replace","path":"/spec/versions/0/storage","value":false},
		{"op":"add","path":"/spec/versions/-","value":{"name":"v2","served":true,"storage":true,
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]`
	definitions := c.dynamic.Resource(crds)
	must(definitions.Patch(t.Context(), "widgets.example.com", types.JSONPatchType, []byte(more), metav1.PatchOptions{}))(t)
	// The definition is in force when what is written is stored in the new version.
	stored := func(version string) int {
		t.Helper()
		page := must(backend.List(t.Context(), storage.Root+"example.com/widgets/", storage.ListOptions{}))(t)
		n := 0
		for _, kv := range page.Items {
			if bytes.Contains(kv.Value, []byte(`"example.com/`+version+`"`)) {
				n++
			}
		}
		return n
	}
	for i := 0; stored("v2") == 0; i++ {
		c.widget(ns, fmt.Sprint("new-", i))
	}
	if stored("v1") < 3 {
		t.Fatal("nothing is to be migrated")
	}
	for _, name := range []string{"first", "second"} {
		must(c.StoragemigrationV1().StorageVersionMigrations().Create(t.Context(), &migrationv1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: "widgets"}},
		}, metav1.CreateOptions{}))(t)
	}
	c.until(migrationv1.SchemeGroupVersion.WithResource("storageversionmigrations"), "", func(objs map[string]*unstructured.Unstructured) bool {
		for _, name := range []string{"first", "second"} {
			version, _, _ := unstructured.NestedString(objs["/"+name].Object, "status", "resourceVersion")
			if version == "" || strings.Join(conditionsOf(objs["/"+name]), "\n") != "Running False MigrationCompleted: Migration completed\n"+
				"Succeeded True StorageVersionMigrationSucceeded: Migration completed" {
				return false
			}
		}
		return true
	})
	if n := stored("v1"); n != 0 {
		t.Errorf("%d objects are stored in the old version", n)
	}
	c.until(crds, "", func(objs map[string]*unstructured.Unstructured) bool {
		crd := objs["/widgets.example.com"]
		versions, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
		return slices.Equal(versions, []string{"v2"}) && slices.Contains(conditionsOf(crd),
			"StorageMigrating False MigrationSucceeded: The migration has succeeded and the stored versions have been updated")
	})
}
