package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/crd/rules"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/resource"
)

// realistic returns a definition of the size that people have: about 150 lines of
// schema, with rules.
func realistic(n int) *apiextensions.CustomResourceDefinition {
	props := map[string]any{}
	for i := range 12 {
		props[fmt.Sprintf("field%d", i)] = map[string]any{
			"type": "object", "description": "What this part of the specification is for, in a sentence or two as documentation has it.",
			"properties": map[string]any{
				"name":     map[string]any{"type": "string", "maxLength": 63, "pattern": "^[a-z]+$", "description": "The name of it."},
				"replicas": map[string]any{"type": "integer", "format": "int32", "minimum": 0, "default": 1},
				"mode":     map[string]any{"type": "string", "enum": []any{"A", "B", "C"}},
			},
			"required": []any{"name"},
		}
	}
	props["items"] = map[string]any{"type": "array", "maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"key"},
		"items": map[string]any{"type": "object", "required": []any{"key"}, "properties": map[string]any{
			"key": map[string]any{"type": "string", "maxLength": 32}, "value": map[string]any{"type": "string"}}}}
	schema := map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "properties": props, "x-kubernetes-validations": []any{
			map[string]any{"rule": "!has(self.items) || self.items.all(i, i.key != '')", "message": "keys must not be empty"},
			map[string]any{"rule": "!has(self.field0) || self.field0.replicas <= 100"},
			map[string]any{"rule": "!has(oldSelf.field1) || has(self.field1)", "message": "field1 cannot be removed"},
		}},
		"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
	}}
	raw, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": fmt.Sprintf("things%d.example.com", n), "generation": 1},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": fmt.Sprintf("things%d", n), "singular": fmt.Sprintf("thing%d", n), "kind": fmt.Sprintf("Thing%d", n), "listKind": fmt.Sprintf("Thing%dList", n)},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": schema},
				"subresources": map[string]any{"status": map[string]any{}}}},
		},
		"status": map[string]any{"storedVersions": []any{"v1"}},
	})
	if err != nil {
		panic(err)
	}
	crd := &apiextensions.CustomResourceDefinition{}
	if err := json.Unmarshal(raw, crd); err != nil {
		panic(err)
	}
	crd.UID = types.UID(crd.Name)
	setDefaults(crd)
	return crd
}

func quietServer() *Server {
	return &Server{Logger: slog.New(slog.DiscardHandler), Publish: func([]*resource.Definition, []schema.GroupResource) error { return nil }}
}

func BenchmarkValidate(b *testing.B) {
	crd := realistic(1)
	if errs := new(rules.Judge).Validate(context.Background(), crd); len(errs) > 0 {
		b.Fatal(errs)
	}
	b.ReportAllocs()
	for b.Loop() {
		new(rules.Judge).Validate(context.Background(), crd)
	}
}

func BenchmarkDefine(b *testing.B) {
	raw, err := json.Marshal(realistic(1))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ReportMetric(float64(len(raw)), "bytes/definition")
	for b.Loop() {
		quietServer().updateEntries([]Stored{{Name: "things1.example.com", Revision: 1, JSON: raw}})
	}
}

// TestUnusedCost bounds what definitions cost that nobody uses, besides their
// stored bytes.
func TestUnusedCost(t *testing.T) {
	count := testsize.Part(1000, 5)
	s := quietServer()
	stored := make([]Stored, count)
	for i := range stored {
		crd := realistic(i)
		crd.Status.AcceptedNames = crd.Spec.Names
		raw, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		stored[i] = Stored{Name: crd.Name, Revision: int64(i + 1), JSON: raw}
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	s.updateEntries(stored)
	each := float64(heap()-before) / float64(count)
	runtime.KeepAlive(stored)
	runtime.KeepAlive(s)
	if len(s.entries) != count || s.entries["things7.example.com"].definition == nil {
		t.Fatal("definitions are not served")
	}
	t.Logf("%.0f bytes a definition, besides %d stored", each, len(stored[0].JSON))
	if each > 8<<10 {
		t.Errorf("an unused definition costs %.0f bytes, want at most 8 KiB", each)
	}
}
