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

const (
	megabyte = 1 << 20
	// stampFormat is the time in the names of old files, which is UTC.
	stampFormat = "2006-01-02T15-04-05.000"
	gzipSuffix  = ".gz"
)

// openLog opens where the log goes, and returns what writes entries to it.
func openLog(c *LogConfig, stdout io.Writer, logger *slog.Logger) (sendFunc, func() error, error) {
	out, finish := stdout, func() error { return nil }
	if c.Path != "-" {
		f, err := openFile(c, logger)
		if err != nil {
			return nil, nil, fmt.Errorf("opening the audit log: %w", err)
		}
		out, finish = f, f.Close
	}
	var mu sync.Mutex // lines stay whole
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

// file is a log that is rotated. Old files are beside it, with the time in
// their name: audit-2026-01-02T15-04-05.000.log, and .gz if compressed.
type file struct {
	path       string
	maxSize    int64 // 0: it is never rotated
	maxAge     time.Duration
	maxBackups int
	compress   bool
	logger     *slog.Logger

	// Old files are folder/prefix + time + suffix.
	folder, prefix, suffix string

	*os.File // the current one
	size     int64
	torn     bool // it ends with a part of a line: the disk was full

	tidy    sync.Mutex // one tidies up at a time
	tidying sync.WaitGroup
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
		f.tidying.Go(f.tidyUp)
	}
	return nil
}

// Write writes a line. One caller at a time may.
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

// rotate gives the current file its old name and begins another. If that
// fails, the current one stays in use and the next write tries again.
func (f *file) rotate(now time.Time) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	name := func() string { return filepath.Join(f.folder, f.prefix+now.UTC().Format(stampFormat)+f.suffix) }
	for _, err := os.Lstat(name()); err == nil; _, err = os.Lstat(name()) {
		now = now.Add(time.Millisecond) // two in one millisecond
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

// Close closes the file when old ones have been tidied up.
func (f *file) Close() error {
	f.tidying.Wait()
	return f.File.Close()
}

// tidyUp removes old files and compresses the others, as configured.
func (f *file) tidyUp() {
	f.tidy.Lock()
	defer f.tidy.Unlock()
	old, err := f.old()
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

// old returns the files that were rotated, the newest first.
func (f *file) old() (files []oldFile, err error) {
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

// compress replaces a file by its compressed form, which appears whole.
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
