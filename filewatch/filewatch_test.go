package filewatch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRefresh(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	write(t, a, "1")
	write(t, b, "x")
	f, err := Read(a, b)
	if err != nil {
		t.Fatal(err)
	}
	want := func(changed bool, contents ...string) {
		t.Helper()
		got, err := f.Refresh()
		if err != nil || got != changed || string(f.Contents()[0]) != contents[0] || string(f.Contents()[1]) != contents[1] {
			t.Errorf("got %v %q, %v; want %v %q", got, f.Contents(), err, changed, contents)
		}
	}
	want(false, "1", "x")

	// Of the same length and within the same tick of the file system's clock.
	info, _ := os.Stat(a)
	write(t, a, "2")
	if err := os.Chtimes(a, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	want(true, "2", "x")
	want(false, "2", "x")

	write(t, b+".new", "y")
	if err := os.Rename(b+".new", b); err != nil {
		t.Fatal(err)
	}
	want(true, "2", "y")

	// Touched, but not changed.
	if err := os.Chtimes(a, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	want(false, "2", "y")

	if err := os.Remove(a); err != nil {
		t.Fatal(err)
	}
	if changed, err := f.Refresh(); !errors.Is(err, os.ErrNotExist) || changed || string(f.Contents()[0]) != "2" {
		t.Errorf("a file that is gone: %v, %v, %q", changed, err, f.Contents())
	}
	write(t, a, "3")
	want(true, "3", "y")
}

// A folder whose link is set anew is how Kubernetes replaces mounted secrets.
func TestLink(t *testing.T) {
	dir := t.TempDir()
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version, "f"), version)
	}
	data := filepath.Join(dir, "data")
	if err := os.Symlink("1", data); err != nil {
		t.Fatal(err)
	}
	f, err := Read(filepath.Join(data, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink("2", data+"2"), os.Rename(data+"2", data)); err != nil {
		t.Fatal(err)
	}
	if changed, err := f.Refresh(); !changed || err != nil || string(f.Contents()[0]) != "2" {
		t.Errorf("got %v, %v, %q", changed, err, f.Contents())
	}
}

func TestWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write(t, path, "1")
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Interval = time.Millisecond
	var log strings.Builder
	ctx, cancel := context.WithCancel(context.Background())
	applied, done := make(chan string), make(chan struct{})
	go func() {
		defer close(done)
		f.Watch(ctx, slog.New(slog.NewTextHandler(&log, nil)), func(contents [][]byte) error {
			applied <- string(contents[0])
			if string(contents[0]) == "bad" {
				return errors.New("no good")
			}
			return nil
		})
	}()
	for _, content := range []string{"2", "bad", "3"} {
		write(t, path+".new", content)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if got := <-applied; got != content {
			t.Errorf("got %q, want %q", got, content)
		}
	}
	cancel()
	<-done
	if !strings.Contains(log.String(), "no good") {
		t.Errorf("the error is not logged: %s", log.String())
	}
}

func TestReadError(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
