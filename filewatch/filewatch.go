// Package filewatch reads files again when they change: certificates, tokens,
// configuration. Start at Read and Files.Watch. It polls every second, which works on
// every file system and however a file is replaced: overwritten, renamed over, or
// behind a changed symbolic link.
package filewatch

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/apikeel/kelson/internal/clock"
)

const (
	// DefaultInterval is the polling interval.
	DefaultInterval = time.Second
	// timestampPrecision is the age from which on a file's modification time shows every later
	// change: file systems have timestamps at least this precise.
	timestampPrecision = 2 * time.Second
)

// Files are files that are used together: a certificate and its key, or a single file.
// It is not safe for concurrent use.
type Files struct {
	// Interval is the polling interval; 0 is DefaultInterval.
	Interval time.Duration

	paths    []string
	stats    []os.FileInfo
	readAt   time.Time
	contents [][]byte
	failing  bool
}

// Read reads the files for the first time.
func Read(paths ...string) (*Files, error) {
	f := &Files{paths: paths}
	if err := f.read(); err != nil {
		return nil, err
	}
	return f, nil
}

// Contents returns the contents, in the order of the paths. They must not be changed.
func (f *Files) Contents() [][]byte { return f.contents }

// Refresh reads the files again if they may have changed, and reports whether the
// contents differ. After an error they are as before.
func (f *Files) Refresh() (changed bool, err error) {
	same, err := f.unchanged()
	if same || err != nil {
		return false, err
	}
	before := f.contents
	if err := f.read(); err != nil {
		return false, err
	}
	for i, content := range f.contents {
		if !bytes.Equal(content, before[i]) {
			return true, nil
		}
	}
	return false, nil
}

// unchanged reports whether the files are certainly those that were read.
func (f *Files) unchanged() (bool, error) {
	for i, path := range f.paths {
		now, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		was := f.stats[i]
		if !os.SameFile(was, now) || now.Size() != was.Size() || !now.ModTime().Equal(was.ModTime()) {
			return false, nil
		}
		if f.readAt.Sub(now.ModTime()).Abs() < timestampPrecision {
			return false, nil // it may have been changed just after it was read
		}
	}
	return true, nil
}

func (f *Files) read() error {
	// The timestamps are taken before the contents, so that a change in between is
	// noticed later.
	readAt := time.Now()
	stats, contents := make([]os.FileInfo, len(f.paths)), make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if stats[i], err = os.Stat(path); err != nil {
			if _, opening := os.ReadFile(path); opening != nil {
				return opening // has a better message than Stat's
			}
			return err
		}
		if contents[i], err = os.ReadFile(path); err != nil {
			return err
		}
	}
	f.stats, f.contents, f.readAt = stats, contents, readAt
	return nil
}

// Watch calls apply with each new content until ctx ends. An error of apply is logged;
// apply should keep its state then.
func (f *Files) Watch(ctx context.Context, logger *slog.Logger, apply func(contents [][]byte) error) {
	interval := f.Interval
	if interval == 0 {
		interval = DefaultInterval
	}
	for range clock.Every(ctx, interval) {
		f.Follow(logger, apply)
	}
}

// Follow polls once, as Watch does, and reports whether new content is in use.
func (f *Files) Follow(logger *slog.Logger, apply func(contents [][]byte) error) bool {
	changed, err := f.Refresh()
	if changed {
		err = apply(f.contents)
	}
	switch {
	case err != nil && (changed || !f.failing):
		logger.Warn("changed files cannot be used; the old content stays in use", "files", f.paths, "error", err)
	case changed:
		logger.Info("files have changed and are used now", "files", f.paths)
	}
	f.failing = err != nil
	return changed && err == nil
}
