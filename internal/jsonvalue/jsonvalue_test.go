package jsonvalue

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"
)

func seeds() []string {
	return []string{
		`{}`, `{"a":1}`, ` { "a" : [ 1 , 2.5 , -3e7 , 1e400 ] } `, `{"a":{"b":[null,true,false,""]}}`, `{"a":1,"a":2}`, `{"a":"\u00e9\n\ud83d\ude00\ud800"}`,
		`{"é":"<a href=\"x\">&"}`, "{\"a\":\"\xff\"}", `{"a":12345678901234567890}`, `{"a":-0}`, `{"a":-0.0}`, `{"a":1e21,"b":1e-7,"c":123456789012345680000}`,
		`{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":+1}`, `{"a":1e}`, `{"a" 1}`, `{"a":1,}`, `[1]`, `null`, `{"a":tru}`, `{"a":"x`, `{"a":"\x"}`, `{"a":"` + "\n" + `"}`,
		`{"a":1} x`, `{"a":[1,]}`, `{"a":[}`, `{a:1}`, `{"a":"\u2028 \b\f\t"}`, `{"":{"":{}}}`, "{\"a\":\"\u2028\x7f\"}", `{"a":9007199254740993.0}`,
		strings.Repeat(`{"a":`, 1200) + "1" + strings.Repeat("}", 1200),
	}
}

// FuzzParse compares with the decoder and the encoder of the libraries.
func FuzzParse(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, ok := Parse(data)
		var want map[string]any
		strict, err := kjson.UnmarshalStrict(data, &want)
		if ok != (err == nil && want != nil && len(strict) == 0) {
			if !ok && strings.Count(string(data), "{")+strings.Count(string(data), "[") >= maxDepth {
				return
			}
			t.Fatalf("%q: read: %v, the library: %v %v", data, ok, err, strict)
		}
		if !ok {
			return
		}
		if !reflect.DeepEqual(got, want) || !Equal(got, want) {
			t.Fatalf("%q:\n got %#v\nwant %#v", data, got, want)
		}
		text, err := Append(nil, got)
		wanted, wantErr := json.Marshal(want)
		if err != nil || wantErr != nil || string(text) != string(wanted) {
			t.Fatalf("%q:\n got %s, %v\nwant %s, %v", data, text, err, wanted, wantErr)
		}
	})
}

func TestAppend(t *testing.T) {
	for _, v := range []any{
		nil, []any(nil), map[string]any(nil), map[string]any{}, []any{}, int64(-1), 3, 1.0, 0.1, 1e15, 1e20, 1e21, -1e-7, "a\\b\"c", "<", json.RawMessage(`{"a": 1}`),
		map[string]any{"z": 1.5, "a": []string{"x"}},
	} {
		got, err := Append([]byte("x"), v)
		want, wantErr := json.Marshal(v)
		if err != nil || wantErr != nil || string(got) != "x"+string(want) {
			t.Errorf("%#v: got %s %v, want x%s %v", v, got, err, want, wantErr)
		}
	}
	if _, err := Append(nil, []any{map[string]any{"a": func() {}}}); err == nil {
		t.Error("a function was written")
	}
}

func TestEqual(t *testing.T) {
	for _, c := range []struct {
		a, b any
		want bool
	}{
		{nil, nil, true}, {nil, "", false}, {int64(1), 1.0, false}, {"a", "a", true},
		{map[string]any{"a": nil}, map[string]any{}, false}, {map[string]any{"a": nil}, map[string]any{"b": nil}, false},
		{[]any{int64(1)}, []any{int64(1)}, true}, {[]any{}, []any(nil), true}, {[]any{}, nil, false}, {"a", []any{}, false}, {map[string]any{}, []any{}, false},
	} {
		if got := Equal(c.a, c.b); got != c.want {
			t.Errorf("Equal(%#v, %#v) = %v", c.a, c.b, got)
		}
		if got := Equal(c.b, c.a); got != c.want {
			t.Errorf("Equal(%#v, %#v) = %v", c.b, c.a, got)
		}
	}
}

func object() []byte {
	return []byte(`{"apiVersion":"example.com/v1","kind":"Database","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","generation":1,"labels":{"team":"payments","tier":"gold"},"name":"db-1","namespace":"default","uid":"6e7a3c1e-0000-4000-8000-000000000000","managedFields":[{"apiVersion":"example.com/v1","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:team":{},"f:tier":{}}},"f:spec":{".":{},"f:engine":{},"f:users":{".":{},"k:{\"name\":\"app\"}":{".":{},"f:name":{},"f:role":{}}}}},"manager":"curl","operation":"Update","time":"2026-01-01T00:00:00Z"}]},"spec":{"engine":"postgres","replicas":3,"storage":{"size":"100Gi","accessModes":["ReadWriteOnce"]},"users":[{"name":"app","role":"owner","databases":["orders","invoices"]}],"weight":0.25}}`)
}

func BenchmarkParse(b *testing.B) {
	data := object()
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := Parse(data); !ok {
				b.Fatal("not read")
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var v map[string]any
			if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAppend(b *testing.B) {
	v, _ := Parse(object())
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Append(make([]byte, 0, 2048), v); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(v); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestAppendStringOfEveryByte has every byte at every place of a string.
func TestAppendStringOfEveryByte(t *testing.T) {
	for length := range 26 {
		for at := range length {
			for c := range 256 {
				s := []byte(strings.Repeat("~ aZ", 7)[:length])
				s[at] = byte(c)
				got := AppendString(nil, string(s))
				if want, _ := json.Marshal(string(s)); string(got) != string(want) {
					t.Fatalf("%q: got %s, want %s", s, got, want)
				}
			}
		}
	}
}

func BenchmarkAppendString(b *testing.B) {
	s, dst := strings.Repeat("config ", 150), make([]byte, 0, 2000)
	b.SetBytes(int64(len(s)))
	for b.Loop() {
		dst = AppendString(dst[:0], s)
	}
}
