// Package encrypt encrypts values at rest, in the formats of kube-apiserver and with
// the same configuration file, --encryption-provider-config. Start at Open and Backend.
// Keys are never encrypted, only values.
//
// A Backend wraps another storage.Backend: writes encrypt, reads decrypt, and the
// callers see plain values. Whoever reads the wrapped backend, as snapshots do, sees
// the stored form.
//
// The configuration names resources, and storage knows keys only, so Options.Resource
// maps a key to its resource.
//
// # Changing providers and keys
//
// The first provider of a resource encrypts, all of them decrypt. A value that another
// provider or key than the first has written is Stale, and is written again by an
// update even if it is unchanged. When the file changes, the new providers are used
// from then on; a file that is not valid is logged, and the old providers stay.
package encrypt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/filewatch"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/trace"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ErrUnreadable: a value could not be decrypted.
var ErrUnreadable = errors.New("value cannot be decrypted")

// unreadable wraps an error as ErrUnreadable without changing its text, which users
// know from kube-apiserver.
type unreadable struct{ error }

func (e unreadable) Is(target error) bool { return target == ErrUnreadable }
func (e unreadable) Unwrap() error        { return e.error }

// Options configures a Backend.
type Options struct {
	// File is the path of the EncryptionConfiguration.
	File string
	// Reload makes Follow read the file again when it changes.
	Reload bool
	// Resource returns the group and resource of a key. If the resource is empty, the
	// value is not encrypted.
	Resource func(key string) (group, resource string)
	// Reloaded is called after a reload, with a function that tells of which resources the
	// keys may have changed; nil is not called.
	Reloaded func(changed func(group, resource string) bool)
	// KMSv1 allows plugins of KMS v1, which is deprecated.
	KMSv1 bool
	// Prefix is the path that stands for storage.Root in the keys that kube-apiserver
	// knows, as --etcd-prefix: a value is bound to such a key. Empty is storage.Root.
	Prefix string
	// Logger gets failed reloads and unhealthy KMS plugins; nil discards them.
	Logger *slog.Logger
	// Metrics receives the measurements; nil measures nothing.
	Metrics measure.Sink
}

// Backend is a storage.Backend that stores its values encrypted in another one.
type Backend struct {
	storage.Backend
	*state
}

// state is shared by all Backends with the same providers: see Over.
type state struct {
	opts    Options
	files   *filewatch.Files
	measure *measuring
	current atomic.Pointer[providerSet]
	retired sync.WaitGroup // closes of provider sets that calls may still use
	closing chan struct{}
	close   sync.Once
}

// Open reads the file and wraps below. Close of the returned Backend closes below too;
// after an error below stays open.
func Open(below storage.Backend, opts Options) (*Backend, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Prefix = path.Join("/", cmp.Or(opts.Prefix, storage.Root)); opts.Prefix != "/" {
		opts.Prefix += "/"
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

// Over returns a Backend that wraps another store with the providers of b. They are
// released with b.
func (b *Backend) Over(below storage.Backend) *Backend { return &Backend{below, b.state} }

func (b *Backend) read(contents [][]byte) (*providerSet, error) {
	c, err := parse(b.opts.File, contents[0])
	if err != nil {
		return nil, err
	}
	return c.build(b.measure, b.opts.KMSv1, b.opts.Logger)
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
			// A KMS plugin that does not answer must not replace one that does.
			if err = next.check(ctx); err != nil {
				next.close()
			}
		}
		if err != nil {
			return err
		}
		last := b.current.Swap(next)
		b.closeLater(last)
		if b.opts.Reloaded != nil {
			b.opts.Reloaded(func(group, resource string) bool {
				gr := schema.GroupResource{Group: group, Resource: resource}
				return last.find(gr) != transformer(identity{}) || next.find(gr) != transformer(identity{})
			})
		}
		return nil
	})
}

// closeLater closes a replaced provider set after its grace period, when no call uses it
// any more.
func (b *Backend) closeLater(s *providerSet) {
	b.retired.Go(func() {
		select {
		case <-time.After(s.grace):
		case <-b.closing:
		}
		s.close()
	})
}

// HealthCheck is a health check of KMS plugins.
type HealthCheck struct {
	Name  string
	Check func(ctx context.Context) error
}

// HealthChecks returns the health checks of the KMS plugins, with the names of
// kube-apiserver: one for all of them, also if a reload may bring the first one, or one for
// each if there are plugins of KMS v1 and no reload.
func (b *Backend) HealthChecks() []HealthCheck {
	current := b.current.Load()
	switch {
	case b.opts.Reload || len(current.plugins) > 0 && !current.usesV1:
		return []HealthCheck{{"kms-providers", b.Check}}
	case len(current.plugins) == 0:
		return nil
	}
	checks := make([]HealthCheck, len(current.plugins))
	for i, p := range current.plugins {
		checks[i] = HealthCheck{fmt.Sprintf("kms-provider-%d", i), p.check}
	}
	return checks
}

// Check returns the errors of the KMS plugins.
func (b *Backend) Check(ctx context.Context) error { return b.current.Load().check(ctx) }

func (s *providerSet) check(ctx context.Context) error {
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

// Release closes the KMS plugins and leaves the wrapped backend open.
func (b *Backend) Release() {
	b.close.Do(func() {
		close(b.closing)
		b.retired.Wait()
		b.current.Load().close()
	})
}

// transformer returns the transformer for a key, nil if its value is not encrypted.
func (b *Backend) transformer(key string) transformer {
	group, resource := b.opts.Resource(key)
	if resource == "" {
		return nil
	}
	return b.current.Load().find(schema.GroupResource{Group: group, Resource: resource})
}

// authenticated returns the key that the value of a key is bound to.
func (b *Backend) authenticated(key string) string {
	if below, ok := strings.CutPrefix(key, storage.Root); ok {
		return b.opts.Prefix + below
	}
	return key
}

// NoteSealed adds the events of a value that has its stored form to the span of a write. Values
// that no Backend of this package sees have it from the beginning, and whoever writes them calls this.
func NoteSealed(ctx context.Context, update bool) {
	span := trace.From(ctx)
	span.Event("TransformToStorage succeeded")
	if update {
		span.Event("Transaction prepared")
	}
}

// sealTraced is seal with the event of a failure in the span of the write.
func (b *Backend) sealTraced(ctx context.Context, key string, value []byte) ([]byte, error) {
	sealed, err := b.seal(ctx, key, value)
	if span := trace.From(ctx); err != nil && span.Recording() {
		span.Event("TransformToStorage failed", trace.String("err", err.Error()))
	}
	return sealed, err
}

// seal encrypts a value for storage.
func (b *Backend) seal(ctx context.Context, key string, value []byte) ([]byte, error) {
	t := b.transformer(key)
	if t == nil {
		return value, nil
	}
	if err := storage.CheckValue(value); err != nil {
		return nil, err
	}
	return t.seal(ctx, value, b.authenticated(key))
}

// open decrypts the value of kv in place. If that fails, Value is nil and Err is set.
func (b *Backend) open(ctx context.Context, kv *storage.KeyValue) {
	if kv.Value == nil {
		return
	}
	t := b.transformer(kv.Key)
	if t == nil {
		return
	}
	value, stale, err := t.open(ctx, kv.Value, b.authenticated(kv.Key))
	if err != nil {
		kv.Value, kv.Err = nil, unreadable{err}
		return
	}
	kv.Value, kv.Stale = value, stale
}

// writeResult completes the result of a write: the plain value that was written, or with an
// error the decrypted key that is in the way.
func (b *Backend) writeResult(ctx context.Context, kv storage.KeyValue, value []byte, err error) (storage.KeyValue, error) {
	if err != nil {
		b.open(ctx, &kv)
		return kv, err
	}
	kv.Value = bytes.Clone(value)
	return kv, nil
}

// Create implements storage.Backend.
func (b *Backend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	sealed, err := b.sealTraced(ctx, key, value)
	if err != nil {
		return storage.KeyValue{}, err
	}
	NoteSealed(ctx, false)
	kv, err := b.Backend.Create(ctx, key, sealed, ttl)
	return b.writeResult(ctx, kv, value, err)
}

// Update implements storage.Backend.
func (b *Backend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	sealed, err := b.sealTraced(ctx, key, value)
	if err != nil {
		return storage.KeyValue{}, err
	}
	NoteSealed(ctx, true)
	kv, err := b.Backend.Update(ctx, key, sealed, guard, ttl)
	return b.writeResult(ctx, kv, value, err)
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

// Value implements storage.ValueReader.
func (b *Backend) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	value, err := storage.ReadValue(ctx, b.Backend, key, revision)
	if err != nil {
		return nil, err
	}
	kv := storage.KeyValue{Key: key, Value: value}
	b.open(ctx, &kv)
	return kv.Value, kv.Err
}

// HasValues implements storage.ValueReader.
func (b *Backend) HasValues() bool { return storage.HasValues(b.Backend) }

// List implements storage.Backend. An item that cannot be decrypted has Err set.
func (b *Backend) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	page, err := b.Backend.List(ctx, prefix, opts)
	for i := range page.Items {
		b.open(ctx, &page.Items[i])
	}
	return page, err
}

// Scan implements storage.Scanner. An item that cannot be decrypted has Err set.
func (b *Backend) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	return storage.Scan(ctx, b.Backend, prefix, opts, func(kv *storage.KeyValue) error {
		b.open(ctx, kv)
		return each(kv)
	})
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
	// The events of a batch may be shared between watchers, so they are copied. They
	// are decrypted with the context of the watch: this batch is not delivered again if
	// ctx ends now.
	events := make([]storage.Event, len(batch.Events))
	for i, ev := range batch.Events {
		w.b.open(w.ctx, &ev.KV)
		w.b.open(w.ctx, &ev.Prev)
		events[i] = ev
	}
	batch.Events = events
	return batch, nil
}

// Changes implements storage.Historian.
func (b *Backend) Changes(ctx context.Context, opts storage.ChangesOptions, each func(*storage.Change) error) (int64, error) {
	return storage.Changes(ctx, b.Backend, opts, func(c *storage.Change) error {
		plain := *c
		b.open(ctx, &plain.KV)
		b.open(ctx, &plain.Prev)
		return each(&plain)
	})
}

// KeptHistory implements storage.Historian.
func (b *Backend) KeptHistory(ctx context.Context) (storage.Kept, error) {
	return storage.KeptHistory(ctx, b.Backend)
}

// RevisionAt implements storage.Historian.
func (b *Backend) RevisionAt(ctx context.Context, t time.Time) (int64, error) {
	return storage.RevisionAt(ctx, b.Backend, t)
}
