package schema

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/storage"
)

func parse(t testing.TB, text string) *apiextensions.JSONSchemaProps {
	t.Helper()
	var props apiextensions.JSONSchemaProps
	if err := yaml.UnmarshalStrict([]byte(text), &props); err != nil {
		t.Fatal(err)
	}
	return &props
}

func mustCompile(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile(parse(t, text), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	if err := utiljson.Unmarshal(raw, &obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

const widget = `
type: object
required: [spec]
properties:
  spec:
    type: object
    required: [size]
    properties:
      size: {type: integer, minimum: 1, maximum: 10, format: int32}
      ratio: {type: number, exclusiveMaximum: true, maximum: 1}
      name: {type: string, minLength: 2, maxLength: 5, pattern: '^[a-z]+$', default: abc}
      when: {type: string, format: date-time}
      mode: {type: string, enum: ["on", "off"], nullable: true}
      port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
      active: {type: boolean, default: true}
      tags: {type: array, x-kubernetes-list-type: set, maxItems: 3, items: {type: string}}
      parts:
        type: array
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer, default: 7}}}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {known: {type: object, properties: {a: {type: string}}}}}
      map: {type: object, additionalProperties: {type: integer, maximum: 3}}
      inner: {type: object, x-kubernetes-embedded-resource: true, x-kubernetes-preserve-unknown-fields: true}
      one: {type: integer, oneOf: [{maximum: 2}, {minimum: 8}]}
      even: {type: integer, multipleOf: 2}
`

func TestValidate(t *testing.T) {
	s := mustCompile(t, widget)
	for _, test := range []struct{ obj, want string }{
		{`spec: {size: 3}`, ``},
		{`{}`, `spec: Required value`},
		{`spec: {}`, `spec.size: Required value`},
		{`spec: {size: 11}`, `spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10`},
		{`spec: {size: 2, ratio: 1}`, `spec.ratio: Invalid value: 1: spec.ratio in body should be less than 1`},
		{`spec: {size: two}`, `spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`},
		{`spec: {size: 2, name: toolong}`, `spec.name: Too long: may not be more than 5 bytes`},
		{`spec: {size: 2, name: A1}`, `spec.name: Invalid value: "A1": spec.name in body should match '^[a-z]+$'`},
		{`spec: {size: 2, when: now}`, `spec.when: Invalid value: "now": spec.when in body must be of type date-time: "now"`},
		{`spec: {size: 2, when: 2020-01-02T03:04:05Z}`, ``},
		{`spec: {size: 2, mode: half}`, `spec.mode: Unsupported value: "half": supported values: "on", "off"`},
		{`spec: {size: 2, mode: null}`, `spec.mode: Unsupported value`},
		{`spec: {size: 2, port: http}`, ``},
		{`spec: {size: 2, port: 80}`, ``},
		{`spec: {size: 2, port: 1.5}`, `spec.port: Invalid value: "number"`},
		{`spec: {size: 2, tags: [a, b, c, d]}`, `spec.tags: Too many: 4: must have at most 3 items`},
		{`spec: {size: 2, tags: [a, b, a]}`, `spec.tags[2]: Duplicate value: "a"`},
		{`spec: {size: 2, parts: [{name: a}, {name: a, count: 2}]}`, `spec.parts[1]: Duplicate value: {"name":"a"}`},
		{`spec: {size: 2, map: {a: 1, b: 4}}`, `spec.map.b: Invalid value: 4: spec.map.b in body should be less than or equal to 3`},
		{`spec: {size: 2, inner: {kind: X}}`, `spec.inner.apiVersion: Required value`},
		{`spec: {size: 2, inner: {kind: X, apiVersion: v1, metadata: {name: "a/b"}}}`, `spec.inner.metadata.name: Invalid value: "a/b"`},
		{`spec: {size: 2, one: 5}`, `spec.one: Invalid value`},
		{`spec: {size: 2, one: 9}`, ``},
		{`spec: {size: 2, even: 3}`, `spec.even: Invalid value: 3: spec.even in body should be a multiple of 2`},
	} {
		var got []string
		for _, err := range s.Validate(context.Background(), object(t, test.obj)) {
			got = append(got, err.Error())
		}
		if text := strings.Join(got, "\n"); test.want == "" && text != "" || !strings.Contains(text, test.want) {
			t.Errorf("%s:\n got %s\nwant %s", test.obj, text, test.want)
		}
	}
}

// TestEnum: values are compared as kube-apiserver does, by the types of those
// that are allowed: a fraction is cut off for an integer, and null is as good as
// nothing.
func TestEnum(t *testing.T) {
	s := mustCompile(t, `{type: object, properties: {a: {type: number, nullable: true, enum: [1, 2, null]}}}`)
	for value, want := range map[string]bool{"1": true, "1.0": true, "1.5": true, "3": false, "null": false} {
		if errs := s.Validate(context.Background(), object(t, `{a: `+value+`}`)); (len(errs) == 0) != want {
			t.Errorf("%s: %v", value, errs)
		}
	}
}

func TestRatcheting(t *testing.T) {
	s := mustCompile(t, widget)
	for _, test := range []struct {
		old, obj string
		wrong    int
	}{
		{`spec: {size: 99, name: abc}`, `spec: {size: 99, name: xyz}`, 0},
		{`spec: {size: 99}`, `spec: {size: 98}`, 1},
		{`spec: {size: 1, tags: [a, a]}`, `spec: {size: 2, tags: [a, a]}`, 0},
		{`spec: {size: 1, tags: [a]}`, `spec: {size: 2, tags: [a, a]}`, 1},
		{`spec: {size: 1, parts: [{name: a, count: x}]}`, `spec: {size: 2, parts: [{name: b}, {name: a, count: x}]}`, 0},
	} {
		if errs := s.ValidateUpdate(context.Background(), object(t, test.obj), object(t, test.old)); len(errs) != test.wrong {
			t.Errorf("%s → %s: %v", test.old, test.obj, errs)
		}
	}
}

func TestPrune(t *testing.T) {
	s := mustCompile(t, widget)
	obj := object(t, `{apiVersion: v1, kind: W, metadata: {name: a, odd: 1}, status: {x: 1},
		spec: {size: 1, x: 1, parts: [{name: a, z: 2}], free: {z: {q: 1}, known: {a: b, c: d}}, map: {a: 1}, inner: {metadata: {odd: 1}, w: 1}}}`)
	unknown := s.Prune(obj, true)
	if want := []string{"spec.free.known.c", "spec.parts[0].z", "spec.x", "status"}; !reflect.DeepEqual(unknown, want) {
		t.Errorf("unknown: %q, want %q", unknown, want)
	}
	want := object(t, `{apiVersion: v1, kind: W, metadata: {name: a, odd: 1},
		spec: {size: 1, parts: [{name: a}], free: {z: {q: 1}, known: {a: b}}, map: {a: 1}, inner: {metadata: {odd: 1}, w: 1}}}`)
	if !reflect.DeepEqual(obj, want) {
		t.Errorf("pruned: %v", obj)
	}
	unknown, err := s.Coerce(obj, false)
	if want := []string{"metadata.odd", "spec.inner.metadata.odd"}; err != nil || !reflect.DeepEqual(unknown, want) {
		t.Errorf("unknown: %q, %v", unknown, err)
	}
	if _, err := s.Coerce(object(t, `{metadata: {name: 5}}`), false); err == nil {
		t.Error("metadata of a wrong type is accepted")
	}
	bad := object(t, `{metadata: {name: 5, namespace: x}, kind: 7}`)
	if _, err := s.Coerce(bad, true); err != nil || !reflect.DeepEqual(bad, object(t, `{metadata: {namespace: x}}`)) {
		t.Errorf("dropped: %v, %v", bad, err)
	}
}

// TestDefaultsAreBounded: what an object gets from defaults is not larger than what can be stored
// by more than a default.
func TestDefaultsAreBounded(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"b":{"type":"string","default":"`+strings.Repeat("x", 10_000)+`"}}}}}}`)
	items := make([]any, 5000)
	for i := range items {
		items[i] = map[string]any{}
	}
	s.Default(map[string]any{"a": items})
	set := 0
	for _, item := range items {
		if _, ok := item.(map[string]any)["b"]; ok {
			set++
		}
	}
	if bytes := set * 10_000; bytes < storage.MaxValueBytes || bytes > maxDefaults {
		t.Errorf("%d items have their default, %d bytes", set, bytes)
	}
}

func TestDefault(t *testing.T) {
	s := mustCompile(t, widget)
	obj := object(t, `{spec: {size: null, name: null, mode: null, parts: [{name: a}, {name: b, count: null}], map: {a: null}}}`)
	s.DropNulls(obj)
	s.Default(obj)
	want := object(t, `{spec: {name: abc, active: true, mode: null, parts: [{name: a, count: 7}, {name: b, count: 7}], map: {}}}`)
	if !reflect.DeepEqual(obj, want) {
		t.Errorf("got %v\nwant %v", obj, want)
	}
}

// TestSure checks the quick walk against the validation that explains, on
// random objects: what it is sure of must hold.
func TestSure(t *testing.T) {
	s := mustCompile(t, widget)
	schema, err := s.slow.schema(s.props)
	if err != nil {
		t.Fatal(err)
	}
	rng, work := randomtest.From(t, 1), boundedregexp.NewWork(context.Background(), math.MaxInt64)
	properties := parse(t, widget).Properties["spec"].Properties
	sure := 0
	for range 5_000 {
		obj := map[string]any{}
		if rng.IntN(10) > 0 {
			obj["spec"] = randomObject(rng, properties)
		}
		holds := s.root.holds(runtime.DeepCopyJSON(obj), work)
		found := explainer{s.patterns, work}.value(schema, obj, "", nil).errs
		if holds {
			sure++
		}
		if holds && len(found) > 0 {
			text, _ := json.Marshal(obj)
			t.Fatalf("sure of %s: %v", text, found)
		}
	}
	if sure < 100 {
		t.Errorf("sure of %d objects only", sure)
	}
}

// randomObject has some of the properties, most of them of the right type.
func randomObject(rng *rand.Rand, props map[string]apiextensions.JSONSchemaProps) map[string]any {
	obj := map[string]any{}
	for name, p := range props {
		if rng.IntN(4) == 0 {
			obj[name] = randomValue(rng, &p)
		}
	}
	if rng.IntN(3) > 0 {
		obj["size"] = rng.Int64N(12)
	}
	return obj
}

func randomValue(rng *rand.Rand, p *apiextensions.JSONSchemaProps) any {
	if rng.IntN(12) == 0 {
		return []any{nil, "x", int64(3), 2.5, true, map[string]any{}, []any{}, int64(1) << 40, 2.0}[rng.IntN(9)]
	}
	switch {
	case len(p.Enum) > 0 && rng.IntN(2) == 0:
		var v any
		_ = json.Unmarshal(p.Enum[rng.IntN(len(p.Enum))].Raw, &v)
		return v
	case p.Type == "object" && p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil:
		return map[string]any{"a": randomValue(rng, p.AdditionalProperties.Schema)}
	case p.Type == "object":
		return randomObject(rng, p.Properties)
	case p.Type == "array":
		list := []any{}
		for range rng.IntN(5) {
			list = append(list, randomValue(rng, p.Items.Schema))
		}
		return list
	case p.Type == "integer":
		return rng.Int64N(12)
	case p.Type == "number":
		return rng.Float64() * 2
	case p.Type == "boolean":
		return true
	}
	return strings.Repeat("ab", rng.IntN(4))
}

func BenchmarkValidate(b *testing.B) {
	s := mustCompile(b, widget)
	obj := object(b, `spec: {size: 3, name: abc, tags: [a, b], parts: [{name: a, count: 1}, {name: b}], map: {a: 1, b: 2}, free: {x: {y: 1}}}`)
	b.Run("quick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if errs := s.Validate(context.Background(), obj); errs != nil {
				b.Fatal(errs)
			}
		}
	})
	b.Run("explaining", func(b *testing.B) {
		schema, err := s.slow.schema(s.props)
		if err != nil {
			b.Fatal(err)
		}
		work := boundedregexp.NewWork(context.Background(), math.MaxInt64)
		b.ReportAllocs()
		for b.Loop() {
			if found := (explainer{s.patterns, work}).value(schema, obj, "", nil).errs; len(found) > 0 {
				b.Fatal(found)
			}
		}
	})
}

func ExampleSchema_Prune() {
	var props apiextensions.JSONSchemaProps
	_ = yaml.Unmarshal([]byte(`{type: object, properties: {size: {type: integer}}}`), &props)
	s, _ := Compile(&props, 64<<20)
	obj := map[string]any{"size": int64(1), "colour": "red"}
	fmt.Println(s.Prune(obj, true), obj)
	// Output: [colour] map[size:1]
}
