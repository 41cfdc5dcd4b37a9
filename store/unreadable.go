package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// Unreadable is the error of an object that is in storage and cannot be read: it
// was encrypted with a key that is not there, or is of a version that is gone.
type Unreadable struct {
	Key string
	// Revision of the object, 0 if it could not be decrypted.
	Revision int64
	Err      error
}

// Error implements error.
func (e *Unreadable) Error() string { return fmt.Sprintf("%s cannot be read: %v", e.Key, e.Err) }

// Unwrap returns why.
func (e *Unreadable) Unwrap() error { return e.Err }

// isLeftOut reports whether the object is left out of lists and watches: it is there, and nobody
// will ever decode it.
func (e *Unreadable) isLeftOut() bool {
	return e.Revision != 0 && !errors.As(e.Err, new(*wire.NotConverted))
}

// UnreadableObjects are such objects, in the order of their keys. As an error, of objects
// that cannot be decrypted or converted, it is why a resource can be neither listed nor watched: a key
// that is missing, or a webhook that does not answer, concerns many, and what is decided by what is not
// there, as what the garbage collector deletes, must not be decided while nobody can say what is. It has
// the first of them then.
//
// Objects that cannot be decoded are left out of lists and watches, and are named in the
// log: one of them must not keep all readers of the resource from the others. Snapshots
// say what is left out, for parts of the server that must not decide without it.
type UnreadableObjects []*Unreadable

// Error implements error.
func (e UnreadableObjects) Error() string {
	if len(e) == 1 {
		return e[0].Error()
	}
	return fmt.Sprintf("%v (and %d more)", e[0], len(e)-1)
}

// Unwrap returns the errors of the objects.
func (e UnreadableObjects) Unwrap() []error {
	errs := make([]error, len(e))
	for i := range e {
		errs[i] = e[i]
	}
	return errs
}

const (
	// MaxUnreadable is how many objects that cannot be read are looked for.
	MaxUnreadable = 100
	// brokenFor is how long a resource is not loaded again after it was found to have
	// objects that cannot be read, unless one of its objects changes.
	brokenFor = time.Second
)

// leftOut are the objects of a loaded resource that cannot be decoded.
type leftOut struct {
	byKey map[string]*Unreadable
	list  UnreadableObjects // of byKey; nil after a change
}

// maxLogged is how many of them are named in the log, for each load of the resource.
const maxLogged = 100

// leaveOutLocked notes an object that cannot be decoded.
func (r *Resource) leaveOutLocked(one *Unreadable) {
	if r.leftOut.byKey == nil {
		r.leftOut.byKey = map[string]*Unreadable{}
	}
	r.leftOut.byKey[one.Key], r.leftOut.list = one, nil
	if len(r.leftOut.byKey) <= maxLogged {
		r.store.log.Error("store: object cannot be decoded, it is left out of lists and watches", "key", one.Key, "revision", one.Revision, "error", one.Err)
	}
}

// takeInLocked forgets that an object could not be decoded, before its next state is read.
func (r *Resource) takeInLocked(key string) {
	if _, out := r.leftOut.byKey[key]; out {
		delete(r.leftOut.byKey, key)
		r.leftOut.list = nil
	}
}

// listLocked returns the objects in the order of their keys.
func (l *leftOut) listLocked() UnreadableObjects {
	if l.list == nil && len(l.byKey) > 0 {
		l.list = slices.SortedFunc(maps.Values(l.byKey), func(a, b *Unreadable) int { return strings.Compare(a.Key, b.Key) })
	}
	return l.list
}

// LeftOut returns the objects whose keys begin with prefix that are not in the snapshot,
// since they cannot be decoded.
func (s *Snapshot) LeftOut(prefix string) (out UnreadableObjects) {
	for _, one := range s.out {
		if strings.HasPrefix(one.Key, prefix) {
			out = append(out, one)
		}
	}
	return out
}

// LeftOut returns the objects that are not in the cache, since they cannot be decoded.
func (r *Resource) LeftOut() UnreadableObjects {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leftOut.listLocked()
}

// complete returns an error if objects whose keys begin with prefix are left out.
func (s *Snapshot) complete(prefix string) error {
	if out := s.LeftOut(prefix); len(out) > 0 {
		return out
	}
	return nil
}

// readOrLeaveOut is readRecord that returns nil for an object that cannot be decoded.
func (r *Resource) readOrLeaveOut(kv *storage.KeyValue) (*Record, error) {
	rec, err := r.readRecord(kv)
	if one := (*Unreadable)(nil); errors.As(err, &one) && one.isLeftOut() {
		return nil, nil
	}
	return rec, err
}

// broken is that a resource cannot be loaded.
type broken struct {
	err   error
	until time.Time
}

// recall returns why the resource cannot be loaded, if that was found a moment ago
// and nothing has changed since.
func (r *Resource) recall(ctx context.Context) error {
	found := func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if time.Now().Before(r.broken.until) {
			return r.broken.err
		}
		return nil
	}
	if found() == nil {
		return nil
	}
	if err := r.store.current(ctx); err != nil {
		return err
	}
	return found()
}

// remember keeps why the resource cannot be loaded, unless that may have changed
// since. The mutex is held.
func (r *Resource) remember(err error) {
	if errors.As(err, new(UnreadableObjects)) && len(r.arrived.events) == 0 {
		r.broken = broken{err, time.Now().Add(brokenFor)}
	}
}

// Spoiled reports whether the resource was loaded, and has not been since an object
// changed so that it cannot be decrypted.
func (r *Resource) Spoiled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spoiled
}

// Discard removes an object that cannot be read, whatever it says. The error is
// ErrReadable if it can.
func (r *Resource) Discard(ctx context.Context, key string, dryRun bool) error {
	for range maxConflicts {
		kv, err := r.store.backend.Get(ctx, key)
		if err != nil && kv.Err == nil {
			return err
		}
		switch _, err := r.readRecord(&kv); {
		case err == nil:
			return ErrReadable
		case !errors.As(err, new(*Unreadable)):
			return err
		}
		if dryRun {
			return nil
		}
		_, revision, err := r.store.backend.Delete(ctx, key, kv.ModRevision)
		if err == nil {
			r.acknowledge(revision)
		}
		if !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("%w: %s changed %d times meanwhile", storage.ErrConflict, key, maxConflicts)
}

// ErrReadable: an object that was to be removed because it cannot be read can be.
var ErrReadable = errors.New("the object can be read")
