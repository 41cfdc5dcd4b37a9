package openapi

import (
	"bytes"
	"encoding/json"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// checkSchema compares a schema as it is written with what MarshalJSON returns.
func checkSchema(t *testing.T, s *spec.Schema) {
	t.Helper()
	compare := func(got []byte, err error, want []byte, wantErr error) {
		t.Helper()
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%v, want %v", err, wantErr)
		}
		if err == nil && !bytes.Equal(got, want) {
			t.Errorf("got\n%s, want\n%s", got, want)
		}
	}
	got, err := marshalSchema3(s)
	want, wantErr := s.MarshalJSON()
	compare(got, err, appendHTML(nil, want), wantErr)
	got, err = marshalSchema2(s)
	want, wantErr = swagger(s).MarshalJSON()
	compare(got, err, want, wantErr)
}

var someSchemas = []string{
	`{}`, `{"type":"object","description":"<a> & \"b\" \\ \u2028 \u00e9 \n\t\r\b\f\u0001\u007f","title":"T","format":"int32"}`,
	`{"type":["string","null"],"default":{"b":[1,-0.0,0,1.5,1e21,1e-7,123456789012345678,null,true],"a":{}},"enum":["a",1,null,[],{}],"nullable":true}`,
	`{"maximum":0,"minimum":-1.25,"multipleOf":1e300,"exclusiveMaximum":true,"exclusiveMinimum":true,"maxLength":0,"minLength":9007199254740993,"maxItems":1,"minItems":2,"maxProperties":3,"minProperties":4,"uniqueItems":true,"pattern":"^<a>$"}`,
	`{"properties":{"z":{"type":"string"},"a<b":{"items":{"items":{}}},"é":{"not":{"required":["a","&"]}},"":{}},"required":[]}`,
	`{"allOf":[{"$ref":"#/components/schemas/a.b"}],"oneOf":[{},{"type":"string"}],"anyOf":[{"additionalProperties":true},{"additionalProperties":false},{"additionalProperties":{"x-a":1}}]}`,
	`{"x-b":{"rule":"a < b","x":[{"y":1.5}]},"x-a":[],"x-kubernetes-preserve-unknown-fields":true,"type":"object"}`,
	`{"id":"a","properties":{"b":{"readOnly":true,"example":1},"c":{"externalDocs":{"url":"<x>"}},"d":{"items":[{},{"type":"string"}]}},"unknown":1}`,
	`{"patternProperties":{"a":{}},"definitions":{"b":{}},"dependencies":{"c":["d"]},"additionalItems":false,"$schema":"s","discriminator":"d","enum":[]}`,
}

func TestMarshalSchema(t *testing.T) {
	for _, text := range someSchemas {
		s := &spec.Schema{}
		if err := json.Unmarshal([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		checkSchema(t, s)
	}
	rules := []apiextensions.ValidationRule{{Rule: "a < b", Message: "m"}, {Rule: "b"}}
	for _, s := range []*spec.Schema{
		{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{}, Default: []any(nil)}},
		{SchemaProps: spec.SchemaProps{Description: "a\xffb"}},
		{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Items: &spec.SchemaOrArray{}}},
		{VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-validations": rules, "x-a": int64(5), "X-B": 1, "c": 2}}},
		{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"a"}}, VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-a": 1, "x-kubernetes-validations": rules}}},
		{VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{"x-kubernetes-validations": rules}}},
	} {
		checkSchema(t, s)
	}
}

func FuzzMarshalSchema(f *testing.F) {
	for _, text := range someSchemas {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s := &spec.Schema{}
		if json.Unmarshal(text, s) == nil {
			checkSchema(t, s)
		}
	})
}
