package authn

import (
	"context"
	"log/slog"
	"sync"

	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/internal/clock"
)

// reloadEvery is the interval between two looks at the files.
const reloadEvery = filewatch.DefaultInterval

// files are read at the start and again when they change. A file that is not valid is
// logged, and its previous content stays in use.
type files struct {
	mu   sync.Mutex // held during a reload
	list []*loaded
	log  *slog.Logger
	// changed is called after a reload has changed something.
	changed func()
}

// loaded is a group of files that are loaded together.
type loaded struct {
	*filewatch.Files
	load func(data [][]byte) error
}

// add reads a group of files for the first time.
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

// reload loads the files that have changed.
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

// watch calls reload at intervals until ctx ends.
func (f *files) watch(ctx context.Context) {
	if len(f.list) == 0 {
		return
	}
	for range clock.Every(ctx, reloadEvery) {
		f.reload()
	}
}
