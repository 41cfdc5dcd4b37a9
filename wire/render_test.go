package wire

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRenderer: what comes in pieces is rendered like the whole.
func TestRenderer(t *testing.T) {
	long := strings.Repeat("a long text with spaces that a line may be broken at, ", 10)
	item := `{"metadata":{"name":"a","labels":{},"empty":[],"finalizers":["x","y\"z\\"],"n":-1.5e3,"t":true,"none":null},` +
		`"data":{"text":"` + long + `","lines":"one\n\n  two\nthree\n","lead":" x\ny","odd":"{[,:\"]}\u2028é\\","yes":"yes","1":"1"}}`
	for _, list := range []string{
		`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`,
		`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1","remainingItemCount":3},"items":[` + item + `]}`,
		`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[` + item + `,{},` + item + `,{"a":[[],[{"b":{}}]]}]}`,
		`{"apiVersion":"example.com/v1","items":[` + item + `,` + item + `],"kind":"ThingList","metadata":{"continue":"","resourceVersion":"1"}}`,
		`{"apiVersion":"example.com/v1","items":[],"kind":"ThingList","metadata":{"continue":""}}`,
		`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":null}`,
		`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"columnDefinitions":[{"name":"Name","priority":0},{"name":"` + long + `"}],` +
			`"rows":[{"cells":["a",1,null,[],{}],"object":` + item + `},{"cells":[]}]}`,
	} {
		for _, f := range []Format{{Pretty: true}, {Media: YAML}} {
			want, err := f.Render([]byte(list))
			if err != nil {
				t.Fatal(err)
			}
			for _, most := range []int{1, 7, 1 << 20} {
				var got bytes.Buffer
				w := f.NewRenderer(&got)
				for rest := list; rest != ""; {
					n := min(len(rest), 1+rand.IntN(most))
					if _, err := w.Write([]byte(rest[:n])); err != nil {
						t.Fatal(err)
					}
					rest = rest[n:]
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
				if got.String() != string(want) {
					t.Fatalf("%v in pieces of up to %d bytes: got\n%s\nwant\n%s", f.Media, most, got.String(), want)
				}
			}
		}
	}
}

// FuzzIndenter: JSON is indented in pieces as it is as a whole.
func FuzzIndenter(f *testing.F) {
	f.Add(`{"a":[1,{"b":"c\"\\"}],"d":{},"e":[ ]}`, 3)
	f.Add(`[[[]],{"":""} , null]`, 1)
	f.Fuzz(func(t *testing.T, text string, at int) {
		pretty := Format{Pretty: true}
		want, err := pretty.Render([]byte(text))
		if err != nil || string(want) == text {
			return // not JSON, or nothing to indent
		}
		var got bytes.Buffer
		w := pretty.NewRenderer(&got)
		at = max(0, min(at, len(text)))
		_, _ = w.Write([]byte(text[:at]))
		_, _ = w.Write([]byte(text[at:]))
		// json.Indent leaves whitespace at the end.
		if strings.TrimRight(got.String(), " \t\r\n") != strings.TrimRight(string(want), " \t\r\n") {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	})
}

func BenchmarkRenderer(b *testing.B) {
	list := []byte(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[` +
		strings.Repeat(`{"metadata":{"name":"a","namespace":"default","labels":{"app":"x"}},"data":{"a":"`+strings.Repeat("x", 900)+`"}},`, 100) + `{}]}`)
	for _, f := range []Format{{Pretty: true}, {Media: YAML}} {
		b.Run(f.Media.String(), func(b *testing.B) {
			b.SetBytes(int64(len(list)))
			for b.Loop() {
				w := f.NewRenderer(&bytes.Buffer{})
				_, _ = w.Write(list)
				_ = w.Close()
			}
		})
		b.Run(f.Media.String()+"/whole", func(b *testing.B) {
			b.SetBytes(int64(len(list)))
			for b.Loop() {
				_, _ = f.Render(list)
			}
		})
	}
}
