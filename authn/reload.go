package authn

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"os"
	"sync"
	"time"
)

// reloadEvery is how often files are looked at. They are small, and their
// content says more than their times.
const reloadEvery = 5 * time.Second

// files are read at the beginning and again when they change. What cannot be
// used is reported, and what was there before stays.
type files struct {
	mu   sync.Mutex // held while files are read
	list []*file
	log  *slog.Logger
	// changed is called when something new is in use.
	changed func()
}

type file struct {
	paths []string
	seen  [sha256.Size]byte
	load  func(data [][]byte) error
}

// add reads files that are used together for the first time.
func (f *files) add(load func(data [][]byte) error, paths ...string) error {
	one := &file{paths: paths, load: load}
	data, sum, err := one.read()
	if err != nil {
		return err
	}
	one.seen = sum
	if len(paths) > 0 {
		f.list = append(f.list, one)
	}
	return load(data)
}

// addOne reads a file for the first time.
func (f *files) addOne(path string, load func(data []byte) error) error {
	return f.add(func(data [][]byte) error { return load(data[0]) }, path)
}

// reload reads what has changed.
func (f *files) reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := false
	for _, one := range f.list {
		data, sum, err := one.read()
		if err != nil {
			f.log.Error("reading authentication files failed", "files", one.paths, "error", err)
			continue
		}
		if sum == one.seen {
			continue
		}
		one.seen = sum
		if err := one.load(data); err != nil {
			f.log.Error("changed authentication files cannot be used", "files", one.paths, "error", err)
			continue
		}
		f.log.Info("authentication files reloaded", "files", one.paths)
		changed = true
	}
	if changed && f.changed != nil {
		f.changed()
	}
}

// watch reloads until the context ends.
func (f *files) watch(ctx context.Context) {
	if len(f.list) == 0 {
		return
	}
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			f.reload()
		}
	}
}

// read returns the files and a hash of all.
func (f *file) read() (data [][]byte, sum [sha256.Size]byte, err error) {
	all := sha256.New()
	for _, path := range f.paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, sum, err
		}
		one := sha256.Sum256(content)
		all.Write(one[:])
		data = append(data, content)
	}
	all.Sum(sum[:0])
	return data, sum, nil
}
