package protojson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// fieldSet is one as ownership writes it.
const fieldSet = `{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"a\\\\b\"}":{".":{},"f:image":{}}}}}`

func TestIsFieldSet(t *testing.T) {
	for text, want := range map[string]bool{
		"{}": true, `{"":{}}`: true, fieldSet: true, strings.Repeat(`{"a":`, 999) + "{}" + strings.Repeat("}", 999): true,
		strings.Repeat(`{"a":`, 1000) + "{}" + strings.Repeat("}", 1000): false,
		"": false, "{": false, "}": false, "{}}": false, "{}{}": false, `{"a":{}`: false, `{"a":{},}`: false, `{,"a":{}}`: false, `{"a":{}"b":{}}`: false,
		`{"a"{}}`: false, `{"a`: false, `{"a\`: false, `{"a\"`: false, `{"a\n":{}}`: false, `{"a":1}`: false, `{"<":{}}`: false, "{\"\n\":{}}": false, `{"a": {}}`: false, "{\"\u2028\":{}}": false,
	} {
		if got := isFieldSet([]byte(text)); got != want {
			t.Errorf("%.60s: %v", text, got)
		}
	}
}

// FuzzIsFieldSet: encoding/json leaves a set of fields as it is.
func FuzzIsFieldSet(f *testing.F) {
	f.Add([]byte(fieldSet))
	f.Fuzz(func(t *testing.T, text []byte) {
		if !isFieldSet(text) {
			return
		}
		if got, err := json.Marshal(json.RawMessage(text)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	})
}

func BenchmarkIsFieldSet(b *testing.B) {
	text := []byte(fieldSet)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if !isFieldSet(text) {
			b.Fatal("it is one")
		}
	}
}
