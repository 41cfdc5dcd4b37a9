package rest

import (
	"context"
	"testing"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestObjects does what parts of the server do to the objects of a resource,
// and expects the errors that clients get.
func TestObjects(t *testing.T) {
	ctx := context.Background()
	h := serveConfigMaps(t, 0, 0, 0)
	maps := h.Objects("", "configmaps")
	if err := h.Objects("", "none").Create(ctx, newConfigMap("a")); err == nil {
		t.Error("there are objects of a resource that nobody knows")
	}
	if err := maps.Create(ctx, newConfigMap("a")); err != nil {
		t.Fatal(err)
	}
	if err := maps.Create(ctx, newConfigMap("a")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("create again: %v", err)
	}
	if err := maps.Create(ctx, newConfigMap("")); !apierrors.IsInvalid(err) {
		t.Errorf("create without a name: %v", err)
	}
	obj, err := maps.Get(ctx, "default", "a")
	if err != nil || obj.GetUID() == "" || obj.GetResourceVersion() == "" {
		t.Fatalf("get: %+v, %v", obj, err)
	}
	if !maps.Has(ctx, "default", "a") || maps.Has(ctx, "default", "b") {
		t.Error("Has is wrong")
	}
	if objs, err := maps.Cached().List(ctx, ""); err != nil || len(objs) != 1 {
		t.Errorf("cached list: %d, %v", len(objs), err)
	}
	if _, err := maps.Cached().Get(ctx, "default", "b"); !apierrors.IsNotFound(err) {
		t.Errorf("cached get: %v", err)
	}
	set := func(obj resource.Object) error {
		obj.(*corev1.ConfigMap).Data = map[string]string{"k": "v"}
		return nil
	}
	if err := maps.Update(ctx, "default", "b", set); !apierrors.IsNotFound(err) {
		t.Errorf("update: %v", err)
	}
	if err := maps.Update(ctx, "default", "a", set); err != nil {
		t.Errorf("update: %v", err)
	}
	was := obj.GetResourceVersion()
	only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &was}}
	if err := maps.Delete(ctx, "default", "a", only); !apierrors.IsConflict(err) {
		t.Errorf("delete of what has changed: %v", err)
	}
	if err := maps.Delete(ctx, "default", "a", metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := maps.Delete(ctx, "default", "a", metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("delete again: %v", err)
	}
}

// TestPrivateObjects keeps objects that have no resource, as they are.
func TestPrivateObjects(t *testing.T) {
	ctx := context.Background()
	h := serveConfigMaps(t, 0, 0, 0)
	def := resource.Definition{
		Resource: "notes", Kind: "ConfigMap", StorageKey: "private/notes",
		Versions: []resource.Version{resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)},
	}
	notes, err := h.Private(def)
	if err != nil {
		t.Fatal(err)
	}
	if err := notes.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); err != nil {
		t.Fatal(err)
	}
	if err := notes.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "n"}}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("create again: %v", err)
	}
	rec, err := h.Store.Resource(&def).Get(ctx, "/registry/private/notes/n", store.Read{})
	if err != nil || rec.Revision == 0 {
		t.Errorf("it is not where it should be: %v", err)
	}
	obj, err := notes.Get(ctx, "", "n")
	if err != nil || obj.GetUID() != "" || !obj.GetCreationTimestamp().Time.IsZero() {
		t.Errorf("it has got metadata: %+v, %v", obj, err)
	}
}

func newConfigMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}
