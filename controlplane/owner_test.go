//go:build unix

package controlplane

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/storage/engine"
)

// TestJudgeOwnership: what others than the server's user can change is unsafe, and what root and
// Kubernetes prepare is not.
func TestJudgeOwnership(t *testing.T) {
	who := process{user: 1000, groups: []int{1000, 2000}}
	for name, c := range map[string]struct {
		o    ownership
		want string
	}{
		"own":                      {ownership{1000, 1000, 0o700 | fs.ModeDir, false}, ""},
		"root's":                   {ownership{0, 0, 0o755 | fs.ModeDir, false}, ""},
		"a stranger's":             {ownership{1001, 1001, 0o700 | fs.ModeDir, false}, "belongs to user 1001"},
		"all can write":            {ownership{1000, 1000, 0o777 | fs.ModeDir, false}, "writable by all"},
		"all can write, sticky":    {ownership{1000, 1000, 0o777 | fs.ModeDir | fs.ModeSticky, false}, "writable by all"},
		"all can write to root's":  {ownership{0, 0, 0o666, false}, "writable by all"},
		"a group can write":        {ownership{1000, 100, 0o770 | fs.ModeDir, false}, "writable by group 100"},
		"own group, with others":   {ownership{1000, 3000, 0o660, false}, "writable by group 3000"},
		"the user's private group": {ownership{1000, 1000, 0o775 | fs.ModeDir, false}, ""},
		"a volume's group":         {ownership{1000, 2000, 0o660, false}, ""},
		"an empty volume":          {ownership{0, 0, 0o777 | fs.ModeDir, true}, ""},
		"a mounted secret":         {ownership{0, 2000, 0o777 | fs.ModeDir | fs.ModeSticky | fs.ModeSetgid, true}, ""},
		"a link":                   {ownership{1000, 1000, 0o777 | fs.ModeSymlink, false}, ""},
	} {
		if got, _ := who.judge(c.o, 2000); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestUnsafeDataFolderIsRefused: the server does not start on a data folder that others could
// change, and names what to mend.
func TestUnsafeDataFolderIsRefused(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to give files to others")
	}
	for name, spoil := range map[string]func(dir string) error{
		"":                   func(dir string) error { return os.Chmod(dir, 0o777) },
		"pki":                func(dir string) error { return os.Chmod(filepath.Join(dir, "pki"), 0o777) },
		"pki/ca.key":         func(dir string) error { return os.Chown(filepath.Join(dir, "pki", "ca.key"), 65534, 65534) },
		"store":              func(dir string) error { return os.Chown(StoreDir(dir), 65534, 65534) },
		"store/FORMAT":       func(dir string) error { return os.Chmod(filepath.Join(StoreDir(dir), "FORMAT"), 0o666) },
		"control":            func(dir string) error { return os.MkdirAll(filepath.Join(dir, "control"), 0o700) },
		"..":                 func(dir string) error { return os.Chmod(filepath.Dir(dir), 0o777) },
		"admin.kubeconfig.x": func(dir string) error { return os.WriteFile(filepath.Join(dir, "admin.kubeconfig.x"), nil, 0o666) },
	} {
		dir := filepath.Join(t.TempDir(), "data")
		if err := os.MkdirAll(filepath.Join(dir, "pki"), 0o700); err != nil {
			t.Fatal(err)
		}
		e, err := engine.Open(engine.Options{Dir: StoreDir(dir)})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pki", "ca.key"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c := Config{DataDir: dir}
		c.defaults()
		if err := c.checkOwner(); err != nil {
			t.Errorf("%s, as it was made: %v", name, err)
		}
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if name == "control" {
			if err := os.Chmod(filepath.Join(dir, name), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		if name == "admin.kubeconfig.x" {
			if err := os.Chmod(filepath.Join(dir, name), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		// Others can enter: what is in a closed folder is safe.
		if err := errors.Join(os.Chmod(dir, mode(t, dir)|0o055), os.Chmod(StoreDir(dir), mode(t, StoreDir(dir))|0o055)); err != nil {
			t.Fatal(err)
		}
		bad := filepath.Join(dir, name)
		err = c.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), bad+" ") || !strings.Contains(err.Error(), "ch") {
			t.Errorf("%s: got %v, want an error that names it and what mends it", name, err)
		}
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// TestUmaskDoesNotMakeADataFolderUnsafe: what the server has made itself is safe at its next start,
// whatever umask it had.
func TestUmaskDoesNotMakeADataFolderUnsafe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"store": 0o700, "store/db": 0o755, "pki": 0o700} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o700), os.Chmod(filepath.Join(dir, name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"store/MARK", "store/db/LOCK", "pki/ca.crt"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if found := FindUnsafe(dir, false); len(found) > 0 {
		t.Errorf("got %v, want nothing: nobody else can enter store and pki", found)
	}
	if err := os.Chmod(filepath.Join(dir, "store"), 0o711); err != nil {
		t.Fatal(err)
	}
	if found := FindUnsafe(dir, false); len(found) != 2 {
		t.Errorf("others can enter the store: got %v, want MARK and LOCK", found)
	}
}

// TestFolderInAVolumeIsSafe: Kubernetes gives all of a volume to the group of a pod, also a data
// folder that is not the root of the volume.
func TestFolderInAVolumeIsSafe(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to give files to others")
	}
	const user, group = 1000, 2000
	volume := filepath.Join(t.TempDir(), "volume")
	give := func(name string, user, group int, mode fs.FileMode) {
		t.Helper()
		path := filepath.Join(volume, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if mode.IsDir() {
			err = errors.Join(err, os.MkdirAll(path, 0o700))
		} else {
			err = errors.Join(err, os.WriteFile(path, nil, 0o600))
		}
		if err := errors.Join(err, os.Chown(path, user, group), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	const folder = fs.ModeDir | fs.ModeSetgid | 0o770
	give("", 0, group, fs.ModeDir|fs.ModeSetgid|0o775)
	give("data", user, group, folder)
	give("data/pki", user, group, folder)
	give("data/pki/ca.key", user, group, 0o660)
	dir := filepath.Join(volume, "data")
	if found := FindUnsafe(dir, true); len(found) > 0 {
		t.Errorf("got %v, want nothing", found)
	}
	give("data/pki/sa.key", user, 3000, 0o660)
	if found := FindUnsafe(dir, true); len(found) != 1 || filepath.Base(found[0].Path) != "sa.key" {
		t.Errorf("got %v, want sa.key, which another group can write to", found)
	}
	give("", user, group, fs.ModeDir|fs.ModeSetgid|0o775)
	if found := FindUnsafe(dir, true); len(found) == 0 {
		t.Error("got nothing, want the folder: a user's own shared folder is no volume")
	}
}
