package cel

import (
	"context"
	"encoding/json"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

func BenchmarkCompile(b *testing.B) {
	var props apiextensions.JSONSchemaProps
	if err := json.Unmarshal([]byte(`{"type":"object","properties":{"spec":{"type":"object","properties":{
		"a":{"type":"integer"},"b":{"type":"string","maxLength":10},"l":{"type":"array","maxItems":10,"items":{"type":"object","properties":{"x":{"type":"string"}}}}},
		"x-kubernetes-validations":[{"rule":"self.a > 1"},{"rule":"self.b.startsWith('x')"}]}}}`), &props); err != nil {
		b.Fatal(err)
	}
	spec := props.Properties["spec"]
	b.ReportAllocs()
	for b.Loop() {
		t := NewType(&spec, false)
		if _, err := Compile(boundedregexp.NewWork(context.Background(), boundedregexp.MaxWork), t, func(string) bool { return false }); err != nil {
			b.Fatal(err)
		}
	}
}
