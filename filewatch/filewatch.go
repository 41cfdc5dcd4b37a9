// Package filewatch reads files again when they change: certificates, tokens,
// configurations. It looks at them every second, which works on every file
// system and with every way to replace a file: written over, renamed over, or a
// symbolic link above it set anew.
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
	// DefaultInterval is how often files are looked at.
	DefaultInterval = time.Second
	// settled is how old a file must be for its time to tell every change: file
	// systems do not count time more finely than this.
	settled = 2 * time.Second
)

// Files are files that belong together: a certificate and its key, or just one.
// They are used by one goroutine at a time.
type Files struct {
	// Interval is how often Watch looks; 0 is DefaultInterval.
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

// Contents returns what is in the files, in their order. It must not be
// changed.
func (f *Files) Contents() [][]byte { return f.contents }

// Refresh looks at the files, and reports whether their contents have changed.
// With an error, they are as before.
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
		if f.readAt.Sub(now.ModTime()).Abs() < settled {
			return false, nil // it may have changed just after it was read
		}
	}
	return true, nil
}

func (f *Files) read() error {
	// The times are taken before the contents: a change in between is seen as
	// one that comes later.
	readAt := time.Now()
	stats, contents := make([]os.FileInfo, len(f.paths)), make([][]byte, len(f.paths))
	for i, path := range f.paths {
		var err error
		if stats[i], err = os.Stat(path); err != nil {
			if _, opening := os.ReadFile(path); opening != nil {
				return opening // which operators know better
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

// Watch calls apply with each new content until ctx ends. What apply returns an
// error for is logged; it should keep what it has then.
func (f *Files) Watch(ctx context.Context, logger *slog.Logger, apply func(contents [][]byte) error) {
	interval := f.Interval
	if interval == 0 {
		interval = DefaultInterval
	}
	for range clock.Every(ctx, interval) {
		f.Follow(logger, apply)
	}
}

// Follow looks at the files once, as Watch does, and reports whether something new is
// used now.
func (f *Files) Follow(logger *slog.Logger, apply func(contents [][]byte) error) bool {
	changed, err := f.Refresh()
	if changed {
		err = apply(f.contents)
	}
	switch {
	case err != nil && (changed || !f.failing):
		logger.Warn("changed files cannot be used", "files", f.paths, "error", err)
	case changed:
		logger.Info("files have changed and are used now", "files", f.paths)
	}
	f.failing = err != nil
	return changed && err == nil
}
