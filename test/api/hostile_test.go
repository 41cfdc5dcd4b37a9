package api

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// long tells that there is time.
func long() bool { return testsize.Long() }

// fields is a part of a document.
type fields = map[string]any

// hostile is a server with definitions of custom resources that mean it no good.
type hostile struct {
	*testing.T
	dynamic.Interface
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	config := rest.CopyConfig(kelsontest.Start(t, kelsontest.NoControllers()).Config())
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &hostile{t, client}
}

func (h *hostile) definitions() dynamic.NamespaceableResourceInterface {
	return h.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

func (h *hostile) objects(plural string) dynamic.ResourceInterface {
	return h.Resource(schema.GroupVersionResource{Group: "hostile.example.com", Version: "v1", Resource: plural}).Namespace("default")
}

// define creates a definition for objects with a spec.
func (h *hostile) define(plural, kind string, spec fields) error {
	_, err := h.definitions().Create(h.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": fields{"name": plural + ".hostile.example.com"},
		"spec": fields{
			"group": "hostile.example.com", "scope": "Namespaced", "names": fields{"plural": plural, "singular": strings.ToLower(kind), "kind": kind},
			"versions": []any{fields{"name": "v1", "served": true, "storage": true, "schema": fields{"openAPIV3Schema": fields{
				"type": "object", "properties": fields{"spec": spec},
			}}}},
		},
	}}, metav1.CreateOptions{})
	return err
}

func (h *hostile) create(ctx context.Context, plural, kind, name string, spec any) error {
	_, err := h.objects(plural).Create(ctx, &unstructured.Unstructured{Object: fields{
		"apiVersion": "hostile.example.com/v1", "kind": kind, "metadata": fields{"name": name}, "spec": spec,
	}}, metav1.CreateOptions{})
	return err
}

// gone deletes a definition and waits until there is nothing left of it.
func (h *hostile) gone(plural string) {
	h.Helper()
	if err := h.definitions().Delete(h.Context(), plural+".hostile.example.com", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		h.Fatal(err)
	}
	polltest.Until(h.T, plural+" are gone", func() bool {
		_, err := h.definitions().Get(h.Context(), plural+".hostile.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TestHostileSchemas: definitions that ask for much are refused or served.
func TestHostileSchemas(t *testing.T) {
	t.Parallel()
	server := newHostile(t)
	nest := func(depth int, leaf fields) fields {
		for range depth {
			leaf = fields{"type": "object", "properties": fields{"a": leaf}}
		}
		return leaf
	}
	many := func(n int, more fields) fields {
		all := fields{}
		for i := range n {
			field := fields{"type": "string", "maxLength": int64(9)}
			maps.Copy(field, more)
			all[fmt.Sprint("field", i)] = field
		}
		return fields{"type": "object", "properties": all}
	}
	ruled := func(rule string, schema fields) fields {
		schema["x-kubernetes-validations"] = []any{fields{"rule": rule}}
		return schema
	}
	width := 500
	if long() {
		width = 5000
	}
	var values []any
	for i := range width {
		values = append(values, fmt.Sprint("value", i))
	}
	texts := func() fields { return fields{"type": "array", "items": fields{"type": "string"}} }
	text := func(more string, v any) fields { return fields{"type": "string", more: v} }
	for name, test := range map[string]struct {
		spec    fields
		refused string // what is said, if it is not served
		object  any
		wrong   string // what is said of the object, if it is wrong
	}{
		"deeps":   {spec: nest(100, text("default", "x")), object: fields{"a": fields{"a": fields{}}}},
		"deepers": {spec: nest(1000, text("default", "x")), refused: "nested"},
		"wides":   {spec: many(width, fields{"default": "d"}), object: fields{"field7": strings.Repeat("x", 10)}, wrong: "spec.field7: Too long"},
		"strict":  {spec: many(200, fields{"x-kubernetes-validations": []any{fields{"rule": "self != 'x'"}}}), object: fields{"field7": "x"}, wrong: "failed rule: self != 'x'"},
		"enums":   {spec: text("enum", values), object: "value", wrong: "Unsupported value"},
		// What would take for ever in other languages takes no time here.
		"patterns":   {spec: text("pattern", "^(a+)+$"), object: strings.Repeat("a", 1<<15) + "b", wrong: "should match"},
		"repeats":    {spec: text("pattern", "((a{100}){100}){100}"), refused: "must be a valid regular expression"},
		"brackets":   {spec: text("pattern", strings.Repeat("(", 2000)+strings.Repeat(")", 2000)), refused: "must be a valid regular expression"},
		"loops":      {spec: ruled("self.all(a, self.all(b, self.all(c, a + b + c != '')))", texts()), refused: "estimated rule cost exceeds budget"},
		"maps":       {spec: ruled("self.map(a, self.map(b, self.map(c, [a, b, c]))).size() > 0", texts()), refused: "estimated rule cost exceeds budget"},
		"matches":    {spec: ruled("self.matches('"+strings.Repeat("(a*)*", 200)+"$')", text("type", "string")), refused: "estimated rule cost exceeds budget"},
		"parens":     {spec: ruled(strings.Repeat("(", 500)+"true"+strings.Repeat(")", 500), text("maxLength", int64(9))), refused: "compilation failed"},
		"long":       {spec: ruled("self != '"+strings.Repeat("x", 200_000)+"'", text("maxLength", int64(9))), refused: "compilation failed"},
		"neverends":  {spec: ruled("[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, a > b || a <= b))", text("maxLength", int64(9))), object: "x"},
		"Capitals":   {spec: text("maxLength", int64(9)), refused: "metadata.name"},
		"selfsilent": {spec: ruled("self == self.self.self", text("maxLength", int64(9))), refused: "does not support field selection"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hostile{t, server.Interface}
			err := h.define(name, "Hostile", test.spec)
			switch {
			case test.refused == "" && err != nil:
				t.Fatal(err)
			case test.refused != "":
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("%.1000v", err)
				}
				return
			}
			err = h.create(t.Context(), name, "Hostile", "x", test.object)
			if test.wrong == "" && err != nil || test.wrong != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("%.1000v", err)
			}
			h.gone(name)
		})
	}
}

// TestHostileNames: of those who want a name one has it, and others when it goes.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	const rivals = 20
	var wg sync.WaitGroup
	for i := range rivals {
		wg.Go(func() {
			if err := h.define(fmt.Sprint("rivals", i), "Rival", fields{"type": "string"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	accepted := func() (names []string) {
		list := must(h.definitions().List(t.Context(), metav1.ListOptions{}))(t)
		for _, crd := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
			for _, c := range conditions {
				if c := c.(fields); c["type"] == "Established" && c["status"] == "True" {
					plural, _, _ := strings.Cut(crd.GetName(), ".")
					names = append(names, plural)
				}
			}
		}
		return names
	}
	for i := range rivals {
		polltest.Until(t, "one has the name", func() bool { return len(accepted()) == 1 })
		name := accepted()[0]
		if err := h.create(t.Context(), name, "Rival", "x", "y"); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		h.gone(name)
	}
}

// TestDeleteUnderFire: a definition goes although hundreds create objects, and
// nothing of them is there when it comes back.
func TestDeleteUnderFire(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	writers, rounds := 100, 2
	if long() {
		writers, rounds = 1000, 5
	}
	for round := range rounds {
		ok(t, h.define("prey", "Prey", fields{"type": "string"}))
		if list := must(h.objects("prey").List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) > 0 {
			t.Fatalf("round %d: %d objects of before", round, len(list.Items))
		}
		ctx, stop := context.WithCancel(t.Context())
		var created atomic.Int64
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					err := h.create(ctx, "prey", "Prey", fmt.Sprintf("prey-%d-%d", w, i), "x")
					switch {
					case err == nil:
						created.Add(1)
					case apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || ctx.Err() != nil:
						return // it goes, or is gone
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		polltest.Until(t, "they create", func() bool { return created.Load() > int64(writers) })
		h.gone("prey")
		wg.Wait()
		stop()
	}
}

// TestChangeUnderFire: a definition is changed back and forth while objects of it
// are written, in both forms.
func TestChangeUnderFire(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	ok(t, h.define("chameleons", "Chameleon", fields{"type": "string"}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var accepted, refused atomic.Int64
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				err := h.create(ctx, "chameleons", "Chameleon", fmt.Sprintf("c-%d-%d", w, i), []any{"x", int64(1)}[i%2])
				switch {
				case err == nil:
					accepted.Add(1)
				case apierrors.IsInvalid(err):
					refused.Add(1)
				case ctx.Err() == nil:
					t.Error(err)
					return
				}
			}
		})
	}
	kinds := []string{"integer", "string"}
	for i := range 20 {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec","value":{"type":%q}}]`, kinds[i%2])
		must(h.definitions().Patch(t.Context(), "chameleons.hostile.example.com", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))(t)
		bad, try := []any{"x", int64(1)}[i%2], 0
		polltest.Until(t, "the change holds", func() bool {
			try++
			return apierrors.IsInvalid(h.create(t.Context(), "chameleons", "Chameleon", fmt.Sprintf("bad-%d-%d", i, try), bad))
		})
	}
	stop()
	wg.Wait()
	if accepted.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d accepted, %d refused", accepted.Load(), refused.Load())
	}
	h.gone("chameleons")
}
