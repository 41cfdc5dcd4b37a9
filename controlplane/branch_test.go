package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage/engine"
)

// Whoever opens a folder without a server, as 'kelson snapshot' does, leaves the history
// that a server has kept.
func TestOpenFolderKeepsHistory(t *testing.T) {
	dir := t.TempDir()
	opts := engine.Options{Dir: StoreDir(dir), RetainAge: time.Hour}
	e, err := engine.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if _, err := e.Create(t.Context(), fmt.Sprint("/registry/k", i), []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(e.Compact(t.Context(), 15), e.Close()); err != nil {
		t.Fatal(err)
	}
	if e, err = OpenFolder(dir); err == nil {
		err = e.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if e, err = engine.Open(opts); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if kept, err := e.KeptHistory(t.Context()); err != nil || kept.Oldest != 1 {
		t.Errorf("history begins with revision %d (%v), want 1", kept.Oldest, err)
	}
}

// There are at most MaxBranches branches, and what is wrong leaves nothing behind.
func TestBranchesAreBounded(t *testing.T) {
	dir := t.TempDir()
	fillFolder(t, dir, 7)
	s := start(t, Config{DataDir: dir})
	config := Config{DataDir: dir}
	for i := range MaxBranches {
		b, err := config.Branch(t.Context(), fmt.Sprint("b", i))
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(b.DataDir); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v (%v), want a folder for its owner alone", b.DataDir, fi.Mode(), err)
		}
	}
	if _, err := config.Branch(t.Context(), "more"); err == nil || !strings.Contains(err.Error(), "there are 16 branches") {
		t.Errorf("one more branch: %v, want an error", err)
	}
	if err := (Branch{DataDir: BranchDir(dir, "b3")}).Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Branch(t.Context(), "b4"); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a branch of a name that is taken: %v, want an error", err)
	}
	// A store that cannot be copied to its place.
	folder := filepath.Dir(BranchDir(dir, "x"))
	if err := os.WriteFile(filepath.Join(folder, "b3"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Branch(t.Context(), "b3"); err == nil {
		t.Error("a branch where a file is: no error, want one")
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != MaxBranches {
		t.Errorf("there are %d entries (%v), want %d and nothing half made", len(entries), err, MaxBranches)
	}
	s.end(t)
}
