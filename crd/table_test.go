package crd

import (
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
			column, left := newColumn(col), maxRowWork
			if got, want := new(printer).cell(&column, obj, &left), column.find(obj); got != want {
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

// TestColumnsAreBounded: a JSON path whose work grows with a power of the object finds nothing,
// others find what they found before.
func TestColumnsAreBounded(t *testing.T) {
	chain := func(depth int) map[string]any {
		obj := map[string]any{"name": "innermost"}
		for range depth {
			obj = map[string]any{"a": obj}
		}
		return obj
	}
	deep := chain(5000)
	large := map[string]any{
		"text": strings.Repeat("x", 2<<20),
		"spec": map[string]any{"name": "x", "list": []any{map[string]any{"name": "a,b", "v": "z"}}},
	}
	shallow := map[string]any{"spec": map[string]any{"name": "x", "list": []any{map[string]any{"name": "y"}}}}
	for _, c := range []struct {
		path string
		obj  map[string]any
		want any
	}{
		{"..name", deep, "innermost"},
		{"..a..name", deep, nil},
		{"..a..a..a..name", deep, nil},
		{".a" + strings.Repeat("['a','a']", 40), deep, nil},
		{"..list..name", shallow, "y"},
		{".spec['name','list']", shallow, "x"},
		{".spec['name'" + strings.Repeat(",'none'", 40) + "]", shallow, "x"},
		{".spec['name','list']", large, "x"},
		{`.spec.list[?(@.name=="a,b")].v`, large, "z"},
		{"..a..name", chain(600), nil},
		{".spec.name}{.spec.list", shallow, "x"},
		{".spec.name" + strings.Repeat("}{range @", 26) + "}{@", shallow, nil},
		{".list[*]" + strings.Repeat("}{.list[*]", 200), map[string]any{"list": make([]any, 100_000)}, nil},
	} {
		col := &apiextensions.CustomResourceColumnDefinition{Name: "c", Type: "string", JSONPath: c.path}
		column := newColumn(col)
		for range 2 { // the path is parsed once
			left := maxRowWork
			if got := new(printer).cell(&column, c.obj, &left); got != c.want {
				t.Errorf("%.30q: got %v, want %v", c.path, got, c.want)
			}
		}
	}
}

// TestRowsAreBounded: columns that visit a large object again and again have values up to the
// bound of a row.
func TestRowsAreBounded(t *testing.T) {
	columns := make([]apiextensions.CustomResourceColumnDefinition, 20)
	for i := range columns {
		columns[i] = apiextensions.CustomResourceColumnDefinition{Name: "c", Type: "string", JSONPath: "..name"}
	}
	p := newPrinter(columns)
	obj := &unstructured.Unstructured{Object: map[string]any{"name": "x", "text": strings.Repeat("x", 1<<20)}}
	cells, err := p.cells(obj)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, cell := range cells[1:] {
		if cell == "x" {
			found++
		}
	}
	if found != 3 {
		t.Errorf("%d of 20 columns that visit 1 MiB have a value, want 3: the bound is %d", found, maxRowWork)
	}
}

// TestColumnsAreShared: rows are made by several requests at a time, each path parsed once.
func TestColumnsAreShared(t *testing.T) {
	var columns []apiextensions.CustomResourceColumnDefinition
	for _, path := range []string{`.list[?(@.name=="b")].v`, "..v", ".list[*].v}{range .list[*]}{.v}{end", ".list[0:2].name", ".wrong["} {
		columns = append(columns, apiextensions.CustomResourceColumnDefinition{Name: "c", Type: "string", JSONPath: path})
	}
	p := newPrinter(columns)
	obj := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "x"}, "list": []any{
		map[string]any{"name": "a", "v": "1"}, map[string]any{"name": "b", "v": "2"},
	}}}
	want := []any{"x", "2", "1", "1", "a", nil}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				if got, err := p.cells(obj); err != nil || !slices.Equal(got, want) {
					t.Errorf("got %v, %v, want %v", got, err, want)
				}
			}
		})
	}
	group.Wait()
}

// BenchmarkCells is a row of a custom resource with usual columns.
func BenchmarkCells(b *testing.B) {
	obj := map[string]any{
		"metadata": map[string]any{"creationTimestamp": "2026-01-02T03:04:05Z"},
		"spec":     map[string]any{"replicas": int64(3)},
		"status":   map[string]any{"phase": "Ready", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}},
	}
	p := newPrinter([]apiextensions.CustomResourceColumnDefinition{
		{Name: "Replicas", Type: "integer", JSONPath: ".spec.replicas"}, {Name: "Phase", Type: "string", JSONPath: ".status.phase"},
		{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
		{Name: "Ready", Type: "string", JSONPath: `.status.conditions[?(@.type=="Ready")].status`},
	})
	b.ReportAllocs()
	for b.Loop() {
		for i := range p.columns {
			if left := maxRowWork; p.cell(&p.columns[i], obj, &left) == nil {
				b.Fatalf("%s has no value", p.columns[i].Name)
			}
		}
	}
}
