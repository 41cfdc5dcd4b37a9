package protojson

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
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

// TestIsPlainQuantity: what is taken for the canonical form of a quantity is that.
func TestIsPlainQuantity(t *testing.T) {
	plain := 0
	for n := range 2100 {
		for _, suffix := range []string{"", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "u", "n", "e3", "x", ".5"} {
			text := strconv.Itoa(n*n/7) + suffix
			if !isPlainQuantity([]byte(text)) {
				continue
			}
			plain++
			q, err := resource.ParseQuantity(text)
			if err != nil || q.String() != text {
				t.Errorf("%s is taken for canonical: got %s and %v", text, q.String(), err)
			}
		}
	}
	if plain < 10_000 {
		t.Errorf("only %d quantities were taken for canonical", plain)
	}
	for _, text := range []string{"", "0m", "01", "-1", "+1", "1 ", "9999999999"} {
		if isPlainQuantity([]byte(text)) {
			t.Errorf("%q is taken for canonical", text)
		}
	}
}
