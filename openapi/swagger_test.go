package openapi

import (
	"encoding/json"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

func TestSwagger(t *testing.T) {
	for _, c := range []struct{ v3, v2 string }{
		{`{"type":"string","default":"x"}`, `{"type":"string"}`},
		{`{"description":"d","allOf":[{"$ref":"#/components/schemas/a.B"}]}`, `{"description":"d","$ref":"#/definitions/a.B"}`},
		{`{"type":"object","properties":{"a":{"$ref":"#/components/schemas/a.B"}}}`, `{"type":"object","properties":{"a":{"$ref":"#/definitions/a.B"}}}`},
		{`{"anyOf":[{"type":"integer"},{"type":"string"}],"x-kubernetes-int-or-string":true}`, `{"x-kubernetes-int-or-string":true}`},
		{`{"type":"object","required":["a","b"],"properties":{"a":{"type":"string","nullable":true},"b":{"type":"string"}}}`,
			`{"type":"object","required":["b"],"properties":{"a":{},"b":{"type":"string"}}}`},
		{`{"type":"object","properties":{"a":{}},"x-kubernetes-preserve-unknown-fields":true}`, `{"x-kubernetes-preserve-unknown-fields":true}`},
		{`{"type":"array","nullable":true,"items":{"type":"string"}}`, `{}`},
		{`{"type":"array","items":{"type":"object","oneOf":[{"required":["a"]}]}}`, `{"type":"array","items":{"type":"object"}}`},
	} {
		var in, want spec.Schema
		if err := json.Unmarshal([]byte(c.v3), &in); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.v2), &want); err != nil {
			t.Fatal(err)
		}
		got, _ := swagger(&in).MarshalJSON()
		again, _ := want.MarshalJSON()
		if string(got) != string(again) {
			t.Errorf("%s: got %s, want %s", c.v3, got, again)
		}
		if left, _ := json.Marshal(in); in.Default == nil && string(left) != c.v3 && len(left) != len(c.v3) {
			t.Errorf("%s was changed to %s", c.v3, left)
		}
	}
}
