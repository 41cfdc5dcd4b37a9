package crd

import (
	"encoding/json"
	"reflect"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// checkRead compares a schema with what UnmarshalJSON reads.
func checkRead(t *testing.T, text []byte) {
	t.Helper()
	want := &spec.Schema{}
	wantErr := want.UnmarshalJSON(text)
	got, err := readSchema(text)
	if (err != nil) != (wantErr != nil) {
		t.Errorf("%s: %v, want %v", text, err, wantErr)
	} else if err == nil && !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got\n%#v, want\n%#v", text, got, want)
	}
}

var someSchemas = []string{
	`{}`, `{"type":"object","description":"a","title":"T","format":"int32","nullable":true,"default":null}`,
	`{"type":["string","null"],"default":{"b":[1,-0.0,0,1.5,1e21,1e-7,123456789012345678,12345678901234567890,null,true],"a":{}},"enum":["a",1,null,[],{}]}`,
	`{"maximum":0,"minimum":-1.25,"multipleOf":1e300,"exclusiveMaximum":true,"exclusiveMinimum":true,"maxLength":0,"minLength":9007199254740993,"maxItems":1,"minItems":2,"maxProperties":3,"minProperties":4,"uniqueItems":true,"pattern":"a"}`,
	`{"properties":{"z":{"type":"string"},"a":{"items":{"items":{}}},"é":{"not":{"required":["a","&"]}},"":{}},"required":[],"enum":[],"allOf":[]}`,
	`{"allOf":[{}],"oneOf":[{},{"type":"string"}],"anyOf":[{"additionalProperties":true},{"additionalProperties":false},{"additionalProperties":{"x-a":1}}],"properties":{}}`,
	`{"x-b":{"rule":"a < b","x":[{"y":15}]},"x-a":[],"x-kubernetes-preserve-unknown-fields":true,"X-c":1,"type":"object"}`,
	`{"id":"a","properties":{"b":{"readOnly":true,"example":1},"c":{"externalDocs":{"url":"x"}},"d":{"items":[{},{"type":"string"}]}},"unknown":1}`,
	`{"maxLength":1.5}`, `{"maxLength":1.0}`, `{"type":1}`, `{"properties":null}`, `{"items":null}`, `{"required":null}`, `{"required":[null]}`, `{"enum":null}`, `{"not":null}`,
	`{"additionalProperties":null}`, `{"description":null}`, `{"nullable":null}`, `{"$ref":"#/a"}`, `{"type":null}`, `{"x-a":null}`, `{"Type":"a"}`, `[]`, `null`, `{"type":"a"} x`, ``,
}

func TestReadSchema(t *testing.T) {
	for _, text := range someSchemas {
		checkRead(t, []byte(text))
	}
}

// TestSchemasThatAreNotStructural wants such a schema to count as none: kinds without a schema
// can be applied, and types of half a schema cannot be made.
func TestSchemasThatAreNotStructural(t *testing.T) {
	for text, structural := range map[string]bool{
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}}}`: true,
		`{"type":"object","properties":{"a":{"type":"array"}}}`:                           false,
		`{"properties":{"a":{"type":"array"}}}`:                                           false,
	} {
		got := openAPISchema(&schemaText{json: json.RawMessage(text), preserve: true})
		if _, ok := got.Properties["a"]; ok != structural {
			t.Errorf("%s: a property is there: %v, want %v", text, ok, structural)
		}
		if open, _ := got.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); !open {
			t.Errorf("%s: unknown fields are not preserved", text)
		}
	}
}

func FuzzReadSchema(f *testing.F) {
	for _, text := range someSchemas {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		// What is stored was written by a server: no name is there twice.
		var value any
		if json.Unmarshal(text, &value) != nil {
			return
		}
		clean, err := json.Marshal(value)
		if err != nil {
			return
		}
		checkRead(t, clean)
	})
}
