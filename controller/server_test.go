package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// cluster is a server and its clients.
type cluster struct {
	*kelsontest.Server
	testing.TB
	kubernetes.Interface
	dynamic *dynamic.DynamicClient
}

func start(t testing.TB, opts ...kelsontest.Option) *cluster {
	t.Helper()
	s := kelsontest.Start(t, opts...)
	c := connect(t, s.Config())
	c.Server = s
	return c
}

// connect makes the clients of a server that runs elsewhere.
func connect(t testing.TB, config *rest.Config) *cluster {
	t.Helper()
	return &cluster{TB: t, Interface: must(kubernetes.NewForConfig(config))(t), dynamic: must(dynamic.NewForConfig(config))(t)}
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (c *cluster) namespace(name string) *corev1.Namespace {
	c.Helper()
	return must(c.CoreV1().Namespaces().Create(c.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(c)
}

// configMap makes a config map with owners.
func (c *cluster) configMap(namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	c.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	return must(c.CoreV1().ConfigMaps(namespace).Create(c.Context(), m, metav1.CreateOptions{}))(c)
}

func ownedBy(m *corev1.ConfigMap, block bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: m.Name, UID: m.UID, BlockOwnerDeletion: &block}
}

func (c *cluster) delete(namespace, name string, policy metav1.DeletionPropagation) {
	c.Helper()
	if err := c.CoreV1().ConfigMaps(namespace).Delete(c.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
		c.Fatal(err)
	}
}

// finalizers sets the finalizers of a config map.
func (c *cluster) finalizers(namespace, name string, finalizers ...string) {
	c.Helper()
	list := "null"
	if len(finalizers) > 0 {
		list = `["` + strings.Join(finalizers, `","`) + `"]`
	}
	must(c.CoreV1().ConfigMaps(namespace).Patch(c.Context(), name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{}))(c)
}

// until watches the objects of a resource until what is seen of them is enough.
func (c *cluster) until(gvr schema.GroupVersionResource, namespace string, enough func(objs map[string]*unstructured.Unstructured) bool) {
	c.Helper()
	resource := c.dynamic.Resource(gvr).Namespace(namespace)
	list := must(resource.List(c.Context(), metav1.ListOptions{}))(c)
	objs := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		objs[list.Items[i].GetNamespace()+"/"+list.Items[i].GetName()] = &list.Items[i]
	}
	w := must(resource.Watch(c.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}))(c)
	defer w.Stop()
	ctx, cancel := context.WithTimeout(c.Context(), deadline)
	defer cancel()
	for !enough(objs) {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				c.Fatal("the watch has ended")
			}
			obj := e.Object.(*unstructured.Unstructured)
			key := obj.GetNamespace() + "/" + obj.GetName()
			if e.Type == watch.Deleted {
				delete(objs, key)
			} else {
				objs[key] = obj
			}
		case <-ctx.Done():
			left := []string{}
			for key, obj := range objs {
				left = append(left, fmt.Sprintf("%s %v", key, obj.Object["metadata"]))
			}
			c.Fatalf("it does not come to that; there are %d:\n%s", len(left), strings.Join(left[:min(len(left), 10)], "\n"))
		}
	}
}

// exactly waits until there are config maps of these names, beside those that
// every namespace has.
func (c *cluster) exactly(namespace string, names ...string) {
	c.Helper()
	c.until(configMaps, namespace, func(objs map[string]*unstructured.Unstructured) bool {
		n := 0
		for _, obj := range objs {
			if obj.GetName() != "kube-root-ca.crt" {
				n++
			}
		}
		for _, name := range names {
			if objs[namespace+"/"+name] == nil {
				return false
			}
		}
		return n == len(names)
	})
}

// gone waits until there is no namespace of a name.
func (c *cluster) gone(namespace string) {
	c.Helper()
	c.until(namespaces, "", func(objs map[string]*unstructured.Unstructured) bool { return objs["/"+namespace] == nil })
}

var (
	configMaps      = corev1.SchemeGroupVersion.WithResource("configmaps")
	namespaces      = corev1.SchemeGroupVersion.WithResource("namespaces")
	serviceAccounts = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	secrets         = corev1.SchemeGroupVersion.WithResource("secrets")
	events          = corev1.SchemeGroupVersion.WithResource("events")
	crds            = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets         = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
)

// define makes the custom resource widgets and waits until it is served.
func (c *cluster) define(scope apiextensions.ResourceScope) {
	c.Helper()
	keep := true
	crd := &apiextensions.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: scope,
			Names: apiextensions.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensions.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &keep}},
			}},
		},
	}
	obj := must(runtime.DefaultUnstructuredConverter.ToUnstructured(crd))(c)
	delete(obj, "status")
	must(c.dynamic.Resource(crds).Create(c.Context(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{}))(c)
	c.until(crds, "", func(objs map[string]*unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(objs["/widgets.example.com"].Object, "status", "conditions")
		for _, x := range conditions {
			if x := x.(map[string]any); x["type"] == "Established" && x["status"] == "True" {
				return true
			}
		}
		return false
	})
}

// widget makes a custom object with owners.
func (c *cluster) widget(namespace, name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	c.Helper()
	w := &unstructured.Unstructured{}
	w.SetAPIVersion("example.com/v1")
	w.SetKind("Widget")
	w.SetName(name)
	w.SetOwnerReferences(owners)
	return must(c.dynamic.Resource(widgets).Namespace(namespace).Create(c.Context(), w, metav1.CreateOptions{}))(c)
}

func selectName(name string) string {
	return fields.OneTermEqualSelector("metadata.name", name).String()
}
