package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// steps is what a write does, in its order. It is used by one request at a time.
type steps []string

func (s *steps) add(format string, args ...any) { *s = append(*s, fmt.Sprintf(format, args...)) }

// orderBackend notes commits.
type orderBackend struct {
	storage.Backend
	steps *steps
}

func (b orderBackend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	b.steps.add("commit")
	return b.Backend.Create(ctx, key, value, ttl)
}

func (b orderBackend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	b.steps.add("commit")
	return b.Backend.Update(ctx, key, value, guard, ttl)
}

// orderOwners notes field ownership.
type orderOwners struct {
	Owners
	steps *steps
}

func (o orderOwners) Update(_ *resource.Served, _ string, _, obj resource.Object, _ string, _ time.Time) (resource.Object, error) {
	o.steps.add("ownership")
	return obj, nil
}

func (o orderOwners) Apply(_ *resource.Served, _ string, live resource.Object, _ []byte, _ string, _ bool, _ time.Time) (resource.Object, error) {
	o.steps.add("merge with ownership")
	obj := live.DeepCopyObject().(*corev1.ConfigMap)
	obj.Data = map[string]string{"applied": "yes"}
	return obj, nil
}

func (o orderOwners) KeepTimes(_, _ resource.Object) { o.steps.add("keep times") }

func (o orderOwners) CheckPatch([]byte) error { return nil }

// metadata says whether the server has given a new object its metadata.
func metadata(obj resource.Object) string {
	if obj.GetUID() == "" {
		return " without metadata"
	}
	return " with metadata"
}

// orderPlugin notes admission.
type orderPlugin struct{ steps *steps }

func (orderPlugin) Name() string                  { return "Order" }
func (orderPlugin) Handles(admission.Target) bool { return true }

func (p orderPlugin) Admit(_ context.Context, a *admission.Attributes) error {
	step := "mutating admission"
	if a.Operation == admission.Create {
		step += metadata(a.Object.(resource.Object))
	}
	p.steps.add("%s", step)
	a.OnEnd(func(o resource.Outcome) { p.steps.add("end of admission: %v", o == resource.Written) })
	return nil
}

func (p orderPlugin) Validate(context.Context, *admission.Attributes) error {
	p.steps.add("validating admission")
	return nil
}

// orderedKind is a kind with a hub and another version, whose functions note that they
// are called.
func orderedKind(s *steps) resource.Definition {
	version := func(name string) resource.Version {
		return resource.Version{
			Name: name, New: func() resource.Object { return new(corev1.ConfigMap) },
			NewList: func() runtime.Object { return new(corev1.ConfigMapList) },
		}
	}
	old := version("v1beta1")
	old.Default = func(resource.Object) { s.add("default") }
	old.ToHub = func(obj resource.Object) (resource.Object, error) { s.add("to hub"); return obj, nil }
	old.FromHub = func(obj resource.Object) (resource.Object, error) { return obj, nil }
	return resource.Definition{
		Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Hub: "v1", Versions: []resource.Version{version("v1"), old},
		Strategy: resource.Strategy{
			PrepareCreate: func(_ context.Context, obj resource.Object) { s.add("prepare%s", metadata(obj)) },
			PrepareUpdate: func(context.Context, resource.Object, resource.Object) { s.add("prepare") },
			Generation:    func(resource.Object, resource.Object) bool { s.add("generation"); return true },
			Begin: func(context.Context, resource.Object, resource.Object) (func(resource.Outcome), error) {
				s.add("reserve")
				return func(o resource.Outcome) { s.add("end of reservation: %v", o == resource.Written) }, nil
			},
			Validate: func(context.Context, resource.Object) field.ErrorList { s.add("validate"); return nil },
			Warnings: func(context.Context, resource.Object, resource.Object) []string { s.add("warnings"); return nil },
		},
	}
}

// TestOrderOfAWrite: a write does what docs/design/0002-api-core.md and docs/request.md
// say, in that order. Whoever changes the order changes these documents.
func TestOrderOfAWrite(t *testing.T) {
	var s steps
	backend := memory.New(memory.Options{})
	t.Cleanup(func() { backend.Close() })
	objects, err := store.Open(t.Context(), orderBackend{backend, &s}, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{orderedKind(&s)}})
	if err != nil {
		t.Fatal(err)
	}
	h := &Handler{
		Catalog: func() *resource.Catalog { return catalog }, Store: objects, Owners: orderOwners{steps: &s},
		Admission: admission.NewChain(orderPlugin{&s}),
	}
	const path = "/api/v1beta1/namespaces/default/configmaps"
	object := func(value string) string {
		return `{"apiVersion":"v1beta1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"k":"` + value + `"}}`
	}
	decoded := []string{"default", "to hub"}
	judged := []string{"reserve", "validate", "warnings", "validating admission"}
	ended := []string{"commit", "end of reservation: true", "end of admission: true"}
	changed := slices.Concat([]string{"mutating admission", "prepare", "generation"}, judged, []string{"keep times"}, ended)
	for _, test := range []struct {
		name, method, path, body, media string
		code                            int
		want                            []string
	}{
		{"create", "POST", path, object("1"), "application/json", http.StatusCreated,
			slices.Concat(decoded, []string{"ownership", "mutating admission without metadata", "prepare with metadata"}, judged, ended)},
		{"update", "PUT", path + "/a", object("2"), "application/json", http.StatusOK, slices.Concat(decoded, []string{"ownership"}, changed)},
		{"patch", "PATCH", path + "/a", `{"data":{"k":"3"}}`, "application/merge-patch+json", http.StatusOK,
			slices.Concat(decoded, []string{"ownership"}, changed)},
		{"apply", "PATCH", path + "/a?fieldManager=m", object("4"), "application/apply-patch+yaml", http.StatusOK,
			slices.Concat([]string{"merge with ownership"}, changed)},
	} {
		// A read waits until the cache has the write before: otherwise this one would begin
		// with the state before that, and be repeated.
		do(t, h, "GET", path, "")
		s = nil
		a := do(t, h, test.method, test.path, test.body, "Content-Type", test.media)
		if a.code != test.code {
			t.Fatalf("%s: got %d %s, want %d", test.name, a.code, a.body, test.code)
		}
		if !slices.Equal(s, test.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, strings.Join(s, " → "), strings.Join(test.want, " → "))
		}
	}
}
