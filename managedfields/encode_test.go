package managedfields

import (
	"bytes"
	"encoding/json"
	"testing"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// FuzzDecode compares the decoder and the encoder of sets with the library's.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"f:a":{}}`, `{"f:a":{".":{},"f:b":{}}}`, `{"f:a":{".":{}}}`, `{"f:b":{},"f:a":{}}`, ` {"f:a": {} }`, `{"f:a":null}`, `null`, `[]`, `{"f:a":1}`,
		`{"f:l":{"k:{\"name\":\"x\",\"port\":80}":{".":{},"f:name":{}},"v:\"q\"":{},"v:1.5":{},"i:3":{}}}`,
		`{"f:l":{"k:{\"name\":\"<\\\"\"}":{}}}`, `{"x:y":{}}`, `{".":{},"f:a":{}}`, `{"f:a":{}}x`, `{"f:ü":{"v:null":{},"v:true":{}}}`, `{"f:a":{},"f:a":{"f:b":{}}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		want := &fieldpath.Set{}
		wantErr := want.FromJSON(bytes.NewReader(data))
		got, err := decode(data)
		if (wantErr != nil) != (err != nil) {
			t.Fatalf("%q: error %v, the library's %v", data, err, wantErr)
		}
		if err != nil {
			return
		}
		text, err := want.ToJSON()
		if err != nil {
			return
		}
		if encoded := got.encode(nil); !bytes.Equal(encoded, text) {
			t.Fatalf("%q\ngot  %s\nwant %s", data, encoded, text)
		}
		if !json.Valid(text) {
			return
		}
		if set := got.set(); !set.Equals(want) {
			t.Fatalf("%q: set %v, want %v", data, set, want)
		}
	})
}

func TestSetOperations(t *testing.T) {
	parse := func(s string) *node {
		n, err := decode([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sets := []string{
		`{}`, `{"f:a":{}}`, `{"f:a":{".":{},"f:b":{},"f:c":{"f:d":{}}}}`, `{"f:a":{"f:c":{"f:d":{},"f:e":{}}},"f:z":{}}`,
		`{"f:l":{".":{},"k:{\"n\":\"x\"}":{".":{},"f:n":{}},"k:{\"n\":\"y\"}":{"f:m":{}}}}`, `{"f:l":{"k:{\"n\":\"x\"}":{"f:n":{}},"v:1":{}}}`,
		`{"f:b":{},"f:l":{}}`,
	}
	for _, x := range sets {
		for _, y := range sets {
			a, b := parse(x), parse(y)
			for name, got := range map[string]*node{"minus": a.minus(b, member), "plus": a.plus(b), "without": a.without(b)} {
				want := map[string]*fieldpath.Set{
					"minus": a.set().Difference(b.set()), "plus": a.set().Union(b.set()), "without": a.set().RecursiveDifference(b.set()),
				}[name]
				if !got.set().Equals(want) {
					t.Errorf("%s %s %s: %s", x, name, y, got.encode(nil))
				}
			}
			if within := a.set().Difference(b.set()).Empty(); a.within(b) != within {
				t.Errorf("%s within %s: %v", x, y, !within)
			}
			if overlaps := !a.set().Intersection(b.set()).Empty(); a.overlaps(b) != overlaps {
				t.Errorf("%s overlaps %s: %v", x, y, !overlaps)
			}
			if string(a.encode(nil)) != x || string(b.encode(nil)) != y {
				t.Fatalf("an operation changed %s or %s", x, y)
			}
		}
	}
}
