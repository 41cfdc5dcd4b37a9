package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// This file copies a store that is open, and takes a store that is not open back to an
// older revision.

// forever is longer than any history is kept.
const forever = 100 * 365 * 24 * time.Hour

// checkpointFree is how many bytes must be free on the disk for a checkpoint: it takes
// little space itself, but from then on the files of both stores are on the disk.
const checkpointFree = 256 << 20

// Checkpoint makes a store in dir, which must be absent, on the same disk, that has
// everything that was acknowledged before the call, with its history. The files are linked,
// not copied: no file of a store is ever changed but logs, which are copied. The two stores
// have nothing else in common. If it fails, this store goes on as before, and what is in
// dir is no store.
func (e *Engine) Checkpoint(ctx context.Context, dir string) (revision int64, err error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave(&err)
	if err := e.fs.Err(); err != nil {
		return 0, e.readOnly(err)
	}
	if u, err := e.fs.GetDiskUsage(e.opts.Dir); err == nil && e.opts.MinFree > 0 && u.AvailBytes < checkpointFree {
		return 0, fmt.Errorf("%w: the disk of %s has %d MiB left; a copy of the store needs %d", storage.ErrNoSpace, e.opts.Dir, u.AvailBytes>>20, checkpointFree>>20)
	}
	defer e.fs.setApart(dir)()
	if err := makeDir(e.fs.FS, dir); err != nil {
		return 0, fmt.Errorf("storage: cannot make %s: %w", dir, err)
	}
	revision = e.feed.revision()
	if err := e.linkDatabase(filepath.Join(dir, databaseDir)); err != nil {
		return 0, fmt.Errorf("storage: cannot copy the store to %s: %w", dir, err)
	}
	if err := e.fs.Err(); err != nil {
		return 0, e.readOnly(err)
	}
	if err := sealFolder(e.fs.FS, dir, revision); err != nil {
		return 0, err
	}
	// The file FORMAT comes last: without it the folder does not pass for a store.
	return revision, writeFormat(e.fs.FS, dir)
}

// linkDatabase makes a checkpoint of the database. Pebble panics if a folder cannot be
// synced, which it takes for the end of the store; here it is the end of the checkpoint.
// Pebble holds no lock then, and its deferred functions release the files.
func (e *Engine) linkDatabase(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return e.db.Checkpoint(dir, pebble.WithFlushedWAL())
}

// Lock locks the folder of a store that nobody has open, so that nobody opens it until
// unlock is called. It is ErrLocked if somebody has it open.
func Lock(dir string) (unlock func() error, err error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	lock, err := vfs.Default.Lock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, fmt.Errorf("%w: %s (%w)", ErrLocked, dir, err)
	}
	return lock.Close, nil
}

// RollBack takes a store that no process has open back to a revision, or, if that is 0, to
// what it was at a time. The versions and events after it are removed, as if they had never
// been; their revisions are given again. So it is for a copy that clients of the store
// have not seen. It returns the revision. ErrCompacted says that history does not reach so
// far back, ErrFutureRevision that the revision was never there. A crash leaves the store
// at a revision between the two.
func RollBack(ctx context.Context, dir string, revision int64, at time.Time) (_ int64, err error) {
	opts := Options{Dir: dir, HistoryAge: forever, HistoryCount: math.MaxInt64 / 2, RetainAge: forever, RetainBytes: math.MaxInt64}
	opts.defaults()
	e := &Engine{opts: opts, ctx: ctx}
	if err := e.openDatabase(func(error) {}); err != nil { // never armed: errors come here
		return 0, err
	}
	defer func() { err = errors.Join(err, e.closeDatabase(), e.unlock()) }()
	if revision == 0 {
		if revision, err = e.RevisionAt(ctx, at); err != nil {
			return 0, err
		}
	}
	if oldest := max(e.floor.Load(), e.base); revision < oldest {
		return 0, fmt.Errorf("%w: history begins with revision %d", storage.ErrCompacted, oldest)
	}
	if now := e.feed.revision(); revision > now {
		return 0, fmt.Errorf("%w: %d, the newest is %d", storage.ErrFutureRevision, revision, now)
	}
	if err := e.marker.lower(revision); err != nil {
		return 0, err
	}
	return revision, e.rollBack(ctx, revision)
}

// Rebase raises the revision of a store that no process has open to base, and removes its
// history, as an import would have made it: clients that know older revisions are told that
// these have expired.
func Rebase(dir string, base int64) (err error) {
	opts := Options{Dir: dir}
	opts.defaults()
	e := &Engine{opts: opts}
	if err := e.openDatabase(func(error) {}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.closeDatabase(), e.unlock()) }()
	_, last, err := e.eventRange()
	if err != nil {
		return err
	}
	if was, err := e.meta(metaBase); err != nil || base < max(was, last) {
		return errors.Join(err, fmt.Errorf("storage: revision %d is raised to %d, which is less", max(was, last), base))
	}
	batch := e.db.NewBatch()
	defer batch.Close()
	must(batch.Set(metaKey(metaBase), metaValue(base), nil))
	must(batch.Set(metaKey(metaCompact), metaValue(base), nil))
	must(batch.Delete(metaKey(metaFloor), nil))
	if err := e.db.Apply(batch, pebble.Sync); err != nil {
		return err
	}
	return e.removeHistory(context.Background(), base)
}

// rollBackEvents is how many events one batch takes back.
const rollBackEvents = 4096

// rollBack removes what came after a revision, newest first: after each batch the store is
// what it was at some revision.
func (e *Engine) rollBack(ctx context.Context, revision int64) error {
	if revision < e.compacted.Load() {
		if err := e.db.Set(metaKey(metaCompact), metaValue(revision), pebble.Sync); err != nil {
			return err
		}
	}
	if err := e.db.DeleteRange(userKey(revision+1), []byte{spaceUser + 1}, pebble.NoSync); err != nil {
		return err
	}
	for end := e.feed.revision() + 1; end > revision+1; {
		err := ctx.Err()
		if err == nil {
			end, err = e.rollBackStep(revision, end)
		}
		if err != nil {
			return err
		}
	}
	return e.db.LogData(nil, pebble.Sync)
}

// rollBackStep takes back the last events before end, and returns the first of them. The
// bound keeps the iterator away from what the steps before have removed.
func (e *Engine) rollBackStep(revision, end int64) (first int64, err error) {
	it, err := e.db.NewIter(&pebble.IterOptions{LowerBound: eventKey(nil, revision+1), UpperBound: eventKey(nil, end)})
	if err != nil {
		return 0, err
	}
	defer it.Close()
	batch := e.db.NewBatch()
	defer batch.Close()
	first = revision + 1
	n := 0
	for ok := it.Last(); ok && n < rollBackEvents; ok = it.Prev() {
		n++
		at, _, ev, err := eventAt(it)
		if err != nil {
			return 0, err
		}
		made, err := e.storedVersion(ev.key, at)
		if err != nil {
			return 0, err
		}
		first = at
		must(batch.Delete(versionKey(nil, ev.key, at), nil))
		if made.expires != 0 {
			must(batch.Delete(expiryKey(nil, made.expires, ev.key), nil))
		}
		if ev.prev == 0 {
			continue
		}
		before, err := e.storedVersion(ev.key, ev.prev)
		if err != nil && (ev.op != storage.Created || !errors.Is(err, pebble.ErrNotFound)) { // a tombstone may be gone
			return 0, err
		}
		if before.expires != 0 && !before.deleted {
			must(batch.Set(expiryKey(nil, before.expires, ev.key), metaValue(ev.prev), nil))
		}
	}
	if err := it.Error(); err != nil {
		return 0, err
	}
	must(batch.DeleteRange(eventKey(nil, first), eventKey(nil, end), nil))
	return first, e.db.Apply(batch, pebble.NoSync)
}

// storedVersion returns the version of a key that a revision made, without its value.
func (e *Engine) storedVersion(key string, revision int64) (version, error) {
	b, c, err := e.db.Get(versionKey(nil, key, revision))
	if err != nil {
		return version{}, fmt.Errorf("storage: version %d of %s: %w", revision, key, err)
	}
	defer c.Close()
	v, err := parseVersion(b, revision)
	v.value = nil
	return v, err
}
