// Package encrypt keeps values encrypted at rest, in the formats of
// kube-apiserver and by the same file: --encryption-provider-config.
//
// A Backend stands between a store and what keeps its bytes: what is written
// through it is encrypted, what is read is decrypted, and those above see plain
// values only. What reads the store below it, as snapshots do, sees what is
// stored.
//
// The file names resources, and storage knows keys, so whoever opens a Backend
// says which resource a key belongs to.
//
// # Change
//
// The first provider of a resource writes, all of them read. What another than
// the first has written is Stale, and an update that changes nothing writes it
// nevertheless. When the file changes, values are read and written by the new
// one from then on; a file that cannot be used is logged, and the old one stays.
package encrypt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/storage"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// HealthCheck is the name of the check of key management services.
const HealthCheck = "kms-providers"

// ErrUnreadable: a value was encrypted in a way that cannot be undone now.
var ErrUnreadable = errors.New("value cannot be decrypted")

// unreadable has the words of the cause only, which are known to users.
type unreadable struct{ error }

func (e unreadable) Is(target error) bool { return target == ErrUnreadable }
func (e unreadable) Unwrap() error        { return e.error }

// Options says how a Backend encrypts.
type Options struct {
	// File is the EncryptionConfiguration.
	File string
	// Reload makes Follow read the file again when it changes.
	Reload bool
	// Resource returns the group and the resource that a key belongs to; for a
	// key of none it is the empty one, and the value stays plain.
	Resource func(key string) (group, resource string)
	// Logger gets what operators want to know; nil discards it.
	Logger *slog.Logger
	// Metrics has what is measured; nil if nothing is.
	Metrics measure.Sink
}

// Backend is a storage.Backend whose values are encrypted in another.
type Backend struct {
	storage.Backend
	*state
}

// state is what all backends with the same keys share.
type state struct {
	opts    Options
	files   *filewatch.Files
	measure *measuring
	current atomic.Pointer[set]
	retired sync.WaitGroup // sets that calls may still use
	closing chan struct{}
	close   sync.Once
}

// Open reads the file. The backend below is closed with the one returned, not
// if there is an error.
func Open(below storage.Backend, opts Options) (*Backend, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	files, err := filewatch.Read(opts.File)
	if err != nil {
		return nil, fmt.Errorf("error while parsing file: error while loading file: error reading encryption provider configuration file %q: %w", opts.File, err)
	}
	b := &Backend{below, &state{opts: opts, files: files, measure: newMeasuring(opts), closing: make(chan struct{})}}
	s, err := b.read(files.Contents())
	if err != nil {
		return nil, err
	}
	b.current.Store(s)
	measure.ConfigRead(opts.Metrics, measure.Encryption, files.Contents()[0])
	return b, nil
}

// Over returns a backend that encrypts in another one with the same keys, which are
// released with b.
func (b *Backend) Over(below storage.Backend) *Backend { return &Backend{below, b.state} }

func (b *Backend) read(contents [][]byte) (*set, error) {
	c, err := parse(b.opts.File, contents[0])
	if err != nil {
		return nil, err
	}
	return c.build(b.measure, b.opts.Logger)
}

// Watch implements storage.Backend.
func (b *Backend) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := b.Backend.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	return &watcher{w, ctx, b}, nil
}

// Follow reads the file again whenever it changes, until ctx ends.
func (b *Backend) Follow(ctx context.Context) {
	if !b.opts.Reload {
		return
	}
	b.files.Watch(ctx, b.opts.Logger, func(contents [][]byte) (err error) {
		defer func() { measure.ConfigReloaded(b.opts.Metrics, measure.Encryption, contents[0], err) }()
		next, err := b.read(contents)
		if err == nil {
			// A service that is not there must not take the place of one that
			// is.
			if err = next.check(ctx); err != nil {
				next.close()
			}
		}
		if err != nil {
			return err
		}
		b.retire(b.current.Swap(next))
		return nil
	})
}

// retire closes a set when nobody can be using it any more.
func (b *Backend) retire(s *set) {
	b.retired.Go(func() {
		select {
		case <-time.After(s.grace):
		case <-b.closing:
		}
		s.close()
	})
}

// Checked reports whether there is anything to check, now or later.
func (b *Backend) Checked() bool { return b.opts.Reload || len(b.current.Load().plugins) > 0 }

// Check returns what is wrong with key management services.
func (b *Backend) Check(ctx context.Context) error { return b.current.Load().check(ctx) }

func (s *set) check(ctx context.Context) error {
	var errs []error
	for i, p := range s.plugins {
		if err := p.check(ctx); err != nil {
			errs = append(errs, fmt.Errorf("kms-provider-%d: %w", i, err))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return aggregate(errs)
}

// Close implements storage.Backend.
func (b *Backend) Close() error {
	err := b.Backend.Close()
	b.Release()
	return err
}

// Release ends what the encryption needs, and leaves the backend below open.
func (b *Backend) Release() {
	b.close.Do(func() {
		close(b.closing)
		b.retired.Wait()
		b.current.Load().close()
	})
}

// transformer returns who encrypts a key, nil if nobody does.
func (b *Backend) transformer(key string) transformer {
	group, resource := b.opts.Resource(key)
	if resource == "" {
		return nil
	}
	return b.current.Load().find(schema.GroupResource{Group: group, Resource: resource})
}

func (b *Backend) seal(ctx context.Context, key string, value []byte) ([]byte, error) {
	t := b.transformer(key)
	if t == nil {
		return value, nil
	}
	if err := storage.CheckValue(value); err != nil {
		return nil, err
	}
	return t.seal(ctx, value, key)
}

// open makes a stored value plain. The value goes if that cannot be done.
func (b *Backend) open(ctx context.Context, kv *storage.KeyValue) {
	if kv.Value == nil {
		return
	}
	t := b.transformer(kv.Key)
	if t == nil {
		return
	}
	value, stale, err := t.open(ctx, kv.Value, kv.Key)
	if err != nil {
		kv.Value, kv.Err = nil, unreadable{err}
		return
	}
	kv.Value, kv.Stale = value, stale
}

// done is what a write returns: the value that was written, or the one that is
// in the way.
func (b *Backend) done(ctx context.Context, kv storage.KeyValue, value []byte, err error) (storage.KeyValue, error) {
	if err != nil {
		b.open(ctx, &kv)
		return kv, err
	}
	kv.Value = bytes.Clone(value)
	return kv, nil
}

// Create implements storage.Backend.
func (b *Backend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	sealed, err := b.seal(ctx, key, value)
	if err != nil {
		return storage.KeyValue{}, err
	}
	kv, err := b.Backend.Create(ctx, key, sealed, ttl)
	return b.done(ctx, kv, value, err)
}

// Update implements storage.Backend.
func (b *Backend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	sealed, err := b.seal(ctx, key, value)
	if err != nil {
		return storage.KeyValue{}, err
	}
	kv, err := b.Backend.Update(ctx, key, sealed, guard, ttl)
	return b.done(ctx, kv, value, err)
}

// Delete implements storage.Backend.
func (b *Backend) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	kv, revision, err := b.Backend.Delete(ctx, key, guard)
	b.open(ctx, &kv)
	return kv, revision, err
}

// Get implements storage.Backend.
func (b *Backend) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	kv, err := b.Backend.Get(ctx, key)
	if err == nil {
		b.open(ctx, &kv)
		err = kv.Err
	}
	return kv, err
}

// List implements storage.Backend. An item that cannot be read has an Err.
func (b *Backend) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	page, err := b.Backend.List(ctx, prefix, opts)
	for i := range page.Items {
		b.open(ctx, &page.Items[i])
	}
	return page, err
}

// watcher decrypts events.
type watcher struct {
	storage.Watcher
	ctx context.Context
	b   *Backend
}

// Next implements storage.Watcher.
func (w *watcher) Next(ctx context.Context) (storage.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	if err != nil || len(batch.Events) == 0 {
		return batch, err
	}
	// The events of a batch may be shared between watchers. The batch is taken:
	// that the caller stops waiting must not lose what is in it.
	events := make([]storage.Event, len(batch.Events))
	for i, ev := range batch.Events {
		w.b.open(w.ctx, &ev.KV)
		w.b.open(w.ctx, &ev.Prev)
		events[i] = ev
	}
	batch.Events = events
	return batch, nil
}
