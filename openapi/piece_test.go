package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// TestBody: pieces and what is between them are a gzip stream, and a text that
// can be read from anywhere.
func TestBody(t *testing.T) {
	var buf bytes.Buffer
	b, want := &body{library: func() *library { return nil }}, ""
	for i := range 5 {
		glue, text := fmt.Sprint("glue", i), strings.Repeat(fmt.Sprint("text ", i), 1000*i+1)
		if i == 3 {
			glue = strings.Repeat(glue, 20_000) // more than a block
		}
		p := &piece{size: len(text), again: func(out []byte, _ *library) ([]byte, error) { return append(out, text...), nil }}
		if i%2 == 0 {
			p.pack(&buf, []byte(text))
		}
		for _, s := range []segment{{glue: []byte(glue)}, {piece: p}, {glue: []byte("; ")}, {piece: p}} {
			b.add(s)
		}
		want += glue + text + "; " + text
	}
	packed, err := b.compressed()
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
	text := b.text()
	for _, at := range []int{0, len(want) - 1, 17, len(want) / 2, len(want) / 3, len(want)} {
		if _, err := text.Seek(int64(at), io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(text); err != nil || !bytes.Equal(got, []byte(want[at:])) {
			t.Errorf("from %d: %d bytes of %d: %v", at, len(got), len(want)-at, err)
		}
	}
}

// TestDivide: one element more or less leaves the other runs as they are.
func TestDivide(t *testing.T) {
	list := make([]string, 1000)
	for i := range list {
		list[i] = fmt.Sprintf("name%04d", i)
	}
	divided := func(list []string) map[string]bool {
		runs := map[string]bool{}
		for _, run := range divide(list, 16, func(s string) string { return s }, func(a, b string) bool { return false }) {
			runs[strings.Join(run, " ")] = true
		}
		return runs
	}
	before := divided(list)
	if n := len(before); n < 30 || n > 200 {
		t.Errorf("%d runs", n)
	}
	changed := 0
	for run := range divided(slices.Delete(slices.Clone(list), 500, 501)) {
		if !before[run] {
			changed++
		}
	}
	if changed > 4 {
		t.Errorf("%d of %d runs are others", changed, len(before))
	}
}
