package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// makeFolder creates a folder that only its owner can read.
func makeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder for certificates: %w", err)
	}
	stat, err := os.Stat(dir)
	if err == nil && stat.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(dir, 0o700)
	}
	return err
}

// writeFile replaces a file atomically and syncs it.
func writeFile(path string, content []byte, mode os.FileMode) error {
	temp, err := writeTemp(path, content, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// createOnce creates a file unless it exists, and returns its content: the given one,
// or that of the process that was faster.
func createOnce(path string, content []byte, mode os.FileMode) ([]byte, error) {
	temp, err := writeTemp(path, content, mode)
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp)
	// Unlike a rename, a link never replaces a file.
	switch err := os.Link(temp, path); {
	case err == nil:
		return content, syncFolder(filepath.Dir(path))
	case errors.Is(err, os.ErrExist):
		return os.ReadFile(path)
	}
	// Some file systems have no links. There, two processes that start at the same
	// instant are not kept apart.
	if _, err := os.Stat(path); err == nil {
		return os.ReadFile(path)
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, err
	}
	return content, syncFolder(filepath.Dir(path))
}

// writeTemp writes a temporary file in the folder of path and returns its name.
func writeTemp(path string, content []byte, mode os.FileMode) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return f.Name(), nil
}

// syncFolder makes a new directory entry durable.
func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	// If the file system cannot sync folders, nothing more can be done.
	_ = f.Sync()
	return f.Close()
}
