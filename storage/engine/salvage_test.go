package engine

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
)

// write writes the files below a folder of the real disk.
func (f files) write(t *testing.T, dir string) {
	t.Helper()
	for name, content := range f {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// values reads all keys of a store.
func values(t *testing.T, e *Engine) map[string]string {
	t.Helper()
	page, err := e.List(t.Context(), "", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, kv := range page.Items {
		all[kv.Key] = fmt.Sprintf("%d %d %s", kv.CreateRevision, kv.ModRevision, kv.Value)
	}
	return all
}

// TestSalvageSaysWhatIsLost damages a file of a folder and salvages it: what is not in the
// new store is named, a single wrong bit of a log or manifest loses nothing, and the
// damaged folder stays as it was.
func TestSalvageSaysWhatIsLost(t *testing.T) {
	random := randomtest.New(t)
	for name, folder := range folders(t) {
		if strings.Contains(name, "without") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			whole := t.TempDir()
			folder.write(t, whole)
			e := open(t, Options{Dir: filepath.Join(whole, "data")})
			want := values(t, e)
			revision := e.feed.revision()
			for _, file := range slices.Sorted(maps.Keys(folder)) {
				for range testsize.Pick(1, 3, 30) {
					size := len(folder[file])
					if size == 0 || filepath.Base(file) == formatFile {
						continue
					}
					bit := random.IntN(8 * size)
					changed := bytes.Clone(folder[file])
					changed[bit/8] ^= 1 << (bit % 8)
					checkSalvage(t, fmt.Sprintf("bit %d of %s", bit, file), folder.with(file, changed), !isTable(file), want, revision)
				}
				if strings.Contains(file, blobSuffix) {
					checkSalvage(t, "removal of "+file, folder.with(file, nil), false, want, revision)
				}
			}
		})
	}
}

func checkSalvage(t *testing.T, what string, folder files, nothingLost bool, want map[string]string, revision int64) {
	t.Helper()
	dir := t.TempDir()
	folder.write(t, dir)
	to := filepath.Join(dir, "new")
	out, err := Salvage(t.Context(), filepath.Join(dir, "data"), to)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	for name, content := range folder {
		if now, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(now, content) {
			t.Errorf("%s: %s has been changed (%v)", what, name, err)
		}
	}
	e, err := Open(Options{Dir: to})
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	defer e.Close()
	got := values(t, e)
	if e.feed.revision() <= revision {
		t.Errorf("%s: the new store is at revision %d, the damaged one was at %d", what, e.feed.revision(), revision)
	}
	if nothingLost && (!maps.Equal(got, want) || len(out.Lost) > 0 && !strings.Contains(what, markFile)) {
		t.Errorf("%s: lost %q, want nothing; got %d keys of %d", what, out.Lost, len(got), len(want))
	}
	lost := strings.Join(out.Lost, "\n")
	for key, value := range want {
		if got[key] != value && !strings.Contains(lost, key+",") && !strings.Contains(lost, key+" ") && !strings.Contains(lost, "keys ") {
			t.Errorf("%s: %s is %.60q, want %.60q, and lost is only said to be %q", what, key, got[key], value, lost)
		}
	}
	for key, value := range got {
		if want[key] == "" {
			t.Errorf("%s: %s is %.60q, and did not exist", what, key, value)
		}
	}
}
