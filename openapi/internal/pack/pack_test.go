package pack

import (
	"reflect"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	definitions := []Definition{
		{Name: "a.v1.A", Refs: []string{"a.v1.B", "b.C"}, V3: []byte(`{"a":3}`), V2: []byte(`{"a":2}`), V3Proto: []byte{1, 2}, V2Proto: []byte{3}},
		{Name: "a.v1.B", Refs: []string{}, V3: []byte(`{}`), V2: []byte(`{}`), V3Proto: []byte{}, V2Proto: []byte{}},
	}
	packed, err := Write(definitions)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(packed)
	if err != nil || !reflect.DeepEqual(got, definitions) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for n := range packed {
		if _, err := Read(packed[:n]); err == nil {
			t.Errorf("no error for the first %d bytes", n)
		}
	}
}

func TestOf(t *testing.T) {
	for name, want := range map[string]string{"io.k8s.api.core.v1.Pod": "io.k8s.api.core.v1", "Pod": "", "": ""} {
		if got := Of(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
