package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/apikeel/kelson/storage/transfer"
)

// writeSnapshot writes a snapshot file. It gets its name only when it is complete,
// synced and verified.
func writeSnapshot(name string, force bool, write func(io.Writer) (transfer.Summary, error)) (transfer.Summary, error) {
	if err := checkTarget(name, force); err != nil {
		return transfer.Summary{}, err
	}
	partial := name + ".partial"
	// A file of an earlier attempt may have another mode.
	if err := os.Remove(partial); err != nil && !errors.Is(err, os.ErrNotExist) {
		return transfer.Summary{}, err
	}
	f, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return transfer.Summary{}, err
	}
	summary, err := fillFile(f, write)
	if err = errors.Join(err, f.Close()); err == nil {
		// It may have been created meanwhile.
		err = checkTarget(name, force)
	}
	if err == nil {
		err = os.Rename(partial, name)
	}
	if err != nil {
		return transfer.Summary{}, errors.Join(err, os.Remove(partial))
	}
	return summary, syncFolder(filepath.Dir(name))
}

// checkTarget refuses to replace an existing file, unless force allows it.
func checkTarget(name string, force bool) error {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is there and is not a file; choose another name, or - for the standard output", name)
	case !force:
		return fmt.Errorf("%s exists; choose another name, or replace it with --force", name)
	}
	return nil
}

func fillFile(f *os.File, write func(io.Writer) (transfer.Summary, error)) (transfer.Summary, error) {
	wrote, err := write(f)
	if err != nil {
		return wrote, err
	}
	if err := f.Sync(); err != nil {
		return wrote, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return wrote, err
	}
	read, err := transfer.Verify(f)
	if err != nil {
		return wrote, fmt.Errorf("reading %s again: %w", f.Name(), err)
	}
	if read != wrote {
		return wrote, fmt.Errorf("%s does not hold what was written to it", f.Name())
	}
	return wrote, nil
}

// syncFolder makes a rename in a folder survive a power cut.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil // folders cannot be synced
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
