package pack

import (
	"fmt"
	"strings"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	definitions := []Definition{
		{Name: "a.v1.B", Texts: [forms][]byte{[]byte(`{}`), []byte(`{"b":2}`), {}}},
		{Name: "a.v1.A", Refs: []string{"a.v1.B", "b.C0"}, Texts: [forms][]byte{[]byte(`{"a":3}`), []byte(`{"a":2}`), {1, 2}}, Root: true},
	}
	for i := range 200 {
		text := []byte(strings.Repeat(fmt.Sprint(i), 5000))
		definitions = append(definitions, Definition{Name: fmt.Sprint("b.C", i), Texts: [forms][]byte{text, text, text}, Root: i%2 == 0})
	}
	packed, err := Write(definitions)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Open(string(packed))
	if err != nil || p.Len() != len(definitions) || len(p.blocks) < 6 {
		t.Fatal(err)
	}
	r := p.NewReader()
	for _, d := range definitions {
		n, ok := p.Find(d.Name)
		if !ok || p.Name(n) != d.Name {
			t.Fatalf("%s is not found", d.Name)
		}
		var refs []string
		for _, ref := range p.Refs(n) {
			refs = append(refs, p.Name(int(ref)))
		}
		if fmt.Sprint(refs) != fmt.Sprint(d.Refs) {
			t.Errorf("%s refers to %q", d.Name, refs)
		}
		for form := range forms {
			if text, err := r.Text(n, form); err != nil || string(text) != string(d.Texts[form]) {
				t.Errorf("%s: %q, %v", d.Name, text, err)
			}
		}
	}
	if _, ok := p.Find("a.v1.C"); ok {
		t.Error("something is found that is not there")
	}
	for n := 0; n < len(packed); n += 7 {
		if _, err := Open(string(packed[:n])); err == nil {
			t.Errorf("no error for the first %d bytes", n)
		}
	}
	if _, err := Write([]Definition{{Name: "a.A", Refs: []string{"a.B"}}}); err == nil {
		t.Error("a reference to nothing")
	}
}

func FuzzOpen(f *testing.F) {
	packed, err := Write([]Definition{{Name: "a.A", Refs: []string{"a.A"}, Root: true, Texts: [forms][]byte{{1}, {2}, {3}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(packed))
	f.Fuzz(func(t *testing.T, data string) {
		p, err := Open(data)
		if err != nil {
			return
		}
		r := p.NewReader()
		for n := range p.Len() {
			for form := range forms {
				_, _ = r.Text(n, form)
			}
			_ = p.Refs(n)
		}
	})
}

func TestOf(t *testing.T) {
	for name, want := range map[string]string{"io.k8s.api.core.v1.Pod": "io.k8s.api.core.v1", "Pod": "", "": ""} {
		if got := Of(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}
