package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apikeel/kelson/storage"
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

// UnreadableObjects is why a resource can be neither listed nor watched: what is
// decided by what is not there must not be decided while nobody can say what is.
// It has the first of them, in the order of their keys.
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
// changed so that it cannot be read.
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
