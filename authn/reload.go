package authn

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/internal/clock"
)

// reloadEvery is how often files are looked at.
const reloadEvery = 5 * time.Second

// files are read at the beginning and again when they change. What cannot be
// used is reported, and what was there before stays.
type files struct {
	mu   sync.Mutex // held while files are read
	list []*loaded
	log  *slog.Logger
	// changed is called when something new is in use.
	changed func()
}

// loaded are files that are used together.
type loaded struct {
	*filewatch.Files
	load func(data [][]byte) error
}

// add reads files that are used together for the first time.
func (f *files) add(load func(data [][]byte) error, paths ...string) error {
	read, err := filewatch.Read(paths...)
	if err != nil {
		return err
	}
	if len(paths) > 0 {
		f.list = append(f.list, &loaded{read, load})
	}
	return load(read.Contents())
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
		changed = one.Follow(f.log, one.load) || changed
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
	for range clock.Every(ctx, reloadEvery) {
		f.reload()
	}
}
