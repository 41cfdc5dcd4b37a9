package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// maxConflicts is how often an update is tried against others before it gives
// up.
const maxConflicts = 100

// pending are the records of writes that are on their way through the backend to
// the cache. When the event arrives, the record is there already, and nothing has
// to be decoded. A write that fails takes its record back.
//
// It is bounded by the bytes of the records: what does not fit is decoded.
type pending struct {
	records map[string]*Record // by key, with revision 0
	bytes   int
}

// maxPending bounds the bytes of the pending records of a resource.
const maxPending = 4 << 20

func (p *pending) put(rec *Record) {
	p.remove(p.records[rec.Key])
	if p.bytes+rec.Size() > maxPending {
		return
	}
	if p.records == nil {
		p.records = map[string]*Record{}
	}
	p.records[rec.Key] = rec
	p.bytes += rec.Size()
}

// remove forgets a record, unless another one of the same key has taken its place.
func (p *pending) remove(rec *Record) {
	if rec != nil && p.records[rec.Key] == rec {
		delete(p.records, rec.Key)
		p.bytes -= rec.Size()
	}
}

// take returns the record of a write that was committed, nil if it is not the one
// that was put.
func (p *pending) take(kv *storage.KeyValue) *Record {
	rec := p.records[kv.Key]
	if rec == nil {
		return nil
	}
	p.remove(rec)
	// A record of a write is not in the cache of values: its bytes are there.
	if was, err := rec.Stored(); err != nil || !bytes.Equal(was, kv.Value) {
		return nil
	}
	rec = rec.Committed(kv.ModRevision, kv.Value)
	rec.Created = createdAt(kv)
	return rec
}

// createdAt is the Created of a record.
func createdAt(kv *storage.KeyValue) int64 {
	if !kv.Expires.IsZero() {
		return 0
	}
	return kv.CreateRevision
}

// write calls the backend with a record that the cache is to have when the event
// of the write arrives.
func (r *Resource) write(rec *Record, call func() (storage.KeyValue, error)) (storage.KeyValue, error) {
	r.mu.Lock()
	if r.state == isLoaded {
		r.pending.put(rec)
	}
	r.mu.Unlock()
	kv, err := call()
	if err == nil {
		r.acknowledge(kv.ModRevision)
		return kv, nil
	}
	r.mu.Lock()
	r.pending.remove(rec)
	r.mu.Unlock()
	return kv, err
}

// Acknowledged returns the revision of the newest write of this process, zero
// if there was none.
func (r *Resource) Acknowledged() int64 { return r.acknowledged.Load() }

// acknowledge notes a write before its caller hears of it.
func (r *Resource) acknowledge(revision int64) {
	for was := r.acknowledged.Load(); was < revision && !r.acknowledged.CompareAndSwap(was, revision); was = r.acknowledged.Load() {
	}
}

// Create stores a new object. The error is storage.ErrExists if there is one.
func (r *Resource) Create(ctx context.Context, key string, obj resource.Object, ttl time.Duration) (*Record, error) {
	if err := r.store.mayGrow(); err != nil {
		return nil, err
	}
	r.loadEmpty(ctx)
	ctx, span := r.startSpan(ctx, CreateSpan, key)
	defer span.End()
	setType(span, obj)
	rec, stored, err := r.encodeWithin(span, key, obj)
	if err != nil {
		return nil, err
	}
	kv, err := r.write(rec, func() (storage.KeyValue, error) { return r.store.backend.Create(ctx, key, stored, ttl) })
	if err != nil {
		return nil, err
	}
	return committed(span, rec, kv.ModRevision, stored), nil
}

// loadEmpty loads a resource that has no objects yet, which costs nothing: who
// creates the first ones will most likely read them, and then finds what the
// writes have made. A resource that nobody has read in spite of its objects is
// left alone.
func (r *Resource) loadEmpty(ctx context.Context) {
	if r.loaded.Load() || r.counted.Swap(true) {
		return
	}
	if page, err := r.store.backend.List(ctx, r.prefix, storage.ListOptions{Limit: 1, KeysOnly: true}); err == nil && len(page.Items) == 0 {
		// A failure shows when somebody reads.
		_ = r.load(ctx)
	}
}

// prepare encodes an object into a record that has no revision yet. The name and the
// namespace in the object are those in the key, or readers of the two would disagree.
func (r *Resource) prepare(key string, obj resource.Object) (rec *Record, stored []byte, err error) {
	namespace, name := r.split(key)
	if obj.GetName() != name || r.def.Namespaced && obj.GetNamespace() != namespace {
		return nil, nil, fmt.Errorf("%w: it is named %q in namespace %q, and its key is %s", wire.ErrNotStorable, obj.GetName(), obj.GetNamespace(), key)
	}
	if stored, err = wire.EncodeStored(r.def, obj); err != nil {
		return nil, nil, err
	}
	rec, err = r.newRecord(key, 0, stored, obj)
	return rec, stored, err
}

// Change computes the next state of an object from the current one, which it
// may modify. It can be called several times, each time with a newer state.
type Change func(current *Record, obj resource.Object) (next resource.Object, ttl time.Duration, err error)

// Update changes an object. An error of change ends it, unless the state that
// it saw was not the newest: then it is asked again with the newest. A change
// that leaves the stored bytes as they are writes nothing and returns the
// current record, unless the backend would write the same bytes otherwise now.
func (r *Resource) Update(ctx context.Context, key string, change Change) (*Record, error) {
	ctx, span := r.startSpan(ctx, UpdateSpan, key)
	defer span.End()
	current, fresh, err := r.start(ctx, key)
	if err != nil {
		return nil, err
	}
	for try := range maxConflicts {
		was, err := current.Stored()
		if err != nil && !fresh {
			// The cached state may be so old that its bytes are gone.
			if current, err = r.newest(ctx, key); err == nil {
				fresh = true
				was, err = current.Stored()
			}
		}
		if err != nil {
			return nil, err
		}
		obj, err := wire.DecodeStored(r.def, was)
		if err != nil {
			return nil, err
		}
		if try == 0 {
			setType(span, obj)
			span.Event("initial value restored")
		} else {
			span.Event("Retry value restored")
		}
		next, ttl, err := change(current, obj)
		var rec *Record
		var stored []byte
		if err == nil {
			rec, stored, err = r.encodeWithin(span, key, next)
		}
		unchanged := err == nil && bytes.Equal(stored, was)
		if err != nil || unchanged {
			stale := current.Stale
			if !fresh {
				// Decided on what may be an old state: look at the newest.
				newest, nerr := r.newest(ctx, key)
				if nerr != nil {
					return nil, nerr
				}
				if newest.Revision != current.Revision {
					current, fresh = newest, true
					continue
				}
				stale = newest.Stale
			}
			if err != nil || !stale {
				return current, err
			}
		}
		kv, err := r.write(rec, func() (storage.KeyValue, error) {
			return r.store.backend.Update(ctx, key, stored, current.Revision, ttl)
		})
		if errors.Is(err, storage.ErrConflict) {
			if current, err = r.readRecord(&kv); err != nil {
				return nil, err
			}
			fresh = true
			continue
		}
		if err != nil {
			return nil, err
		}
		return committed(span, rec, kv.ModRevision, stored), nil
	}
	return nil, fmt.Errorf("%w: %s changed %d times meanwhile", storage.ErrConflict, key, maxConflicts)
}

// Replace stores next in place of a state that was read before. If the object has changed since,
// the error is storage.ErrConflict. It writes nothing if next is what is stored already, unless the
// backend would write the same bytes otherwise now.
func (r *Resource) Replace(ctx context.Context, seen *Record, next resource.Object, ttl time.Duration) (*Record, error) {
	ctx, span := r.startSpan(ctx, UpdateSpan, seen.Key)
	defer span.End()
	setType(span, next)
	rec, stored, err := r.encodeWithin(span, seen.Key, next)
	if err != nil {
		return nil, err
	}
	// Bytes that cannot be read again are those of an old state: the write is refused.
	if was, err := seen.Stored(); err == nil && bytes.Equal(stored, was) {
		newest, err := r.newest(ctx, seen.Key)
		if err == nil && newest.Revision != seen.Revision {
			err = fmt.Errorf("%w: %s is at revision %d, not %d", storage.ErrConflict, seen.Key, newest.Revision, seen.Revision)
		}
		if err != nil || !newest.Stale {
			return newest, err
		}
	}
	kv, err := r.write(rec, func() (storage.KeyValue, error) {
		return r.store.backend.Update(ctx, seen.Key, stored, seen.Revision, ttl)
	})
	if err != nil {
		return nil, err
	}
	return committed(span, rec, kv.ModRevision, stored), nil
}

// Delete removes an object if check, which sees its newest state, allows it. It
// returns the last state, with the revision of the deletion.
func (r *Resource) Delete(ctx context.Context, key string, check func(current *Record) error) (*Record, error) {
	current, _, err := r.start(ctx, key)
	if err != nil {
		return nil, err
	}
	for range maxConflicts {
		if err := check(current); err != nil {
			newest, nerr := r.newest(ctx, key)
			if nerr != nil {
				return nil, nerr
			}
			if newest.Revision == current.Revision {
				return nil, err
			}
			current = newest
			continue
		}
		kv, revision, err := r.store.backend.Delete(ctx, key, current.Revision)
		if errors.Is(err, storage.ErrConflict) {
			if current, err = r.readRecord(&kv); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		r.acknowledge(revision)
		return current.At(revision), nil
	}
	return nil, fmt.Errorf("%w: %s changed %d times meanwhile", storage.ErrConflict, key, maxConflicts)
}

// start returns a state of an object to base a write on: the cached one if
// there is one, which is most likely the newest, else the newest.
func (r *Resource) start(ctx context.Context, key string) (rec *Record, fresh bool, err error) {
	if r.loaded.Load() {
		r.mu.Lock()
		if r.tree != nil {
			rec, _ = r.tree.Get(key)
		}
		r.mu.Unlock()
		if rec != nil {
			return rec, false, nil
		}
	}
	rec, err = r.newest(ctx, key)
	return rec, true, err
}

// newest reads an object from the backend.
func (r *Resource) newest(ctx context.Context, key string) (*Record, error) {
	kv, err := r.store.backend.Get(ctx, key)
	switch {
	case errors.Is(err, storage.ErrInvalidKey):
		return nil, fmt.Errorf("%w: %s", storage.ErrNotFound, key) // and never will be
	case err != nil && kv.Err == nil:
		return nil, err
	}
	rec, err := r.readRecord(&kv)
	if err == nil {
		r.noteSize(rec)
	}
	return rec, err
}

// readRecord makes the record of what was read from the backend. The error is
// Unreadable, or ErrBusy of the budget: nothing is known of the object.
func (r *Resource) readRecord(kv *storage.KeyValue) (*Record, error) {
	if kv.Err != nil {
		return nil, &Unreadable{Key: kv.Key, Err: kv.Err}
	}
	// The feed reads for everybody: what a stored object does to it must not end it.
	var rec *Record
	err := protect.Call(func() (err error) {
		rec, err = r.newRecord(kv.Key, kv.ModRevision, kv.Value, nil)
		return err
	})
	if errors.Is(err, budget.ErrBusy) {
		return nil, err
	}
	if err != nil {
		return nil, &Unreadable{Key: kv.Key, Revision: kv.ModRevision, Err: err}
	}
	rec.Stale, rec.Created = kv.Stale, createdAt(kv)
	if kv.Made {
		rec.LetGo(&r.store.made)
	}
	return rec, nil
}
