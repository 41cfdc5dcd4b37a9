package engine

import (
	"errors"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
)

// expireAtOnce is how many expired keys are deleted in one pass.
const expireAtOnce = 1024

// expire deletes the keys whose ttl has ended, and returns the time until the next key
// expires.
func (e *Engine) expire() (time.Duration, error) {
	for {
		due, next, err := e.dueKeys()
		if err != nil || len(due) == 0 {
			return next, err
		}
		deleted, err := e.deleteAll(due)
		if err != nil {
			return 0, err
		}
		if deleted == 0 {
			return time.Second, nil // every one of them was updated meanwhile
		}
	}
}

type dueKey struct {
	key      string
	revision int64
}

// dueKeys returns up to expireAtOnce expired keys, or, if there are none, the time
// until the next key expires.
func (e *Engine) dueKeys() (due []dueKey, next time.Duration, err error) {
	committed, now := e.feed.revision(), e.opts.now().UnixMilli()
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceExpiry}, UpperBound: []byte{spaceExpiry + 1}})
	if err != nil {
		return nil, 0, err
	}
	defer it.Close()
	for ok := it.First(); ok && len(due) < expireAtOnce; ok = it.Next() {
		expires, key, err := parseExpiryKey(it.Key())
		if err != nil {
			return nil, 0, err
		}
		if expires > now {
			return due, time.Duration(expires-now) * time.Millisecond, nil
		}
		b, err := it.ValueAndErr()
		if err != nil {
			return nil, 0, err
		}
		revision, err := parseMeta(b)
		if err != nil {
			return nil, 0, err
		}
		// The commit that is under way wakes this goroutine when it is done.
		if revision <= committed {
			due = append(due, dueKey{key, revision})
		}
	}
	return due, time.Hour, it.Error()
}

// deleteAll deletes keys, except those that have been updated since, and returns how
// many it deleted. The deletes are sent in parallel, so that they share commits.
func (e *Engine) deleteAll(keys []dueKey) (deleted int, err error) {
	errs := make(chan error, len(keys))
	for _, k := range keys {
		go func() {
			_, _, err := e.Delete(e.ctx, k.key, k.revision)
			errs <- err
		}()
	}
	for range keys {
		switch e := <-errs; {
		case e == nil:
			deleted++
		case err == nil && !errors.Is(e, storage.ErrConflict) && !errors.Is(e, storage.ErrNotFound):
			err = e
		}
	}
	return deleted, err
}
