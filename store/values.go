package store

import (
	"context"
	"slices"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// readTimeout bounds how long the stored bytes of a record that are out of memory are
// waited for.
const readTimeout = 10 * time.Second

// readValue reads stored bytes that are out of memory.
func (s *Store) readValue(key string, revision int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, readTimeout)
	defer cancel()
	return storage.ReadValue(ctx, s.backend, key, revision)
}

// scanValues reads stored bytes that are out of memory of keys that follow each other, as
// wire.ValueCache.Scan says.
func (s *Store) scanValues(first, last string, n int, revision int64, each func(key string, written int64, stored []byte)) error {
	ctx, cancel := context.WithTimeout(s.ctx, readTimeout)
	defer cancel()
	common := 0
	for common < min(len(first), len(last)) && first[common] == last[common] {
		common++
	}
	_, err := storage.Scan(ctx, s.backend, first[:common], storage.ListOptions{Revision: revision, Start: first, Limit: n}, func(kv *storage.KeyValue) error {
		if kv.Err == nil {
			each(kv.Key, kv.ModRevision, kv.Value)
		}
		return nil
	})
	return err
}

// scan lists from the backend. If there is a ValueCache, a value is valid only until each
// returns.
func (s *Store) scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (storage.Page, error) {
	if s.values != nil {
		return storage.Scan(ctx, s.backend, prefix, opts, each)
	}
	page, err := s.backend.List(ctx, prefix, opts)
	for i := range page.Items {
		if err == nil {
			err = each(&page.Items[i])
		}
	}
	return page, err
}

// nextRecords calls f for at most n records of the caches that follow a position, and
// returns the position behind them: resource by resource, and from the beginning after
// the last one.
func (s *Store) nextRecords(after wire.Position, n int, f func(*Record)) wire.Position {
	s.mu.Lock()
	prefixes := make([]string, 0, len(s.resources))
	for prefix := range s.resources {
		prefixes = append(prefixes, prefix)
	}
	s.mu.Unlock()
	slices.Sort(prefixes)
	first, _ := slices.BinarySearch(prefixes, after.Resource)
	for _, prefix := range prefixes[first:] {
		if prefix != after.Resource {
			after = wire.Position{Resource: prefix}
		}
		s.mu.Lock()
		r := s.resources[prefix]
		s.mu.Unlock()
		if r == nil {
			continue
		}
		snapshot := r.snap()
		if snapshot == nil {
			continue
		}
		snapshot.Range(prefix, storage.NextKey(after.Key), func(rec *Record) bool {
			f(rec)
			after.Key = rec.Key
			n--
			return n > 0
		})
		if n == 0 {
			return after
		}
	}
	return wire.Position{}
}

// ValueBytes returns how many stored bytes of the caches are in memory, how many may be,
// and how many were read again. Without a limit all are 0.
func (s *Store) ValueBytes() (held, limit, reads int64) {
	if s.values == nil {
		return 0, 0, 0
	}
	return s.values.Held(), s.values.Limit, s.values.Reads()
}

// Within returns the options with the bounds of a server's memory.
func (o Options) Within(m *budget.Memory) Options {
	o.ValueBytes, o.ValuesLent, o.ObjectBytes, o.EncodingBytes = m.Values(), m.Clients.Held, m.Objects(), m.Encodings()
	return o
}

// Report adds what the caches hold to a server's memory.
func (s *Store) Report(m *budget.Memory) {
	if s.values != nil {
		m.Report(budget.Holder{Name: "values", Limit: s.values.Limit, Held: s.values.Held})
	}
	if s.objects.limit > 0 {
		m.Report(budget.Holder{Name: "objects", Limit: s.objects.limit, Held: s.objectBytes})
	}
	m.Report(budget.Holder{Name: "encodings", Limit: s.budget.Limit, Held: s.budget.Spent})
}

// Largest returns a bound of the stored bytes of the objects in the cache, and of those
// that were read without it. It does not become less when a large object goes.
func (r *Resource) Largest() int { return int(r.largest.Load()) }

// smallObject is the size of objects whose memory need not be known before they are changed.
const smallObject = 32 << 10

// SizeOf returns how many stored bytes an object has. It is 0 if there is none, if none in
// the cache is large, and if there is no cache, the backend is not on this machine, and no
// object was large that was read from it so far: few writes should wait for it twice. It
// does not load the cache.
func (r *Resource) SizeOf(ctx context.Context, key string) int {
	var rec *Record
	var err error
	switch loaded := r.loaded.Load(); {
	case loaded && r.Largest() >= smallObject:
		rec, _, err = r.cached(key)
	case !loaded && (r.Largest() >= smallObject || r.store.values != nil && r.store.values.Near):
		rec, err = r.newest(ctx, key)
	}
	if rec == nil || err != nil {
		return 0 // who changes the object finds out why
	}
	return rec.StoredSize()
}

func (r *Resource) noteSize(rec *Record) {
	size := int64(rec.StoredSize())
	for was := r.largest.Load(); was < size && !r.largest.CompareAndSwap(was, size); was = r.largest.Load() {
	}
}
