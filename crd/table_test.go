package crd

import (
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestScalarColumns: a column whose path is nothing but names has what the JSON path finds.
func TestScalarColumns(t *testing.T) {
	obj := map[string]any{
		"spec": map[string]any{
			"text": "a", "number": int64(3), "part": 1.5, "large": 1e21, "yes": true, "nothing": nil, "list": []any{"x", int64(1)},
			"map": map[string]any{"text": "b"}, "a-b": "c", "1st": "d", "_x": "e", "date": "2026-01-02T03:04:05Z",
		},
		"top": "f",
	}
	known := 0
	for _, path := range []string{"", ".", ".top", "top", ".spec.text", ".spec.number", ".spec.part", ".spec.large", ".spec.yes", ".spec.nothing", ".spec.nothing.more",
		".spec.list", ".spec.list[0]", ".spec.list.x", ".spec.map", ".spec.map.text", ".spec.text.more", ".spec.missing", ".missing.text", ".spec.a-b", ".spec.1st", ".spec._x",
		".spec.date", "..text", ".spec..text", ".spec.", ".spec['text']", `.spec.te\\xt`, ".spec.text ", " .spec.text", ".1", ".spec.map..text", "$.top", "@.top"} {
		for _, kind := range []string{"string", "integer", "number", "boolean", "date"} {
			col := &apiextensions.CustomResourceColumnDefinition{Name: "c", Type: kind, JSONPath: path}
			p := &printer{}
			if got, want := p.cell(col, obj), p.found(col, obj); got != want {
				t.Errorf("%q as %s: got %#v, want %#v", path, kind, got, want)
			}
		}
		if _, ok := scalarAt(obj, path); ok {
			known++
		}
	}
	if known < 10 {
		t.Errorf("%d paths were taken for names, want most", known)
	}
}

// BenchmarkCells is a row of a custom resource with usual columns.
func BenchmarkCells(b *testing.B) {
	obj := map[string]any{
		"metadata": map[string]any{"creationTimestamp": "2026-01-02T03:04:05Z"},
		"spec":     map[string]any{"replicas": int64(3)}, "status": map[string]any{"phase": "Ready"},
	}
	p := &printer{}
	columns := []apiextensions.CustomResourceColumnDefinition{
		{Name: "Replicas", Type: "integer", JSONPath: ".spec.replicas"}, {Name: "Phase", Type: "string", JSONPath: ".status.phase"},
		{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
	}
	b.ReportAllocs()
	for b.Loop() {
		for i := range columns {
			if p.cell(&columns[i], obj) == nil {
				b.Fatalf("%s has no value", columns[i].Name)
			}
		}
	}
}
