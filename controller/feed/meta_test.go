package feed

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// What the feed reads out of stored bytes is what is in the object, in whatever
// form it is stored; bytes that are cut or changed do no harm.
func TestReadMeta(t *testing.T) {
	now, yes := metav1.Now(), true
	owners := []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Node", Name: "n", UID: "1", BlockOwnerDeletion: &yes},
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "2", Controller: &yes},
	}
	for _, media := range []string{"protobuf", "JSON", "YAML", "CBOR"} {
		def := core.Namespaces()
		def.StoreJSON, def.StoreYAML = media == "JSON", media == "YAML"
		catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{def}})
		if err != nil {
			t.Fatal(err)
		}
		complete, _ := catalog.Definition("", "namespaces")
		for _, want := range []controller.Meta{
			{UID: "u"},
			{UID: "u", Deleting: true, Finalizers: []string{"a", "b"}, Owners: owners},
		} {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: "x", UID: want.UID, Labels: map[string]string{"uid": "no"}, CreationTimestamp: now,
				Finalizers: want.Finalizers, OwnerReferences: want.Owners,
			}}
			if want.Deleting {
				ns.DeletionTimestamp = &now
			}
			stored, err := wire.EncodeStored(complete, ns)
			if media == "CBOR" { // only custom resources are stored in it
				var fields map[string]any
				if fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(ns); err == nil {
					stored, err = wire.EncodeStored(&resource.Definition{StoreCBOR: true}, &unstructured.Unstructured{Object: fields})
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			var got controller.Meta
			if err := readMeta(stored, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, %v, want %+v", media, got, err, want)
			}
			for i := range stored {
				_ = readMeta(stored[:i], new(controller.Meta))
				changed := append([]byte(nil), stored...)
				changed[i] ^= 0x85
				_ = readMeta(changed, new(controller.Meta))
			}
		}
	}
}
