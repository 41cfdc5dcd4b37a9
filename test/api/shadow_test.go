package api

import (
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// TestDefinitionsInBuiltinGroups: whoever may create CustomResourceDefinitions can
// neither take the place of a built-in kind nor delete its objects, nor keep other
// definitions from being served.
func TestDefinitionsInBuiltinGroups(t *testing.T) {
	server := kelsontest.Start(t)
	c, typed := dynamic.NewForConfigOrDie(server.Config()), kubernetes.NewForConfigOrDie(server.Config())
	ctx := t.Context()
	definitions := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	must(typed.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: named("mine")}, metav1.CreateOptions{}))(t)

	define := func(group, plural, kind string, versions ...string) {
		t.Helper()
		var all []any
		for i, v := range versions {
			all = append(all, fields{"name": v, "served": true, "storage": i == 0, "schema": fields{"openAPIV3Schema": fields{"type": "object"}}})
		}
		must(definitions.Create(ctx, &unstructured.Unstructured{Object: fields{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": fields{"name": plural + "." + group, "annotations": fields{"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/1"}},
			"spec":     fields{"group": group, "scope": "Namespaced", "names": fields{"plural": plural, "kind": kind}, "versions": all},
		}}, metav1.CreateOptions{}))(t)
	}
	builtin := []struct{ group, plural, kind string }{
		{"apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition"},
		{"apiextensions.k8s.io", "others", "Other"},
		{"apiregistration.k8s.io", "apiservices", "APIService"},
		{"rbac.authorization.k8s.io", "roles", "Role"},
		{"networking.k8s.io", "foos", "Foo"},
	}
	for _, d := range builtin {
		define(d.group, d.plural, d.kind, "v1", "v7")
	}
	define("example.com", "things", "Thing", "v1")

	things := c.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}).Namespace("default")
	must(things.Create(ctx, &unstructured.Unstructured{Object: fields{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": fields{"name": "a"}}}, metav1.CreateOptions{}))(t)
	for _, gvr := range []schema.GroupVersionResource{
		{Group: "networking.k8s.io", Version: "v1", Resource: "foos"},
		{Group: "rbac.authorization.k8s.io", Version: "v7", Resource: "roles"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "others"},
	} {
		if _, err := c.Resource(gvr).Namespace("default").List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got %v, want not found", gvr, err)
		}
	}
	// A version without built-in kinds in the group of the definitions is free.
	must(c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v7", Resource: "others"}).Namespace("default").List(ctx, metav1.ListOptions{}))(t)
	list := must(typed.Discovery().ServerResourcesForGroupVersion("networking.k8s.io/v1"))(t)
	for _, r := range list.APIResources {
		if r.Name == "foos" {
			t.Error("a custom resource is in the discovery of a built-in group")
		}
	}
	if n := len(must(typed.RbacV1().Roles("default").List(ctx, metav1.ListOptions{}))(t).Items); n != 1 {
		t.Errorf("%d roles are listed, want 1", n)
	}

	for _, d := range builtin {
		if err := definitions.Delete(ctx, d.plural+"."+d.group, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	polltest.Until(t, "only the definition of things is left", func() bool {
		return len(must(definitions.List(ctx, metav1.ListOptions{}))(t).Items) == 1
	})
	if n := len(must(typed.RbacV1().Roles("default").List(ctx, metav1.ListOptions{}))(t).Items); n != 1 {
		t.Errorf("%d roles are listed after the definition was deleted, want 1", n)
	}
	must(things.Get(ctx, "a", metav1.GetOptions{}))(t)
}
