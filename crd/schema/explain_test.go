package schema

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
)

// alternatives is a schema with what widget has not.
const alternatives = `
type: object
properties:
  any: {type: string, anyOf: [{pattern: ^a}, {minLength: 4, pattern: c$}, {enum: [x, yy]}]}
  one: {type: object, properties: {a: {type: integer}, b: {type: string}}, oneOf: [{required: [a]}, {required: [b], properties: {b: {maxLength: 2}}}]}
  all: {type: integer, allOf: [{minimum: 3}, {maximum: 8}, {multipleOf: 2}]}
  not: {type: string, not: {pattern: b}}
  lists: {type: array, minItems: 1, maxItems: 3, items: {type: string, maxLength: 3}, anyOf: [{items: {pattern: a}}, {items: {pattern: b}}]}
  deep: {type: object, additionalProperties: {type: array, items: {type: number, format: float, maximum: 2, exclusiveMinimum: true, minimum: 0}}}
  sized: {type: object, minProperties: 1, maxProperties: 2, required: [a, b], additionalProperties: true}
  when: {type: string, format: date, pattern: '^2'}
  flag: {type: boolean, enum: [true]}
  mixed: {x-kubernetes-int-or-string: true, enum: [1, a, 2]}
  wide: {type: integer, format: int64, maximum: 9}
  any2: {x-kubernetes-preserve-unknown-fields: true, enum: [{a: 1}, [1, 2], null, 2.5]}
`

// TestExplanations compares the errors with those of the validator of kube-openapi.
func TestExplanations(t *testing.T) {
	rng := randomtest.From(t, 2)
	for _, text := range []string{alternatives, widget} {
		s := mustCompile(t, text)
		schema, err := s.slow.schema(s.props)
		if err != nil {
			t.Fatal(err)
		}
		properties, wrong := parse(t, text).Properties, 0
		for range testsize.Part(3000, 10) {
			obj := map[string]any{}
			for name, p := range properties {
				switch rng.IntN(8) {
				case 0, 1:
					obj[name] = randomValue(rng, &p)
				case 2:
					obj[name] = anything(rng, 3)
				}
			}
			var got, want []string
			for _, err := range (explainer{s.patterns, boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork)}).value(schema, obj, "", nil).errs {
				got = append(got, err.Error())
			}
			for _, err := range validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(obj).Errors {
				want = append(want, err.Error())
			}
			slices.Sort(got)
			slices.Sort(want)
			if len(want) > 0 {
				wrong++
			}
			if !slices.Equal(got, want) {
				text, _ := json.Marshal(obj)
				t.Fatalf("%s:\n got %s\nwant %s", text, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
			}
		}
		if wrong < 100 {
			t.Errorf("%d objects were wrong, want more", wrong)
		}
	}
}

// anything returns a value of any type.
func anything(rng *rand.Rand, depth int) any {
	kinds := 11
	if depth == 0 {
		kinds = 9
	}
	switch rng.IntN(kinds) {
	case 0:
		return nil
	case 1, 2:
		return []string{"", "a", "abc", "bbbc", "x", "cccc", "2020-01-02", "1999-12-31"}[rng.IntN(8)]
	case 3, 4:
		return rng.Int64N(12)
	case 5:
		return []float64{1, 2.5, 0, 2.0000000001, 1e300}[rng.IntN(5)]
	case 6:
		return rng.IntN(2) == 0
	case 7:
		return []any{int64(1), int64(2)}
	case 8:
		return map[string]any{"a": int64(1)}
	case 9:
		list := []any{}
		for range rng.IntN(5) {
			list = append(list, anything(rng, depth-1))
		}
		return list
	}
	obj := map[string]any{}
	for range rng.IntN(4) {
		obj[string(rune('a'+rng.IntN(3)))] = anything(rng, depth-1)
	}
	return obj
}

// TestEveryAlternativeIsJudged has a long list of which no alternative holds: the errors that
// the first one finds do not make the second one hold.
func TestEveryAlternativeIsJudged(t *testing.T) {
	s := mustCompile(t, `{type: object, properties: {list: {type: array, items: {type: string}, anyOf: [{items: {pattern: ^a}}, {items: {pattern: ^b}}]}}}`)
	list := make([]any, 2*maxFound)
	for i := range list {
		list[i] = "c"
	}
	if errs := s.Validate(context.Background(), map[string]any{"list": list}); len(errs) == 0 {
		t.Error("a list is valid that no alternative allows")
	}
}

// TestErrorsAreBounded has errors that name long enums.
func TestErrorsAreBounded(t *testing.T) {
	values := `["` + strings.Repeat("x", 1000) + `"`
	for range 400 {
		values += `,"` + strings.Repeat("y", 1000) + `"`
	}
	s := mustCompile(t, `{"type":"object","properties":{"list":{"type":"array","items":{"type":"string","enum":`+values+`]}}}}`)
	list := make([]any, 2*maxFound)
	for i := range list {
		list[i] = "c"
	}
	length := 0
	for _, err := range s.Validate(context.Background(), map[string]any{"list": list}) {
		length += len(err.Error())
	}
	if length == 0 || length > 4*maxFoundBytes {
		t.Errorf("the errors have %d bytes, want at most %d", length, 4*maxFoundBytes)
	}
}

// TestCostlyPatternsAreRefused validates a text of 2.9 MB against a pattern of a dozen
// characters, which would take minutes.
func TestCostlyPatternsAreRefused(t *testing.T) {
	s := mustCompile(t, `{type: object, properties: {a: {type: string, pattern: "(?:a|aa|aaa){300}b"}}}`)
	text := strings.Repeat("a", 2_900_000)
	began := time.Now()
	errs := s.Validate(context.Background(), map[string]any{"a": text})
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "exceeds the cost limit") {
		t.Errorf("got %.300v, want that it is too costly", errs)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if errs := s.Validate(ctx, map[string]any{"a": text[:20_000]}); len(errs) != 1 || !strings.Contains(errs[0].Error(), "context canceled") {
		t.Errorf("got %.300v after the request had ended", errs)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestManyAlternativesAreBounded has many alternatives, each of which is wrong about the last
// item of a long list: a product that grows faster than what was sent.
func TestManyAlternativesAreBounded(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},"anyOf":[`+
		strings.Repeat(`{"items":{"maxLength":1}},`, 2000)+`{"items":{"maxLength":1}}]}}}`)
	list := make([]any, 50_000)
	for i := range list {
		list[i] = "c"
	}
	list[len(list)-1] = "cc"
	obj, work := map[string]any{"a": list}, boundedregexp.NewWork(context.Background(), 4<<20)
	if s.root.holds(obj, work) || work.Err() != boundedregexp.ErrTooCostly {
		t.Errorf("the quick pass ended with %v, want %v", work.Err(), boundedregexp.ErrTooCostly)
	}
	schema, err := s.slow.schema(s.props)
	if err != nil {
		t.Fatal(err)
	}
	x := explainer{s.patterns, boundedregexp.NewWork(context.Background(), 4<<20)}
	if errs := x.explain(nil, schema, obj, nil); len(errs) != 1 || !strings.Contains(errs[0].Error(), "exceeds the cost limit") {
		t.Errorf("got %.300v, want that it is too costly", errs)
	}
}

// TestManyPatternsAreBounded validates an object against 15,000 patterns.
func TestManyPatternsAreBounded(t *testing.T) {
	var props strings.Builder
	obj := map[string]any{}
	for i := range testsize.Part(15_000, 10) {
		if i > 0 {
			props.WriteByte(',')
		}
		name := "f" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String()
		props.WriteString(`"` + name + `":{"type":"string","pattern":"^[a-z]{1,30}-` + name + `$"}`)
		obj[name] = "wrong"
	}
	s := mustCompile(t, `{"type":"object","properties":{`+props.String()+`}}`)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	errs := s.Validate(context.Background(), obj)
	took := time.Since(began)
	if want := min(len(obj), maxFound+1); len(errs) != want {
		t.Errorf("%d errors, want %d", len(errs), want)
	}
	for name := range obj {
		obj[name] = "a-" + name
	}
	if errs := s.Validate(context.Background(), obj); len(errs) > 0 {
		t.Errorf("got %.300v, want no errors", errs)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > int64(s.Weight()) {
		t.Errorf("%d bytes are kept, want at most %d", held, s.Weight())
	}
	if took > 20*time.Second {
		t.Errorf("the first object took %v", took)
	}
	t.Logf("the first object took %v; %d KiB are kept", took, (after.HeapAlloc-before.HeapAlloc)>>10)
}
