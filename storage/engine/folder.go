package engine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The folder of a store holds a file that names its format, a lock, and the
// database.
const (
	formatFile  = "FORMAT"
	formatName  = "kelson-engine"
	format      = 1
	lockFile    = "LOCK"
	databaseDir = "db"
)

var (
	// ErrLocked: another process, or another Engine, has the folder open.
	ErrLocked = errors.New("data folder is in use")
	// ErrNewerFormat: the folder was written by a newer version of Kelson.
	ErrNewerFormat = errors.New("data folder has a newer format")
	// ErrNotStore: the folder holds something else.
	ErrNotStore = errors.New("not a data folder of Kelson")
)

// openFolder creates the folder if it does not exist, locks it, and checks its format.
func openFolder(fs vfs.FS, dir string) (lock io.Closer, err error) {
	if err := makeDir(fs, dir); err != nil {
		return nil, fmt.Errorf("storage: cannot make the data folder %s: %w", dir, err)
	}
	lock, err = fs.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) || isReadOnlyDisk(err) {
			return nil, fmt.Errorf("storage: cannot write to the data folder %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: %s is open in another process; stop that one, or choose another folder (%w)", ErrLocked, dir, err)
	}
	if err := checkFormat(fs, dir); err != nil {
		lock.Close()
		return nil, err
	}
	return lock, nil
}

func checkFormat(fs vfs.FS, dir string) error {
	b, err := readFile(fs, filepath.Join(dir, formatFile), 4<<10)
	if errors.Is(err, os.ErrNotExist) {
		names, err := fs.List(dir)
		if err != nil {
			return fmt.Errorf("storage: cannot read the data folder %s: %w", dir, err)
		}
		for _, name := range names {
			if name != lockFile && name != formatFile+".new" {
				return fmt.Errorf("%w: %s contains %s but no %s file; choose an empty folder", ErrNotStore, dir, name, formatFile)
			}
		}
		return writeFormat(fs, dir)
	}
	if err != nil {
		return fmt.Errorf("storage: cannot read the data folder %s: %w", dir, err)
	}
	n, err := parseFormat(b)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNotStore, dir, err)
	}
	if n > format {
		return fmt.Errorf("%w: %s has format %d, this version of Kelson knows up to %d; use a newer version", ErrNewerFormat, filepath.Join(dir, formatFile), n, format)
	}
	return nil
}

// parseFormat reads the content of a FORMAT file.
func parseFormat(b []byte) (int, error) {
	name, number, ok := strings.Cut(strings.TrimSuffix(string(b), "\n"), " ")
	if !ok || name != formatName {
		return 0, fmt.Errorf("its %s file says %.40q", formatFile, b)
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 1 || strconv.Itoa(n) != number {
		return 0, fmt.Errorf("its %s file says %.40q", formatFile, b)
	}
	return n, nil
}

// writeFormat writes the FORMAT file, which marks the folder as ours, before the
// database exists. The file appears whole or not at all.
func writeFormat(fs vfs.FS, dir string) error {
	return writeWhole(fs, dir, formatFile, fmt.Appendf(nil, "%s %d\n", formatName, format))
}

// writeWhole writes a file of the folder, which appears whole or not at all.
func writeWhole(fs vfs.FS, dir, file string, content []byte) error {
	name := filepath.Join(dir, file)
	err := func() error {
		f, err := fs.Create(name+".new", vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
		if err := fs.Rename(name+".new", name); err != nil {
			return err
		}
		return syncDir(fs, dir)
	}()
	if err != nil {
		return fmt.Errorf("storage: cannot write to the data folder %s: %w", dir, err)
	}
	return nil
}

// readFile reads a file of at most limit bytes.
func readFile(fs vfs.FS, name string, limit int64) ([]byte, error) {
	f, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, info.Size(), limit)
	}
	b := make([]byte, info.Size())
	_, err = io.ReadFull(f, b)
	return b, err
}

// makeDir creates a folder and its parents. Each parent is synced, or the new folder
// could be lost in a power cut.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
