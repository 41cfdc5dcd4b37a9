package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/storage/transfer"
)

// TestWriteSnapshot has all that can happen to a file while it is written.
func TestWriteSnapshot(t *testing.T) {
	e := memory.New(memory.Options{})
	defer e.Close()
	var other bytes.Buffer
	otherSummary, err := transfer.Save(t.Context(), e, &other, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), "/registry/a", nil, 0); err != nil {
		t.Fatal(err)
	}
	save := func(w io.Writer) (transfer.Summary, error) { return transfer.Save(t.Context(), e, w, nil) }
	name := filepath.Join(t.TempDir(), "file")
	partial := name + ".partial"

	for _, c := range []struct {
		name  string
		write func(io.Writer) (transfer.Summary, error)
		want  string
	}{
		{"failure", func(w io.Writer) (transfer.Summary, error) {
			s, err := save(w)
			return s, errors.Join(err, errors.New("store failed"))
		}, "store failed"},
		{"other bytes", func(w io.Writer) (transfer.Summary, error) {
			_, err := save(w)
			return otherSummary, err
		}, "does not hold what was written"},
		{"damage", func(w io.Writer) (transfer.Summary, error) {
			s, err := save(w)
			_, err2 := w.(*os.File).WriteAt([]byte("!"), 30)
			return s, errors.Join(err, err2)
		}, "damaged"},
		{"meanwhile", func(w io.Writer) (transfer.Summary, error) {
			s, err := save(w)
			return s, errors.Join(err, os.WriteFile(name, []byte("precious"), 0o600))
		}, "exists"},
	} {
		if _, err := writeSnapshot(name, false, c.write); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Stat(partial); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s leaves a part behind: %v", c.name, err)
		}
		if b, err := os.ReadFile(name); err == nil && string(b) != "precious" {
			t.Errorf("%s leaves a file", c.name)
		}
	}

	// What a killed process left is not in the way, nor is its mode kept.
	if err := os.WriteFile(partial, other.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	want, err := writeSnapshot(name, true, save)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := transfer.Verify(f); err != nil || got != want || got.Keys != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if info, err := f.Stat(); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}
