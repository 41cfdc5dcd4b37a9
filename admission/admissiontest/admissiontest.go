// Package admissiontest has helpers for tests of plugins: objects and configurations in
// memory, and writes of two kinds, ConfigMaps and custom widgets in two versions. Start at
// Write and Source.
package admissiontest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Source is a resource.Follower whose objects are set by tests.
type Source struct {
	mu      sync.Mutex
	waiting []resource.Change
	pulled  bool
}

// Set adds or changes objects.
func (s *Source) Set(objects ...resource.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objects {
		s.waiting = append(s.waiting, resource.Change{Object: obj})
	}
}

// Delete removes objects.
func (s *Source) Delete(objects ...resource.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, obj := range objects {
		s.waiting = append(s.waiting, resource.Change{Object: obj, Deleted: true})
	}
}

// Current implements resource.Follower.
func (s *Source) Current() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pulled && len(s.waiting) == 0
}

// Pull implements resource.Follower.
func (s *Source) Pull(_ context.Context, apply func(reset bool, changes []resource.Change)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	apply(!s.pulled, s.waiting)
	s.pulled, s.waiting = true, nil
	return nil
}

// Wait implements resource.Follower; plugins never wait.
func (s *Source) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Objects are the stored objects, by resource.
type Objects map[string][]resource.Object

// Get implements admission.Objects.
func (o Objects) Get(_ context.Context, group, name, namespace, object string) (resource.Object, error) {
	for _, obj := range o[name] {
		if obj.GetNamespace() == namespace && obj.GetName() == object {
			return obj, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, object)
}

// GetNewest implements admission.Objects.
func (o Objects) GetNewest(ctx context.Context, group, name, namespace, object string) (resource.Object, error) {
	return o.Get(ctx, group, name, namespace, object)
}

// List implements admission.Objects.
func (o Objects) List(_ context.Context, _, name, namespace string) ([]resource.Object, error) {
	var out []resource.Object
	for _, obj := range o[name] {
		if namespace == "" || obj.GetNamespace() == namespace {
			out = append(out, obj)
		}
	}
	return out, nil
}

// Namespace returns a namespace with labels, given as "key=value".
func Namespace(name string, labels ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		ns.Labels[key] = value
	}
	return ns
}

// Catalog has config maps, and widgets of example.com, of which v1 is stored and
// has spec.size where v1beta1 has spec.width.
func Catalog() *resource.Catalog {
	maps := resource.VersionOf[corev1.ConfigMap, corev1.ConfigMapList]("v1", nil)
	maps.Default = func(obj resource.Object) {
		if m := obj.(*corev1.ConfigMap); m.Data != nil && m.Data["default"] == "" {
			m.Data["default"] = "set"
		}
	}
	widgets := func(name string) resource.Version {
		return resource.Version{
			Name: name, New: func() resource.Object { return &unstructured.Unstructured{} },
			NewList: func() runtime.Object { return &unstructured.UnstructuredList{} },
		}
	}
	v1, beta := widgets("v1"), widgets("v1beta1")
	beta.ToHub, beta.FromHub = rename("v1", "width", "size"), rename("v1beta1", "size", "width")
	c, err := resource.NewCatalog(
		resource.Group{Resources: []resource.Definition{
			{Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Versions: []resource.Version{maps}},
		}},
		resource.Group{Name: "example.com", Resources: []resource.Definition{
			{Group: "example.com", Resource: "widgets", Kind: "Widget", Namespaced: true, Versions: []resource.Version{v1, beta}},
		}})
	if err != nil {
		panic(err)
	}
	return c
}

func rename(version, from, to string) func(resource.Object) (resource.Object, error) {
	return func(obj resource.Object) (resource.Object, error) {
		u := obj.DeepCopyObject().(*unstructured.Unstructured)
		u.SetAPIVersion("example.com/" + version)
		if v, ok, err := unstructured.NestedFieldNoCopy(u.Object, "spec", from); err != nil {
			return nil, err
		} else if ok {
			unstructured.RemoveNestedField(u.Object, "spec", from)
			return u, unstructured.SetNestedField(u.Object, v, "spec", to)
		}
		return u, nil
	}
}

// OnConversion has before called before each conversion of a widget; its error is that of the conversion.
// The catalog must not be in use yet.
func OnConversion(c *resource.Catalog, before func() error) {
	served, _ := c.Lookup("example.com", "v1beta1", "widgets")
	for _, convert := range []*func(resource.Object) (resource.Object, error){&served.Version.ToHub, &served.Version.FromHub} {
		next := *convert
		*convert = func(obj resource.Object) (resource.Object, error) {
			if err := before(); err != nil {
				return nil, err
			}
			return next(obj)
		}
	}
}

// Counts are admission.Metrics that count observations by metric.
type Counts struct {
	mu     sync.Mutex
	counts map[string]int
}

// Series implements admission.Metrics.
func (c *Counts) Series(metric string, _ ...string) admission.Series { return count{c, metric} }

// Of returns how many observations there were of some metrics.
func (c *Counts) Of(metrics ...string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, metric := range metrics {
		n += c.counts[metric]
	}
	return n
}

type count struct {
	of     *Counts
	metric string
}

// Observe implements admission.Series.
func (c count) Observe(float64) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.of.counts == nil {
		c.of.counts = map[string]int{}
	}
	c.of.counts[c.metric]++
}

// Notes records audit annotations.
type Notes struct {
	request.Recorder
	mu    sync.Mutex
	noted map[string]string
}

// Annotate implements request.Recorder.
func (n *Notes) Annotate(key, value string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.noted == nil {
		n.noted = map[string]string{}
	}
	n.noted[key] = value
}

// AnnotateBody implements request.Recorder.
func (n *Notes) AnnotateBody(key, value string) { n.Annotate(key, value) }

// Get returns an annotation.
func (n *Notes) Get(key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.noted[key]
}

// Write returns a write of an object of the hub version by a user called jane,
// in a version of its resource.
func Write(c *resource.Catalog, op admission.Operation, version, name string, obj, old resource.Object) *admission.Attributes {
	a := &admission.Attributes{Operation: op, Request: &request.Request{User: request.User{Name: "jane", Groups: []string{"testers"}}, Audit: &Notes{}, Warned: &request.Warnings{}}}
	group := ""
	if name == "widgets" {
		group = "example.com"
	}
	served, ok := c.Lookup(group, version, name)
	if !ok {
		panic(fmt.Sprintf("no %s of %s", name, version))
	}
	a.Served, a.Kind = served, served.GroupVersionKind()
	for _, o := range []resource.Object{obj, old} {
		if o != nil {
			a.Namespace, a.Name = o.GetNamespace(), o.GetName()
		}
	}
	if obj != nil {
		a.Object = obj
	}
	if old != nil {
		a.Old = old
	}
	a.Options = &metav1.CreateOptions{}
	return a
}

// ConfigMap returns one in the namespace "default", with data "a=1".
func ConfigMap(name string, labels ...string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{Data: map[string]string{"a": "1"}}
	m.ObjectMeta = Namespace(name, labels...).ObjectMeta
	m.Namespace = "default"
	return m
}

// Widget returns one in the namespace "default" of a size, as it is stored.
func Widget(name string, size int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     map[string]any{"size": size},
	}}
}
