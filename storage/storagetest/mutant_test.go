package storagetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apikeel/kelson/storage"
)

// mutant is a model with one thing wrong with it. What is nil is right.
type mutant struct {
	*model
	create   func(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error)
	update   func(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error)
	delete   func(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error)
	get      func(ctx context.Context, key string) (storage.KeyValue, error)
	list     func(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error)
	scan     func(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error)
	value    func(ctx context.Context, key string, revision int64) ([]byte, error)
	count    func(ctx context.Context, prefix string) (int64, int64, error)
	watch    func(ctx context.Context, prefix string, after int64) (storage.Watcher, error)
	revision func(ctx context.Context) (int64, error)
	progress func(ctx context.Context) error
	compact  func(ctx context.Context, revision int64) error
	status   func(ctx context.Context) (storage.Status, error)
	reopened func(m *model)
}

func (m *mutant) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if m.create != nil {
		return m.create(ctx, key, value, ttl)
	}
	return m.model.Create(ctx, key, value, ttl)
}

func (m *mutant) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	if m.update != nil {
		return m.update(ctx, key, value, guard, ttl)
	}
	return m.model.Update(ctx, key, value, guard, ttl)
}

func (m *mutant) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	if m.delete != nil {
		return m.delete(ctx, key, guard)
	}
	return m.model.Delete(ctx, key, guard)
}

func (m *mutant) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	if m.get != nil {
		return m.get(ctx, key)
	}
	return m.model.Get(ctx, key)
}

func (m *mutant) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	if m.list != nil {
		return m.list(ctx, prefix, opts)
	}
	return m.model.List(ctx, prefix, opts)
}

func (m *mutant) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	if m.scan != nil {
		return m.scan(ctx, prefix, opts, each)
	}
	return storage.Scan(ctx, m.model, prefix, opts, each)
}

func (m *mutant) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	if m.value != nil {
		return m.value(ctx, key, revision)
	}
	return m.model.Value(ctx, key, revision)
}

func (m *mutant) Count(ctx context.Context, prefix string) (int64, int64, error) {
	if m.count != nil {
		return m.count(ctx, prefix)
	}
	return m.model.Count(ctx, prefix)
}

func (m *mutant) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	if m.watch != nil {
		return m.watch(ctx, prefix, after)
	}
	return m.model.Watch(ctx, prefix, after)
}

func (m *mutant) Revision(ctx context.Context) (int64, error) {
	if m.revision != nil {
		return m.revision(ctx)
	}
	return m.model.Revision(ctx)
}

func (m *mutant) Progress(ctx context.Context) error {
	if m.progress != nil {
		return m.progress(ctx)
	}
	return m.model.Progress(ctx)
}

func (m *mutant) Compact(ctx context.Context, revision int64) error {
	if m.compact != nil {
		return m.compact(ctx, revision)
	}
	return m.model.Compact(ctx, revision)
}

func (m *mutant) Status(ctx context.Context) (storage.Status, error) {
	if m.status != nil {
		return m.status(ctx)
	}
	return m.model.Status(ctx)
}

// mutantWatcher is a watcher with something wrong.
type mutantWatcher struct {
	*modelWatcher
	next  func(w *mutantWatcher, ctx context.Context) (storage.Batch, error)
	close func(w *mutantWatcher)
	// What next may need.
	held []storage.Event
	over error
	at   int64
}

func (w *mutantWatcher) Next(ctx context.Context) (storage.Batch, error) {
	if w.next != nil {
		return w.next(w, ctx)
	}
	return w.modelWatcher.Next(ctx)
}

func (w *mutantWatcher) Close() {
	if w.close != nil {
		w.close(w)
		return
	}
	w.modelWatcher.Close()
}

// await lets others run until cond holds, or for a while.
func (m *mutant) await(cond func() bool) {
	for range 5000 {
		m.mu.Lock()
		ok := cond()
		m.mu.Unlock()
		if ok {
			return
		}
		runtime.Gosched()
	}
}

// watches makes m hand out copies of w.
func (m *mutant) watches(w mutantWatcher) {
	m.watch = func(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
		inner, err := m.model.Watch(ctx, prefix, after)
		if err != nil {
			return nil, err
		}
		w := w
		w.modelWatcher = inner.(*modelWatcher)
		return &w, nil
	}
}

// edits makes m pass every batch through edit.
func (m *mutant) edits(edit func(w *mutantWatcher, b *storage.Batch)) {
	m.watches(mutantWatcher{next: func(w *mutantWatcher, ctx context.Context) (storage.Batch, error) {
		b, err := w.modelWatcher.Next(ctx)
		if err == nil {
			b.Events = slices.Clone(b.Events)
			edit(w, &b)
		}
		return b, err
	}})
}

// TestSuiteCatches runs checks against models that are wrong in one way. A
// check that lets its mutant pass proves nothing. Time is faked, so that
// waiting for what never comes costs nothing.
func TestSuiteCatches(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir()) // for pictures of histories
	checks := map[string]check{}
	for _, g := range groups() {
		for _, c := range g.checks {
			checks[g.name+"/"+c.name] = c
		}
	}
	caught := map[string]bool{}
	for _, c := range mutants() {
		for name := range strings.FieldsSeq(c.caught) {
			caught[name] = true
			t.Run(c.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					check, ok := checks[name]
					if !ok {
						t.Fatal("no such check")
					}
					// Checks with writers depend on how these interleave, and miss a fault
					// once in some hundred runs.
					var err error
					for tries := 0; tries < 3 && err == nil; tries++ {
						err = mutantSubject(c.spoil).try(t, openMutant(t, newModel(), c.spoil), check, false)
					}
					if err == nil {
						t.Fatal("not caught")
					}
					t.Logf("%.300v", err)
				})
			})
		}
	}
	for name := range checks {
		if !caught[name] {
			t.Errorf("no mutant for %s", name)
		}
	}
}

func openMutant(t testing.TB, inner *model, spoil func(m *mutant)) *mutant {
	m := &mutant{model: inner}
	spoil(m)
	t.Cleanup(func() { m.model.Close() })
	return m
}

func mutantSubject(spoil func(m *mutant)) Subject {
	return Subject{whole: true, Reopen: func(t testing.TB, b storage.Backend) storage.Backend {
		old := b.(*mutant)
		inner := old.model.reopen()
		if old.reopened != nil {
			old.reopened(inner)
		}
		return openMutant(t, inner, spoil)
	}}
}

// TestFailureNamesSeed: the report of a random failure says how to repeat it.
func TestFailureNamesSeed(t *testing.T) {
	t.Setenv("KELSON_SEED", "42")
	spoil := func(m *mutant) {
		m.get = func(context.Context, string) (storage.KeyValue, error) {
			return storage.KeyValue{}, errors.New("broken")
		}
	}
	c := check{name: "operations", run: checkRandom}
	err := mutantSubject(spoil).try(t, openMutant(t, newModel(), spoil), c, false)
	if err == nil || !strings.Contains(fmt.Sprint(err), "KELSON_SEED=42") {
		t.Fatal(err)
	}
}
