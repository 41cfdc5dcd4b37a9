package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// versions returns an iterator over all versions of all keys. It sees the database as
// it is now, whatever is written later.
func (e *Engine) versions() (*pebble.Iterator, error) {
	return e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceVersion}, UpperBound: []byte{spaceVersion + 1}})
}

// readVersion returns the version of a key that was the newest at a revision. The value
// is a copy.
func readVersion(it *pebble.Iterator, key string, revision int64) (version, bool, error) {
	seek := versionKey(make([]byte, 0, len(key)+10), key, revision)
	if !it.SeekPrefixGE(seek) {
		return version{}, false, it.Error()
	}
	_, rev, err := parseVersionKey(it.Key())
	if err != nil {
		return version{}, false, err
	}
	b, err := it.ValueAndErr()
	if err != nil {
		return version{}, false, err
	}
	v, err := parseVersion(b, rev)
	v.value = bytes.Clone(v.value)
	return v, err == nil, err
}

// Get implements storage.Backend.
func (e *Engine) Get(ctx context.Context, key string) (kv storage.KeyValue, err error) {
	if err := storage.CheckKey(key); err != nil {
		return storage.KeyValue{}, err
	}
	if err := e.enter(ctx); err != nil {
		return storage.KeyValue{}, err
	}
	defer e.leave(&err)
	if e.isAbsent(key) {
		return storage.KeyValue{}, fmt.Errorf("%w: %s", storage.ErrNotFound, key)
	}
	it, revision, err := e.view(&pebble.IterOptions{LowerBound: []byte{spaceVersion}, UpperBound: []byte{spaceVersion + 1}}, 0)
	if err != nil {
		return storage.KeyValue{}, err
	}
	defer it.Close()
	v, ok, err := readVersion(it, key, revision)
	if err != nil {
		return storage.KeyValue{}, err
	}
	if !ok || v.deleted {
		return storage.KeyValue{}, fmt.Errorf("%w: %s", storage.ErrNotFound, key)
	}
	return v.keyValue(key), nil
}

// isAbsent reports whether it is known without the disk that a key has no value: by the
// recent events in memory, or by who has a copy of everything.
func (e *Engine) isAbsent(key string) bool {
	ev, since, recent := e.feed.lastEvent(key)
	if recent {
		return ev.Op == storage.Deleted
	}
	kv, ok := e.pushes.newest(key, since)
	return ok && kv.ModRevision == 0
}

// Value implements storage.ValueReader.
func (e *Engine) Value(ctx context.Context, key string, revision int64) (value []byte, err error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave(&err)
	it, err := e.versions()
	if err != nil {
		return nil, err
	}
	defer it.Close()
	v, ok, err := readVersion(it, key, revision)
	if err == nil && (!ok || v.deleted || v.revision != revision) {
		err = fmt.Errorf("%w: %s at %d", storage.ErrCompacted, key, revision)
	}
	return v.value, err
}

// HasValues implements storage.ValueReader.
func (e *Engine) HasValues() bool { return true }

// List implements storage.Backend.
func (e *Engine) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	var items []storage.KeyValue
	page, err := e.Scan(ctx, prefix, opts, func(kv *storage.KeyValue) error {
		kv.Value = slices.Clone(kv.Value)
		items = append(items, *kv)
		return nil
	})
	if err != nil {
		return storage.Page{}, err
	}
	page.Items = items
	return page, nil
}

// Scan implements storage.Scanner.
func (e *Engine) Scan(ctx context.Context, prefix string, opts storage.ListOptions, each func(*storage.KeyValue) error) (page storage.Page, err error) {
	if err := storage.CheckStart(prefix, opts.Start); err != nil {
		return storage.Page{}, err
	}
	if err := e.enter(ctx); err != nil {
		return storage.Page{}, err
	}
	defer e.leave(&err)
	s, err := e.scanFrom(prefix, opts.Revision, opts.History)
	if err != nil {
		return storage.Page{}, err
	}
	defer s.close()
	page.Revision = s.revision
	n, bytes := 0, 0
	var item storage.KeyValue // one for all, as it is on the heap
	ok := s.first(max(prefix, opts.Start))
	for ; ok; ok = s.next() {
		if n%256 == 0 && ctx.Err() != nil {
			return storage.Page{}, ctx.Err()
		}
		if opts.Limit > 0 && n == opts.Limit || opts.MaxBytes > 0 && bytes >= opts.MaxBytes {
			page.More = true
			break
		}
		item = s.current.keyValue(string(s.key))
		if opts.KeysOnly {
			item.Value = nil
		}
		n, bytes = n+1, bytes+len(item.Value)
		if err := each(&item); err != nil {
			return storage.Page{}, err
		}
	}
	if page.More && opts.Count {
		if page.Remaining, err = s.count(ctx, ok); err != nil {
			return storage.Page{}, err
		}
	}
	return page, s.err
}

// Count implements storage.Backend.
func (e *Engine) Count(ctx context.Context, prefix string) (n, revision int64, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, 0, err
	}
	defer e.leave(&err)
	s, err := e.scan(prefix, 0)
	if err != nil {
		return 0, 0, err
	}
	defer s.close()
	n, err = s.count(ctx, s.first(prefix))
	return n, s.revision, err
}

// Dump calls yield for every key as it stands at one revision, which it
// returns. Unlike a List in pages it is not disturbed by compaction, however
// long it takes. The value is valid until yield returns.
func (e *Engine) Dump(ctx context.Context, yield func(storage.KeyValue) error) (revision int64, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave(&err)
	s, err := e.scan("", 0)
	if err != nil {
		return 0, err
	}
	defer s.close()
	n := 0
	for ok := s.first(""); ok; ok = s.next() {
		if n++; n%256 == 0 && (ctx.Err() != nil || e.ctx.Err() != nil) {
			return 0, cmp.Or(ctx.Err(), error(storage.ErrClosed))
		}
		if err := yield(s.current.keyValue(string(s.key))); err != nil {
			return 0, err
		}
	}
	return s.revision, s.err
}

// scan iterates over the keys that exist at a revision, in order.
type scan struct {
	it       *pebble.Iterator
	revision int64
	// key and current are the key and version at the iterator's position, valid until
	// it moves.
	key     []byte
	current version
	// counts is set if current is not wanted: a value that is kept apart from its key is not read.
	counts bool
	seek   []byte
	err    error
}

// scan returns a scan of a prefix at a revision, zero being the current one.
func (e *Engine) scan(prefix string, revision int64) (*scan, error) {
	return e.scanFrom(prefix, revision, false)
}

// scanFrom is scan, which with history also reads at revisions that are kept for history
// only.
func (e *Engine) scanFrom(prefix string, revision int64, history bool) (*scan, error) {
	oldest := &e.compacted
	if history {
		oldest = &e.floor
	}
	lower, upper := prefixBounds(prefix)
	it, revision, err := e.viewFrom(&pebble.IterOptions{LowerBound: lower, UpperBound: upper}, revision, oldest)
	if err != nil {
		return nil, err
	}
	return &scan{it: it, revision: revision}, nil
}

// view returns an iterator that misses nothing of a revision, and the revision: the one
// asked for, or the current one for zero.
func (e *Engine) view(opts *pebble.IterOptions, revision int64) (*pebble.Iterator, int64, error) {
	return e.viewFrom(opts, revision, &e.compacted)
}

// viewFrom is view, which refuses revisions below limit: compacted, or floor.
func (e *Engine) viewFrom(opts *pebble.IterOptions, revision int64, limit *atomic.Int64) (*pebble.Iterator, int64, error) {
	for {
		now := e.feed.revision()
		at := revision
		if at == 0 {
			at = now
		}
		if at < 0 || at > now {
			return nil, 0, fmt.Errorf("%w: %d is asked for, the newest is %d", storage.ErrFutureRevision, at, now)
		}
		it, err := e.db.NewIter(opts)
		if err != nil {
			return nil, 0, err
		}
		// The iterator does not see what is removed after its creation. So if at was
		// not compacted when it was created, the iterator is complete.
		oldest := limit.Load()
		if at >= oldest {
			return it, at, nil
		}
		it.Close()
		if revision != 0 {
			return nil, 0, fmt.Errorf("%w: %d is asked for, the oldest is %d", storage.ErrCompacted, at, oldest)
		}
		// The current revision was compacted meanwhile: take the new current one.
	}
}

func (s *scan) close() { s.it.Close() }

// first moves to the first key at or after start.
func (s *scan) first(start string) bool {
	s.seek = versionBound(s.seek[:0], start)
	return s.find(s.it.SeekGE(s.seek))
}

// next moves to the next key. The iterator is at the version that was the newest at the
// revision; older versions of the key follow and are skipped.
func (s *scan) next() bool { return s.find(s.it.NextPrefix()) }

// find moves from the iterator's position, if ok, forward to the first key that exists
// at the revision.
func (s *scan) find(ok bool) bool {
	for ok {
		var rev int64
		if s.key, rev, s.err = parseVersionKey(s.it.Key()); s.err != nil {
			return false
		}
		if rev > s.revision {
			// Written after the revision. The seek leads to the version at the
			// revision, or, if the key did not exist then, to the next key.
			s.seek = versionKey(s.seek[:0], string(s.key), s.revision)
			ok = s.it.SeekGE(s.seek)
			continue
		}
		if s.counts {
			if value := s.it.LazyValue(); value.Len() > versionHeader {
				return true // a tombstone has no value
			}
		}
		var b []byte
		if b, s.err = s.it.ValueAndErr(); s.err != nil {
			return false
		}
		if s.current, s.err = parseVersion(b, rev); s.err != nil {
			return false
		}
		if !s.current.deleted {
			return true
		}
		ok = s.it.NextPrefix()
	}
	s.err = s.it.Error()
	return false
}

// count counts the keys from the scan's position, if ok, to the end.
func (s *scan) count(ctx context.Context, ok bool) (int64, error) {
	var n int64
	for s.counts = true; ok; ok = s.next() {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return n, s.err
}
