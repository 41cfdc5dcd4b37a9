package audit

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func logFile(t *testing.T, c LogConfig) *file {
	t.Helper()
	f, err := openFile(&c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func names(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestRotate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	path := filepath.Join(dir, "audit.log")
	f := logFile(t, LogConfig{Path: path, MaxSize: 1})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	half := bytes.Repeat([]byte("x"), megabyte/2)
	for range 2 {
		if _, err := f.Write(half); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"audit.log"}) {
		t.Errorf("it is rotated too early: %q", got)
	}
	if _, err := f.Write([]byte("more\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Repeat(half, 3)); err == nil || err.Error() != "write length 1572864 exceeds maximum file size 1048576" {
		t.Errorf("got %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	old, err := f.rotated()
	if err != nil || len(old) != 1 || time.Since(old[0].time) > time.Minute {
		t.Fatalf("got %+v, %v", old, err)
	}
	if content, _ := os.ReadFile(path); string(content) != "more\n" {
		t.Errorf("the new file has %q", content)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o640 {
		t.Errorf("the mode is lost: %v", info.Mode())
	}
	if info, _ := os.Stat(old[0].path); info.Size() != megabyte {
		t.Errorf("the old file has %d bytes", info.Size())
	}

	// One that is there already is gone on with.
	f = logFile(t, LogConfig{Path: path, MaxSize: 1})
	if _, err := f.Write([]byte("again\n")); err != nil {
		t.Fatal(err)
	}
	if content, _ := os.ReadFile(path); string(content) != "more\nagain\n" {
		t.Errorf("got %q", content)
	}
}

// TestRotationsInOneMillisecond: the names of rotated files have milliseconds, and no file
// may take the place of another.
func TestRotationsInOneMillisecond(t *testing.T) {
	f := logFile(t, LogConfig{Path: filepath.Join(t.TempDir(), "audit.log"), MaxSize: 1})
	now := time.Now()
	for _, line := range []string{"first\n", "second\n"} {
		if _, err := f.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := f.rotate(now); err != nil {
			t.Fatal(err)
		}
	}
	old, err := f.rotated()
	if err != nil || len(old) != 2 {
		t.Fatalf("got %+v, %v; want two files", old, err)
	}
	for i, want := range []string{"second\n", "first\n"} {
		if got, err := os.ReadFile(old[i].path); err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v; want %q", old[i].path, got, err, want)
		}
	}
}

func TestNeverRotated(t *testing.T) {
	dir := t.TempDir()
	f := logFile(t, LogConfig{Path: filepath.Join(dir, "audit.log")})
	for range 3 {
		if _, err := f.Write(bytes.Repeat([]byte("x"), megabyte)); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

func TestTidyUp(t *testing.T) {
	now := time.Now().UTC()
	stamp := func(age time.Duration) string { return "audit-" + now.Add(-age).Format(stampFormat) + ".log" }
	day := 24 * time.Hour
	all := []string{stamp(time.Hour), stamp(day), stamp(3 * day), stamp(10*day) + gzipSuffix, "audit-notes.log", "other-" + stamp(100*day), "audit.log"}
	tests := []struct {
		name   string
		config LogConfig
		want   []string
	}{
		{"no limit", LogConfig{}, slices.Clone(all)},
		{"two", LogConfig{MaxBackups: 2}, append(slices.Clone(all[:2]), all[4:]...)},
		{"two days", LogConfig{MaxAge: 2}, append(slices.Clone(all[:2]), all[4:]...)},
		{"five days, one", LogConfig{MaxAge: 5, MaxBackups: 1}, append(slices.Clone(all[:1]), all[4:]...)},
		{"compressed", LogConfig{Compress: true, MaxBackups: 3},
			append([]string{all[0] + gzipSuffix, all[1] + gzipSuffix, all[2] + gzipSuffix}, all[4:]...)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range all {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tt.config.Path, tt.config.MaxSize = filepath.Join(dir, "audit.log"), 1
			f := logFile(t, tt.config)
			if err := f.Close(); err != nil { // it waits
				t.Fatal(err)
			}
			slices.Sort(tt.want)
			if got := names(t, dir); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
			if !tt.config.Compress {
				return
			}
			packed, err := os.Open(filepath.Join(dir, all[0]+gzipSuffix))
			if err != nil {
				t.Fatal(err)
			}
			defer packed.Close()
			z, err := gzip.NewReader(packed)
			if err != nil {
				t.Fatal(err)
			}
			if content, err := io.ReadAll(z); err != nil || string(content) != all[0] {
				t.Errorf("%q, %v", content, err)
			}
		})
	}
}

func TestOpenLogErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openLog(&LogConfig{Path: filepath.Join(file, "audit.log")}, nil, nil); err == nil || !strings.Contains(err.Error(), "opening the audit log") {
		t.Errorf("got %v", err)
	}
}
