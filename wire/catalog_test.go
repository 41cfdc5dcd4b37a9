package wire

import (
	"testing"

	"github.com/apikeel/kelson/resource"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// podDefinition is a kind of structs that have protobuf methods.
func podDefinition() resource.Definition {
	return resource.Definition{
		Resource: "pods", Kind: "Pod", Namespaced: true,
		Versions: []resource.Version{{
			Name:    "v1",
			New:     func() resource.Object { return &corev1.Pod{} },
			NewList: func() runtime.Object { return &corev1.PodList{} },
		}},
	}
}

// widgetDefinition is a kind of maps, in some versions. The first is stored.
func widgetDefinition(versions ...string) resource.Definition {
	d := resource.Definition{Resource: "widgets", Kind: "Widget"}
	for i, name := range versions {
		v := resource.Version{
			Name:    name,
			New:     func() resource.Object { return &unstructured.Unstructured{} },
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		}
		if i > 0 {
			set := func(version string) func(resource.Object) (resource.Object, error) {
				return func(obj resource.Object) (resource.Object, error) {
					u := obj.DeepCopyObject().(*unstructured.Unstructured)
					u.SetAPIVersion("example.com/" + version)
					return u, nil
				}
			}
			v.ToHub, v.FromHub = set(versions[0]), set(name)
		}
		d.Versions = append(d.Versions, v)
	}
	return d
}

func mustCatalog(t testing.TB, groups ...resource.Group) *resource.Catalog {
	t.Helper()
	c, err := resource.NewCatalog(groups...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
