package rules

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// definition returns one with a schema for .spec.a, and whatever changes in it.
func definition(t *testing.T, a string, change func(*v1.CustomResourceDefinition)) *v1.CustomResourceDefinition {
	t.Helper()
	crd := &v1.CustomResourceDefinition{}
	text := `
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  conversion: {strategy: None}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {a: ` + a + `}}}}}
status: {storedVersions: [v1]}`
	if err := yaml.UnmarshalStrict([]byte(text), crd); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(crd)
	}
	return crd
}

func texts(errs field.ErrorList) []string {
	var out []string
	for _, err := range errs {
		out = append(out, strings.ReplaceAll(err.Error(), "spec.validation.openAPIV3Schema.properties[spec].properties[a]", "A"))
	}
	slices.Sort(out)
	return out
}

func TestSchemas(t *testing.T) {
	for _, c := range []struct {
		a    string
		want []string
	}{
		{`{type: string}`, nil},
		{`{}`, []string{`A.type: Required value: must not be empty for specified object fields`}},
		{`{type: foo}`, []string{`A.type: Unsupported value: "foo": supported values: "array", "boolean", "integer", "number", "object", "string"`}},
		{`{type: array}`, []string{`A.items: Required value: must be specified`}},
		{`{type: string, allOf: [{type: string}]}`, []string{`A.allOf[0].type: Forbidden: must be empty to be structural`}},
		{`{x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}`, nil},
		{`{type: string, pattern: "(("}`, []string{"A.pattern: Invalid value: \"((\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `((`"}},
		{`{type: integer, default: x}`, []string{`A.default: Invalid value: "string":  in body must be of type integer: "string"`}},
		{`{type: object, default: {z: 1}}`, []string{`A.default: Invalid value: {"z":1}: must not have unknown fields`}},
		{`{type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], items: {type: object, properties: {k: {type: string}}}}`,
			[]string{`A.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property`}},
		{`{type: object, properties: {b: {type: string}}, additionalProperties: {type: string}}`,
			[]string{`A.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive`}},
		{`{type: integer, x-kubernetes-validations: [{rule: "self > 0"}]}`, nil},
		{`{type: integer, x-kubernetes-validations: [{rule: "1"}]}`,
			[]string{`A.x-kubernetes-validations[0].rule: Invalid value: {"Rule":"1","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: cel expression must evaluate to a bool`}},
		{`{type: array, items: {type: string, maxLength: 3, x-kubernetes-validations: [{rule: "self == oldSelf"}]}}`,
			[]string{`A.items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within A`}},
	} {
		got := texts(new(Judge).Validate(context.Background(), definition(t, c.a, nil)))
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], "spec.validation.openAPIV3Schema.properties[spec].properties[a]", "A")
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s\ngot  %q\nwant %q", c.a, got, c.want)
		}
	}
}

func TestDefinition(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*v1.CustomResourceDefinition)
		want   []string
	}{
		{"name", func(c *v1.CustomResourceDefinition) { c.Name = "x.example.com" },
			[]string{`metadata.name: Invalid value: "x.example.com": must be spec.names.plural+"."+spec.group`}},
		{"group", func(c *v1.CustomResourceDefinition) { c.Spec.Group, c.Name = "example", "widgets.example" },
			[]string{`spec.group: Invalid value: "example": should be a domain with at least one dot`}},
		{"scope", func(c *v1.CustomResourceDefinition) { c.Spec.Scope = "" }, []string{`spec.scope: Required value`}},
		{"no schema", func(c *v1.CustomResourceDefinition) { c.Spec.Versions[0].Schema = nil },
			[]string{`spec.versions[0].schema.openAPIV3Schema: Required value`}},
		{"approval", func(c *v1.CustomResourceDefinition) { c.Spec.Group, c.Name = "k8s.io", "widgets.k8s.io" },
			[]string{`metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111`}},
		{"selectable", func(c *v1.CustomResourceDefinition) {
			c.Spec.Versions[0].SelectableFields = []v1.SelectableField{{JSONPath: ".spec"}}
		}, []string{`spec.selectableFields[0].jsonPath: Invalid value: ".spec": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.`}},
		{"deep", func(c *v1.CustomResourceDefinition) {
			p := v1.JSONSchemaProps{Type: "string"}
			for range maxDepth + 1 {
				p = v1.JSONSchemaProps{Type: "object", Properties: map[string]v1.JSONSchemaProps{"p": p}}
			}
			c.Spec.Versions[0].Schema.OpenAPIV3Schema = &p
		}, []string{fmt.Sprintf(`spec.validation.openAPIV3Schema: Invalid value: "": must not be nested more than %d levels deep`, maxDepth)}},
	} {
		if got := texts(new(Judge).Validate(context.Background(), definition(t, `{type: string}`, c.change))); !slices.Equal(got, c.want) {
			t.Errorf("%s\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}

// TestUpdate checks what may not change, and what may stay wrong.
func TestUpdate(t *testing.T) {
	old := definition(t, `{type: string}`, func(c *v1.CustomResourceDefinition) {
		c.Status.Conditions = []v1.CustomResourceDefinitionCondition{{Type: v1.Established, Status: v1.ConditionTrue}}
	})
	crd := old.DeepCopy()
	crd.Spec.Scope, crd.Spec.Names.Kind = v1.ClusterScoped, "Other"
	want := []string{`spec.names.kind: Invalid value: "Other": field is immutable`, `spec.scope: Invalid value: "Cluster": field is immutable`}
	if got := texts(new(Judge).ValidateUpdate(context.Background(), crd, old)); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	bad := definition(t, `{type: array, x-kubernetes-list-type: set, items: {type: object, properties: {b: {type: string}}}}`, nil)
	if got := new(Judge).Validate(context.Background(), bad); len(got) == 0 {
		t.Error("a set of objects is accepted")
	}
	if got := new(Judge).ValidateUpdate(context.Background(), bad.DeepCopy(), bad); len(got) > 0 {
		t.Errorf("a set of objects that was there is refused: %v", got)
	}
}

// TestAccepted checks that what was accepted once is accepted again, and that
// nothing else is.
func TestAccepted(t *testing.T) {
	judge := new(Judge)
	const rule = `{type: string, maxLength: 5, x-kubernetes-validations: [{rule: "self != 'a'"}]}`
	for range 2 {
		if errs := judge.Validate(context.Background(), definition(t, rule, nil)); len(errs) > 0 {
			t.Fatal(errs)
		}
	}
	if len(judge.accepted.seen) != 1 {
		t.Errorf("%d schemas are remembered", len(judge.accepted.seen))
	}
	if errs := judge.Validate(context.Background(), definition(t, strings.Replace(rule, "!=", "==>", 1), nil)); len(errs) != 1 {
		t.Errorf("a rule that is none: %v", errs)
	}
	// What is tolerated because it was there is not what others may have.
	bad := definition(t, `{type: array, x-kubernetes-list-type: set, items: {type: object}}`, nil)
	if errs := judge.ValidateUpdate(context.Background(), bad.DeepCopy(), bad); len(errs) > 0 {
		t.Errorf("a set of objects that was there is refused: %v", errs)
	}
	if errs := judge.Validate(context.Background(), bad); len(errs) == 0 {
		t.Error("a set of objects is accepted")
	}
	for i := range maxAccepted + 10 {
		judge.accepted.add(verdict{schema: [32]byte{byte(i), byte(i >> 8), 1}})
	}
	if len(judge.accepted.seen) != maxAccepted {
		t.Errorf("%d schemas are remembered, want %d", len(judge.accepted.seen), maxAccepted)
	}
}

func TestWarnings(t *testing.T) {
	crd := definition(t, `{type: string, format: bogus}`, nil)
	if got := Warnings(crd, nil); !slices.Equal(got, []string{`unrecognized format "bogus"`}) {
		t.Errorf("got %q", got)
	}
	if got := Warnings(crd, crd); len(got) > 0 {
		t.Errorf("a format that was there: %q", got)
	}
}

func TestEqual(t *testing.T) {
	a, b := definition(t, `{type: object, default: {}}`, nil), definition(t, `{type: object, default: {}}`, nil)
	spec := a.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	p := spec.Properties["a"]
	p.Default = &v1.JSON{Raw: json.RawMessage("{ }")}
	spec.Properties["a"] = p
	if !Equal(&a.Spec, &b.Spec) {
		t.Error("the spelling of JSON makes a difference")
	}
	p.Default = &v1.JSON{Raw: json.RawMessage("1")}
	spec.Properties["a"] = p
	if Equal(&a.Spec, &b.Spec) {
		t.Error("different JSON is equal")
	}
}

func TestRespell(t *testing.T) {
	for text, want := range map[string]string{
		`1.0`: `1`, `1`: `1`, `-0.0`: `0`, `1e2`: `100`, `1.50`: `1.5`, `"1.0"`: `"1.0"`, `{"b":[1.0],"a":null}`: `{"a":null,"b":[1]}`,
		`12345678901234567890`: `12345678901234567000`, `9223372036854775807`: `9223372036854775807`,
	} {
		below := v1.JSONSchemaProps{Enum: []v1.JSON{{}, {Raw: []byte(text)}}, Example: &v1.JSON{Raw: []byte(text)}}
		p := &v1.JSONSchemaProps{Default: &v1.JSON{Raw: []byte(text)}, Properties: map[string]v1.JSONSchemaProps{"a": below}}
		Respell(&v1.CustomResourceDefinitionSpec{Versions: []v1.CustomResourceDefinitionVersion{{Schema: &v1.CustomResourceValidation{OpenAPIV3Schema: p}}}})
		for _, got := range []v1.JSON{*p.Default, p.Properties["a"].Enum[1], *p.Properties["a"].Example} {
			if string(got.Raw) != want {
				t.Errorf("%s is kept as %s, want %s", text, got.Raw, want)
			}
		}
	}
}

// TestNonStructural has the reasons and messages of the condition NonStructuralSchema.
func TestNonStructural(t *testing.T) {
	for _, c := range []struct {
		a            string
		preserves    bool
		reason, text string
	}{
		{a: `{type: string}`},
		{a: `{}`, reason: Violations, text: `spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[a].type: Required value: must not be empty for specified object fields`},
		{a: `{type: string}`, preserves: true, reason: Violations, text: `spec.preserveUnknownFields: Invalid value: true: must be false`},
		{a: `{type: string, $ref: x}`, reason: StructuralError, text: `failed to check validation schema for version v1: OpenAPIV3Schema '$ref' is not supported`},
	} {
		crd := definition(t, c.a, func(crd *v1.CustomResourceDefinition) { crd.Spec.PreserveUnknownFields = c.preserves })
		if reason, text := NonStructural(&crd.Spec); reason != c.reason || text != c.text {
			t.Errorf("%s: got %q %q, want %q %q", c.a, reason, text, c.reason, c.text)
		}
	}
}
