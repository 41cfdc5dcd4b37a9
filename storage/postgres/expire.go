package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
)

const (
	// expireAtOnce is how many expired keys are deleted in one pass.
	expireAtOnce = 512
	// expireInterval is how often a server looks for expired keys of which it was not
	// told, expireRetry when it looks again after a failure.
	expireInterval = 5 * time.Second
	expireRetry    = time.Second
)

// noteExpiry has expireLoop look when a key expires, by the clock of the database. If
// this machine's differs, it looks too early, finds how long it still is, or too late, by
// at most expireInterval.
func (b *Backend) noteExpiry(when time.Time) {
	if at := when.UnixMicro(); at < b.nextTTL.Load() {
		signal(b.wakeTTL)
	}
}

// expireLoop deletes keys whose time has come. Every server does so; the guard of a
// delete makes sure that nothing is deleted twice, or after an update.
func (b *Backend) expireLoop() {
	for {
		wait, err := b.expire()
		switch {
		case b.ctx.Err() != nil:
			return
		case err != nil:
			b.log.Warn("expired keys could not be deleted; it is tried again", "error", err, "after", expireRetry)
			wait = expireRetry
		}
		// A little apart, so that of several servers mostly one deletes.
		wait = min(max(wait, time.Millisecond)+rand.N(20*time.Millisecond), expireInterval)
		b.nextTTL.Store(time.Now().Add(wait).UnixMicro())
		timer := time.NewTimer(wait)
		select {
		case <-b.ctx.Done():
		case <-timer.C:
		case <-b.wakeTTL:
		}
		timer.Stop()
	}
}

// expire deletes the expired keys, and returns the time until the next expires.
func (b *Backend) expire() (time.Duration, error) {
	for {
		due, err := b.dueKeys()
		if err != nil {
			return 0, err
		}
		if len(due) == 0 {
			return b.untilExpiry()
		}
		deleted, err := b.deleteAll(due)
		if err != nil {
			return 0, err
		}
		if deleted == 0 {
			return 50 * time.Millisecond, nil // others have deleted or updated them
		}
	}
}

type dueKey struct {
	key      string
	revision int64
}

func (b *Backend) dueKeys() (due []dueKey, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.WaitTimeout)
	defer cancel()
	err = b.read(ctx, func(conn *pgx.Conn) error {
		due = due[:0]
		return rows(ctx, conn, func(r raw) error {
			due = append(due, dueKey{string(r[0]), r.int(1)})
			return nil
		}, b.text.due, expireAtOnce)
	})
	return due, err
}

// untilExpiry returns the time until the next key expires, expireInterval if there is
// none.
func (b *Backend) untilExpiry() (time.Duration, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.WaitTimeout)
	defer cancel()
	var left *int64
	err := b.read(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, b.text.nextExpiry).Scan(&left) })
	if err != nil || left == nil {
		return expireInterval, err
	}
	return time.Duration(*left) * time.Microsecond, nil
}

// deleteAll deletes keys, except those that have been updated since, and returns how
// many it deleted. The deletes are sent together, so that they share a transaction.
func (b *Backend) deleteAll(keys []dueKey) (deleted int, err error) {
	errs := make([]error, len(keys))
	var wg sync.WaitGroup
	for i, k := range keys {
		wg.Go(func() { _, _, errs[i] = b.Delete(b.ctx, k.key, k.revision) })
	}
	wg.Wait()
	for _, e := range errs {
		switch {
		case e == nil:
			deleted++
		case !errors.Is(e, storage.ErrConflict) && !errors.Is(e, storage.ErrNotFound):
			err = e
		}
	}
	return deleted, err
}
