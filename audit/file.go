package audit

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file is the log backend: a file that is rotated, or standard output.
//
// The names of rotated files, the limits and the messages are those of
// gopkg.in/natefinch/lumberjack.v2, which kube-apiserver uses. The code is our own, since
// with that package
//   - two rotations in one millisecond have the same name, and the second replaces the
//     events of the first;
//   - a log that cannot be opened for appending is moved aside instead of reported, and
//     a failed rotation leaves no open file instead of the current one;
//   - a line that a full disk cut short runs into the next one;
//   - the folder is created with mode 0755 instead of 0700;
//   - failures of removing and compressing old files are dropped instead of logged;
//   - Close neither waits for the clean-up of old files nor stops its goroutine.

const (
	megabyte = 1 << 20
	// stampFormat is the time, in UTC, in the names of rotated files.
	stampFormat = "2006-01-02T15-04-05.000"
	gzipSuffix  = ".gz"
)

// openLog opens the log, and returns the functions that write events and close it.
func openLog(c *LogConfig, stdout io.Writer, logger *slog.Logger) (sendFunc, func() error, error) {
	out, finish := stdout, func() error { return nil }
	if c.Path != "-" {
		f, err := openFile(c, logger)
		if err != nil {
			return nil, nil, fmt.Errorf("opening the audit log: %w", err)
		}
		out, finish = f, f.Close
	}
	var mu sync.Mutex // keeps lines whole
	return func(_ context.Context, batch []entry) error {
		for _, e := range batch {
			var line []byte
			if c.Format == FormatLegacy {
				line = append([]byte(e.event.line()), '\n')
			} else {
				line = make([]byte, 0, len(typePrefix)+len(e.body))
				line = append(append(append(line, typePrefix...), e.body[1:]...), '\n')
			}
			mu.Lock()
			_, err := out.Write(line)
			mu.Unlock()
			if err != nil {
				return err
			}
		}
		return nil
	}, finish, nil
}

// file is a log file with rotation. Rotated files are in the same folder, with the time
// in their names: audit-2026-01-02T15-04-05.000.log, and .gz if compressed.
type file struct {
	path       string
	maxSize    int64 // bytes; 0: never rotated
	maxAge     time.Duration
	maxBackups int
	compress   bool
	logger     *slog.Logger

	// Rotated files are folder/prefix + time + suffix.
	folder, prefix, suffix string

	*os.File // the current file
	size     int64
	torn     bool // the file ends with an incomplete line, since the disk was full

	cleanUpMu sync.Mutex // one clean-up at a time
	cleanUps  sync.WaitGroup
}

func openFile(c *LogConfig, logger *slog.Logger) (*file, error) {
	f := &file{
		path: c.Path, maxSize: int64(c.MaxSize) * megabyte, maxAge: time.Duration(c.MaxAge) * 24 * time.Hour,
		maxBackups: c.MaxBackups, compress: c.Compress, logger: logger,
		folder: filepath.Dir(c.Path), suffix: filepath.Ext(c.Path),
	}
	f.prefix = strings.TrimSuffix(filepath.Base(c.Path), f.suffix) + "-"
	if err := os.MkdirAll(f.folder, 0o700); err != nil {
		return nil, err
	}
	if err := f.reopen(0o600); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *file) reopen(mode os.FileMode) error {
	current, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	info, err := current.Stat()
	if err != nil {
		return errors.Join(err, current.Close())
	}
	f.File, f.size = current, info.Size()
	if f.maxSize > 0 {
		f.cleanUps.Go(f.cleanUp)
	}
	return nil
}

// Write writes a line and rotates the file if it is full. It is not safe for concurrent
// use.
func (f *file) Write(line []byte) (int, error) {
	if f.maxSize > 0 && int64(len(line)) > f.maxSize {
		return 0, fmt.Errorf("write length %d exceeds maximum file size %d", len(line), f.maxSize)
	}
	if f.maxSize > 0 && f.size+int64(len(line)) > f.maxSize {
		if err := f.rotate(time.Now()); err != nil {
			return 0, err
		}
	}
	if f.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.File.Write(line)
	f.size += int64(n)
	f.torn = n < len(line) && (n > 0 || f.torn)
	return n, err
}

// rotate renames the current file and opens a new one. If that fails, the current one
// stays in use and the next write tries again.
func (f *file) rotate(now time.Time) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	name := func() string { return filepath.Join(f.folder, f.prefix+now.UTC().Format(stampFormat)+f.suffix) }
	for _, err := os.Lstat(name()); err == nil; _, err = os.Lstat(name()) {
		now = now.Add(time.Millisecond) // two rotations in one millisecond
	}
	old := name()
	if err := os.Rename(f.path, old); err != nil {
		return err
	}
	full := f.File
	if err := f.reopen(info.Mode().Perm()); err != nil {
		return errors.Join(err, os.Rename(old, f.path))
	}
	return full.Close()
}

// Close waits for the clean-up of rotated files and closes the file.
func (f *file) Close() error {
	f.cleanUps.Wait()
	return f.File.Close()
}

// cleanUp removes and compresses rotated files, as configured.
func (f *file) cleanUp() {
	f.cleanUpMu.Lock()
	defer f.cleanUpMu.Unlock()
	old, err := f.rotated()
	if err != nil {
		f.logger.Warn("old audit logs cannot be listed", "error", err)
		return
	}
	oldest := time.Now().Add(-f.maxAge)
	for i, o := range old {
		switch {
		case f.maxBackups > 0 && i >= f.maxBackups, f.maxAge > 0 && o.time.Before(oldest):
			err = os.Remove(o.path)
		case f.compress && !strings.HasSuffix(o.path, gzipSuffix):
			err = compress(o.path)
		default:
			continue
		}
		if err != nil {
			f.logger.Warn("old audit log cannot be tidied up", "file", o.path, "error", err)
		}
	}
}

type oldFile struct {
	path string
	time time.Time
}

// rotated returns the rotated files, the newest first.
func (f *file) rotated() (files []oldFile, err error) {
	entries, err := os.ReadDir(f.folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), f.prefix)
		stamp, ok2 := strings.CutSuffix(strings.TrimSuffix(name, gzipSuffix), f.suffix)
		if !ok || !ok2 || e.IsDir() {
			continue
		}
		if t, err := time.Parse(stampFormat, stamp); err == nil {
			files = append(files, oldFile{filepath.Join(f.folder, e.Name()), t})
		}
	}
	slices.SortFunc(files, func(a, b oldFile) int { return cmp.Or(b.time.Compare(a.time), strings.Compare(a.path, b.path)) })
	return files, nil
}

// compress replaces a file by its compressed form, which appears whole or not at all.
func compress(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	temp := path + gzipSuffix + ".partial"
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Close()); err == nil {
		err = os.Rename(temp, path+gzipSuffix)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Remove(path)
}
