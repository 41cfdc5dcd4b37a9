package cel

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
)

func schema(t *testing.T, text string) *apiextensions.JSONSchemaProps {
	t.Helper()
	p := &apiextensions.JSONSchemaProps{}
	if err := json.Unmarshal([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return p
}

func object(t *testing.T, text string) map[string]any {
	t.Helper()
	if text == "" {
		return nil
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return integers(v).(map[string]any)
}

// integers makes the numbers of JSON what the API has.
func integers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		return int64(v)
	}
	return v
}

func TestFieldPath(t *testing.T) {
	p := schema(t, `{"type":"object","properties":{"a":{"type":"object","properties":{"b.c":{"type":"string"}}},
		"m":{"type":"object","additionalProperties":{"type":"string"}}}}`)
	for _, c := range []struct {
		text, path, err string
		keys            bool
	}{
		{text: ".a", path: "a"},
		{text: ".a['b.c']", path: "a.b.c", keys: true},
		{text: ".a['b.c']", err: "array notation is not allowed"},
		{text: ".m.x", path: "m[x]"},
		{text: ".m['it\\'s']", path: "m[it's]", keys: true},
		{text: ".nope", err: "does not refer to a valid field"},
		{text: "a", err: "expected [ or . but got: a"},
		{text: ".a[", err: "unexpected end of JSON path", keys: true},
		{text: ".a[0]", err: "expected single quoted string but got 0", keys: true},
		{text: ".", err: "unexpected end of JSON path"},
		{text: ".a['\\q']", err: `invalid string literal: invalid escape char \q`, keys: true},
	} {
		path, _, err := FieldPath(c.text, p, c.keys)
		switch {
		case c.err != "" && (err == nil || err.Error() != c.err):
			t.Errorf("%s: error %v, want %s", c.text, err, c.err)
		case c.err == "" && (err != nil || path.String() != c.path):
			t.Errorf("%s: %v, %v; want %s", c.text, path, err, c.path)
		}
	}
}

// roomy is room for the programs of all rules of a test.
const roomy = 64 << 20

func TestRules(t *testing.T) {
	for _, c := range []struct {
		name, schema, obj, old string
		want                   []string
		warnings               int
	}{
		{name: "holds", schema: `{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.n > 0"}]}`, obj: `{"n":1}`},
		{name: "broken", schema: `{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.n > 0"}]}`, obj: `{"n":0}`,
			want: []string{`<nil>: Invalid value: failed rule: self.n > 0`}},
		{name: "below", schema: `{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 0","message":"too small"}]}}}`, obj: `{"n":0}`,
			want: []string{`n: Invalid value: 0: too small`}},
		{name: "reason and path", schema: `{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.n > 0","reason":"FieldValueForbidden","fieldPath":".n"}]}`, obj: `{"n":0}`,
			want: []string{`n: Forbidden: failed rule: self.n > 0`}},
		{name: "message expression", schema: `{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.n > 0","message":"no","messageExpression":"'got ' + string(self.n)"}]}`, obj: `{"n":-1}`,
			want: []string{`<nil>: Invalid value: got -1`}},
		{name: "message expression fails", schema: `{"type":"object","properties":{"n":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.n > 0","message":"no","messageExpression":"string(1/self.n)"}]}`, obj: `{"n":0}`,
			want: []string{`<nil>: Invalid value: no`}},
		{name: "runtime error", schema: `{"type":"object","properties":{"l":{"type":"array","maxItems":3,"items":{"type":"integer"}}},"x-kubernetes-validations":[{"rule":"self.l[0] > 0"}]}`, obj: `{"l":[]}`,
			want: []string{`<nil>: Invalid value: "object": index out of bounds: 0 evaluating rule: self.l[0] > 0`}},
		{name: "transition on create", schema: `{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self >= oldSelf"}]}}}`, obj: `{"n":0}`},
		{name: "transition", schema: `{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self >= oldSelf"}]}}}`, obj: `{"n":0}`, old: `{"n":1}`,
			want: []string{`n: Invalid value: 0: failed rule: self >= oldSelf`}},
		{name: "optional old", schema: `{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"oldSelf.hasValue() || self == 7","optionalOldSelf":true}]}}}`, obj: `{"n":0}`,
			want: []string{`n: Invalid value: 0: failed rule: oldSelf.hasValue() || self == 7`}},
		{name: "unchanged", schema: `{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 0"}]},"m":{"type":"integer"}}}`, obj: `{"n":0,"m":2}`, old: `{"n":0,"m":1}`, warnings: 1},
		{name: "keyed items", schema: `{"type":"object","properties":{"l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string"},"v":{"type":"integer"}},
			"x-kubernetes-validations":[{"rule":"self.v >= oldSelf.v"}]}}}}`, obj: `{"l":[{"k":"b","v":1},{"k":"a","v":1}]}`, old: `{"l":[{"k":"a","v":2},{"k":"b","v":1}]}`,
			want: []string{`l[1]: Invalid value: failed rule: self.v >= oldSelf.v`}},
		{name: "metadata", schema: `{"type":"object","x-kubernetes-validations":[{"rule":"self.metadata.name.startsWith('x')"}]}`, obj: `{"metadata":{"name":"y"}}`,
			want: []string{`<nil>: Invalid value: failed rule: self.metadata.name.startsWith('x')`}},
		{name: "map values", schema: `{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 0"}]}}}}`, obj: `{"m":{"a":1,"b":0}}`,
			want: []string{`m[b]: Invalid value: 0: failed rule: self > 0`}},
		{name: "items of an object", schema: `{"type":"object","properties":{"l":{"type":"object","items":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 0"}]}}}}`, obj: `{"l":[1]}`,
			want: []string{`l[0]: Invalid value: "integer": rule compiler initialization error: failed to convert to declType for CEL validation rules`}},
		{name: "below items of an object", schema: `{"type":"object","properties":{"l":{"type":"object","items":{"type":"object","properties":{"n":{"type":"integer","x-kubernetes-validations":[{"rule":"self > 0"}]}}}}}}`, obj: `{"l":[{"n":0}]}`},
	} {
		// Rules that are kept and such as are compiled each time.
		for _, room := range []int{roomy, 0} {
			t.Run(fmt.Sprintf("%s/room-%d", c.name, room), func(t *testing.T) {
				typ := NewType(schema(t, c.schema), true)
				obj, old := object(t, c.obj), object(t, c.old)
				var before any
				var correlation *common.CorrelatedObject
				if old != nil {
					before, correlation = old, common.NewCorrelatedObject(obj, old, typ)
				}
				warnings := 0
				check := &Check{Budget: Budget, Warn: func(*field.Error) { warnings++ }}
				errs := NewRules(typ, room).Validate(context.Background(), nil, obj, before, correlation, check)
				var got []string
				for _, err := range errs {
					got = append(got, err.Error())
				}
				if strings.Join(got, "; ") != strings.Join(c.want, "; ") {
					t.Errorf("got  %q\nwant %q", got, c.want)
				}
				if warnings != c.warnings {
					t.Errorf("%d warnings, want %d", warnings, c.warnings)
				}
			})
		}
	}
}

func TestNoRules(t *testing.T) {
	if r := NewRules(NewType(schema(t, `{"type":"object","properties":{"a":{"type":"string"}}}`), true), roomy); r != nil {
		t.Error("a schema without rules has some")
	}
}

// TestBudget checks that rules end when they have cost enough.
func TestBudget(t *testing.T) {
	typ := NewType(schema(t, `{"type":"object","properties":{"l":{"type":"array","items":{"type":"integer"}}},
		"x-kubernetes-validations":[{"rule":"self.l.all(a, self.l.all(b, self.l.all(c, a+b+c >= 0)))"},{"rule":"false"}]}`), true)
	list := make([]any, 200)
	for i := range list {
		list[i] = int64(i)
	}
	check := &Check{Budget: Budget}
	errs := NewRules(typ, roomy).Validate(context.Background(), nil, map[string]any{"l": list}, nil, nil, check)
	if len(errs) != 1 || !strings.Contains(errs[0].Error(), "no further validation rules will be run") {
		t.Errorf("got %v", errs)
	}
	if check.Budget >= 0 {
		t.Errorf("a budget of %d is left", check.Budget)
	}
}
