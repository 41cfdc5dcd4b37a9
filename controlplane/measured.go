package controlplane

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/trace/timed"
)

// measured is a store with a clock. Its metrics and spans have the names that
// kube-apiserver has for etcd, whatever store it is.
type measured struct {
	storage.Backend
	*meters
	users *userNotes // nil if the store keeps no names
	plain bool       // values are stored as they are, not encrypted
}

// meters are shared by all stores of a server.
type meters struct {
	catalog func() *resource.Catalog

	requests, errors *metrics.Counters
	duration, lists  *metrics.Histograms

	once   sync.Once
	stored map[string]*resource.Definition // by where they are stored
}

func newMeters(r *metrics.Registry, catalog func() *resource.Catalog) *meters {
	labels := []string{"operation", "group", "resource"}
	seconds := []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	return &meters{
		catalog:  catalog,
		requests: r.Counters("etcd_requests_total", "[ALPHA] Etcd request counts for each operation and object type.", labels...),
		errors:   r.Counters("etcd_request_errors_total", "[ALPHA] Etcd failed request counts for each operation and object type.", labels...),
		duration: r.Histograms("etcd_request_duration_seconds", "[ALPHA] Etcd request latency in seconds for each operation and object type.",
			seconds, labels...),
		lists: r.Histograms("apiserver_storage_list_duration_seconds", "[ALPHA] Latency of the storage layer GetList call in seconds, including object decode, split by whether etcd RangeStream was used.",
			seconds, "group", "resource", "streamed"),
	}
}

// Create implements storage.Backend.
func (m *measured) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	ctx, done := m.begin(ctx, "create", store.CreateSpan, key)
	if m.plain {
		encrypt.NoteSealed(ctx, false)
	}
	kv, err := m.Backend.Create(ctx, key, value, ttl)
	done(err)
	m.users.note(ctx, kv.ModRevision, err)
	return kv, err
}

// CreateLazy implements storage.LazyCreator.
func (m *measured) CreateLazy(ctx context.Context, key string, size int, value func() []byte) (int64, error) {
	ctx, done := m.begin(ctx, "create", store.CreateSpan, key)
	revision, err := storage.CreateLazy(ctx, m.Backend, key, size, value)
	done(err)
	return revision, err
}

// Value implements storage.ValueReader.
func (m *measured) Value(ctx context.Context, key string, revision int64) ([]byte, error) {
	if !m.HasValues() { // it is made in memory
		return storage.ReadValue(ctx, m.Backend, key, revision)
	}
	ctx, done := m.begin(ctx, "get", "Get etcd3", key)
	value, err := storage.ReadValue(ctx, m.Backend, key, revision)
	done(err)
	return value, err
}

// HasValues implements storage.ValueReader.
func (m *measured) HasValues() bool { return storage.HasValues(m.Backend) }

// Update implements storage.Backend.
func (m *measured) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	ctx, done := m.begin(ctx, "update", store.UpdateSpan, key)
	if m.plain {
		encrypt.NoteSealed(ctx, true)
	}
	kv, err := m.Backend.Update(ctx, key, value, guard, ttl)
	done(err)
	m.users.note(ctx, kv.ModRevision, err)
	return kv, err
}

// Delete implements storage.Backend.
func (m *measured) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	ctx, done := m.begin(ctx, "delete", "Delete etcd3", key)
	kv, revision, err := m.Backend.Delete(ctx, key, guard)
	done(err)
	m.users.note(ctx, revision, err)
	return kv, revision, err
}

// Get implements storage.Backend.
func (m *measured) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	ctx, done := m.begin(ctx, "get", "Get etcd3", key)
	kv, err := m.Backend.Get(ctx, key)
	done(err)
	return kv, err
}

// List implements storage.Backend.
func (m *measured) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	return m.measureList(ctx, prefix, func(ctx context.Context) (storage.Page, error) { return m.Backend.List(ctx, prefix, opts) })
}

// Scan implements storage.Scanner.
func (m *measured) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	return m.measureList(ctx, prefix, func(ctx context.Context) (storage.Page, error) {
		return storage.Scan(ctx, m.Backend, prefix, opts, each)
	})
}

func (m *measured) measureList(ctx context.Context, prefix string, list func(context.Context) (storage.Page, error)) (storage.Page, error) {
	began := time.Now()
	ctx, done := m.begin(ctx, "list", "List(recursive=true) etcd3", prefix)
	page, err := list(ctx)
	done(err)
	group, resource := m.find(prefix)
	m.lists.WithLabelValues(group, resource, "false").Observe(time.Since(began).Seconds())
	return page, err
}

// begin starts the clock. What it returns stops it.
func (m *meters) begin(ctx context.Context, operation, name, key string) (context.Context, func(error)) {
	start := time.Now()
	group, resource := m.find(key)
	var span timed.Span
	if timed.Wanted(ctx) {
		attributes := store.SpanAttributes(ctx, key, group, resource)
		if trace.From(ctx).Name() == name { // the cache has begun it
			span = timed.Within(ctx, name, request.SlowRequest, attributes...)
		} else {
			ctx, span = timed.Start(ctx, name, request.SlowRequest, attributes...)
		}
	}
	return ctx, func(err error) {
		write := operation != "get" && operation != "list"
		if asking := request.Of(ctx); asking != nil {
			if asking.CountStore(write); write {
				asking.Spent(request.Storage, time.Since(start))
			}
		}
		m.requests.WithLabelValues(operation, group, resource).Inc()
		m.duration.WithLabelValues(operation, group, resource).Observe(time.Since(start).Seconds())
		if isFailure(err) {
			m.errors.WithLabelValues(operation, group, resource).Inc()
		}
		noteCall(span, operation, err)
		span.End()
	}
}

// isFailure reports whether the store could not do what it was asked for. That a key is there, is not
// there or has changed is an answer, as it is for etcd.
func isFailure(err error) bool {
	return err != nil && !errors.Is(err, storage.ErrExists) && !errors.Is(err, storage.ErrNotFound) && !errors.Is(err, storage.ErrConflict)
}

// noteCall adds the events of an operation that has ended to its span.
func noteCall(span timed.Span, operation string, err error) {
	call := "Txn call"
	switch operation {
	case "get":
		call = "Get call"
	case "list":
		call = "List call"
	}
	switch {
	case isFailure(err):
		span.Event(call+" failed", trace.String("err", err.Error()))
	case operation == "update":
		span.Event(call + " completed")
		span.Event("Transaction committed")
	default:
		span.Event(call + " succeeded")
	}
	if operation == "get" && err == nil {
		span.Event("TransformFromStorage succeeded")
	}
}

// find returns what is kept under a key. What no kind keeps has no name, so that
// the number of series is bounded.
func (m *meters) find(key string) (group, resource string) {
	catalog := m.catalog()
	if catalog == nil {
		return "", ""
	}
	m.once.Do(func() { m.learn(catalog) })
	first, rest, _ := strings.Cut(strings.TrimPrefix(key, storage.Root), "/")
	second, _, _ := strings.Cut(rest, "/")
	def := m.stored[first]
	if def == nil {
		def = m.stored[first+"/"+second]
	}
	if def == nil {
		def, _ = catalog.Definition(first, second) // a custom resource
	}
	if def == nil {
		return "", ""
	}
	return def.Group, def.Resource
}

// learn remembers where the kinds are stored that do not come and go.
func (m *meters) learn(catalog *resource.Catalog) {
	m.stored = map[string]*resource.Definition{}
	for _, def := range catalog.Definitions() {
		m.stored[def.StorageKey] = def
	}
}

// Changes implements storage.Historian.
func (m *measured) Changes(ctx context.Context, opts storage.ChangesOptions, each func(*storage.Change) error) (int64, error) {
	return storage.Changes(ctx, m.Backend, opts, func(c *storage.Change) error {
		c.User = m.users.of(ctx, c.KV.ModRevision)
		return each(c)
	})
}

// KeptHistory implements storage.Historian.
func (m *measured) KeptHistory(ctx context.Context) (storage.Kept, error) {
	return storage.KeptHistory(ctx, m.Backend)
}

// RevisionAt implements storage.Historian.
func (m *measured) RevisionAt(ctx context.Context, t time.Time) (int64, error) {
	return storage.RevisionAt(ctx, m.Backend, t)
}
