//go:build unix

package managedfields

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// FuzzDecodeJSON checks that what is read as JSON has the same meaning in YAML.
func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"a":1}`, `{"a":1.0}`, `{"a":"y","b":[true,null,-3,""]}`, `{"a":"\u00e9"}`, `{"a":"x\n\"q\""}`, `{"<<":{"a":1}}`,
		"{\n  \"a\": {\n    \"b\": [ ]\n  }\n}\n", `{"a":1e3}`, `{"a":12345678901234567890}`, `{"a":"1","a":"2"}`, `{"":" # x: y"}`, `{"a":"--- "}`, `{"a":1}}`,
		`{"a":"%x","b":"!t","c":"*r"}`, `{"a b":{"c":"d: e, f"}}`, `{"a":-0}`, `{"a":"tab\tx"}`, `{"? a":1}`, `{"a":"x"} `,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fields, twice, ok := decodeJSON(data)
		if !ok {
			return
		}
		want := map[string]any{}
		if err := yaml.Unmarshal(data, &want); err != nil {
			t.Fatalf("%q: %v", data, err)
		}
		if !reflect.DeepEqual(fields, want) {
			t.Fatalf("%q\ngot  %#v\nwant %#v", data, fields, want)
		}
		if err := yaml.UnmarshalStrict(data, &map[string]any{}); (err != nil) != twice {
			t.Fatalf("%q: given twice: %v, in YAML: %v", data, twice, err)
		}
	})
}

func BenchmarkDecodePatch(b *testing.B) {
	for _, s := range scenes(b) {
		if s.name != "pod-apply-no-op" {
			continue
		}
		data, err := s.patch.MarshalJSON()
		if err != nil {
			b.Fatal(err)
		}
		b.Run("kelson", func(b *testing.B) {
			for b.Loop() {
				if _, err := DecodePatch(data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("stock", func(b *testing.B) {
			for b.Loop() {
				if err := yaml.Unmarshal(data, &map[string]any{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
