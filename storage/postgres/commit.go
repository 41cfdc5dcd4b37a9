package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
)

// Bounds of the queue (writes) and of one transaction (writes, bytes).
const (
	maxQueued     = 4096
	maxGroup      = 1024
	maxGroupBytes = 4 << 20
)

// maxTTL bounds what a timestamp of the database can hold.
const maxTTL = 100 * 365 * 24 * time.Hour

// write is a queued create, update or delete with room for its result. The caller fills
// the upper part and waits for done; commitLoop sets the result.
type write struct {
	op    storage.Op
	key   string
	value []byte // a copy; nil for a delete
	guard int64
	ttl   time.Duration

	// taken is set by whoever comes first: commitLoop when it begins to commit the
	// write, or the caller when its context ends while the write still waits. Whoever
	// finds it set leaves the write alone.
	taken atomic.Bool
	done  chan struct{} // closed when the result below is set

	kv       storage.KeyValue
	revision int64
	err      error
}

// Create implements storage.Backend.
func (b *Backend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	kv, _, err := b.write(ctx, storage.Created, key, value, 0, ttl)
	return kv, err
}

// Update implements storage.Backend.
func (b *Backend) Update(ctx context.Context, key string, value []byte, guard int64, ttl time.Duration) (storage.KeyValue, error) {
	kv, _, err := b.write(ctx, storage.Updated, key, value, guard, ttl)
	return kv, err
}

// Delete implements storage.Backend.
func (b *Backend) Delete(ctx context.Context, key string, guard int64) (storage.KeyValue, int64, error) {
	return b.write(ctx, storage.Deleted, key, nil, guard, 0)
}

// write queues a change and waits for its result.
func (b *Backend) write(ctx context.Context, op storage.Op, key string, value []byte, guard int64, ttl time.Duration) (kv storage.KeyValue, revision int64, err error) {
	if err := errors.Join(storage.CheckKey(key), storage.CheckValue(value)); err != nil {
		return kv, 0, err
	}
	if err := b.beginWrite(ctx); err != nil {
		return kv, 0, err
	}
	defer b.writes.Done()
	w := &write{op: op, key: key, guard: guard, ttl: min(max(ttl, 0), maxTTL), done: make(chan struct{})}
	if op != storage.Deleted {
		w.value = append(make([]byte, 0, len(value)), value...)
	}
	select {
	case b.queue <- w:
	case <-ctx.Done():
		return kv, 0, ctx.Err()
	case <-b.ctx.Done():
		return kv, 0, storage.ErrClosed
	}
	select {
	case <-w.done:
	case <-b.ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return kv, 0, storage.ErrClosed
		}
		<-w.done // the transaction under way is finished before Close returns
	case <-ctx.Done():
		if w.taken.CompareAndSwap(false, true) {
			return kv, 0, ctx.Err() // still in the queue: it will not be committed
		}
		select {
		case <-w.done: // committed while the context ended
		default:
			return kv, 0, fmt.Errorf("%w: %w", storage.ErrUncertain, ctx.Err())
		}
	}
	return w.kv, w.revision, w.err
}

// commitLoop takes writes from the queue and commits them in groups.
func (b *Backend) commitLoop() {
	var group, later []*write
	for {
		group, later = append(group[:0], later...), nil
		if len(group) == 0 {
			select {
			case w := <-b.queue:
				group = append(group, w)
			case <-b.ctx.Done():
				return
			}
		}
		if b.ctx.Err() != nil {
			return // those who wait take their writes back
		}
		group = b.gather(group)
		later = b.commit(group)
		clear(group)
	}
}

// gather adds the other queued writes to the group. It yields the processor, so that
// callers who were answered by the previous transaction and write again are in this
// group.
func (b *Backend) gather(group []*write) []*write {
	bytes := 0
	for _, w := range group {
		bytes += len(w.value)
	}
	for yields := 0; len(group) < maxGroup && bytes < maxGroupBytes; {
		select {
		case w := <-b.queue:
			group = append(group, w)
			bytes += len(w.value)
			continue
		default:
		}
		if yields++; yields > 2 {
			break
		}
		runtime.Gosched()
	}
	return group
}

// commit writes a group in one transaction and sets the results. Of several writes to
// one key, the first is in the transaction. Most of the others are answered by its
// outcome; those that are not are returned.
func (b *Backend) commit(group []*write) (later []*write) {
	first := make(map[string]*write, len(group))
	now := make([]*write, 0, len(group))
	var others []*write
	for _, w := range group {
		if _, ok := first[w.key]; ok {
			others = append(others, w)
		} else if w.taken.CompareAndSwap(false, true) {
			first[w.key] = w
			now = append(now, w)
		}
	}
	if len(now) > 0 {
		b.apply(now)
	}
	for _, w := range others {
		if !answerAfter(w, first[w.key]) {
			later = append(later, w)
		}
	}
	for _, w := range now {
		close(w.done)
	}
	return later
}

// answerAfter answers a write by the outcome of the one before it to the same key, if
// that decides it: nobody can know the revision that was given a moment ago.
func answerAfter(w, before *write) bool {
	if before.err != nil {
		return false
	}
	var kv storage.KeyValue
	var err error
	switch {
	case before.op != storage.Deleted && w.op == storage.Created:
		kv, err = before.kv, fmt.Errorf("%w: %s", storage.ErrExists, w.key)
	case before.op != storage.Deleted:
		kv, err = before.kv, fmt.Errorf("%w: %s is at revision %d, not %d", storage.ErrConflict, w.key, before.revision, w.guard)
	case w.op != storage.Created:
		err = fmt.Errorf("%w: %s", storage.ErrNotFound, w.key)
	default:
		return false
	}
	if w.taken.CompareAndSwap(false, true) {
		w.kv, w.err = kv, err
		close(w.done)
	}
	return true
}

// apply writes a group and sets the results. If the database refuses the group for what
// one of its writes is, each is tried alone.
func (b *Backend) apply(group []*write) {
	group, err := b.applyGroup(group)
	if err == nil {
		return
	}
	if len(group) > 1 && isRefusal(err) && !errors.Is(err, storage.ErrUnavailable) {
		for _, w := range group {
			if _, err := b.applyGroup([]*write{w}); err != nil {
				w.err = err
			}
		}
		return
	}
	for _, w := range group {
		w.err = err
	}
}

// applyGroup writes a group in one transaction. It returns the writes without a result
// with the error that is theirs. It tries again for reconnectGrace as long as it is known
// that nothing was committed.
func (b *Backend) applyGroup(group []*write) ([]*write, error) {
	for began, attempt := time.Now(), 0; ; attempt++ {
		err := b.diverged()
		if err == nil {
			err = b.transact(group)
		}
		again := false
		var broken brokenError
		switch {
		case err == nil, errors.Is(err, storage.ErrUncertain):
			return group, err
		case errors.As(err, &broken):
			if group, err = b.resolve(group, broken); err != nil || len(group) == 0 {
				return group, err
			}
			err, again = fmt.Errorf("%w: postgres: %w", storage.ErrUnavailable, broken.error), true
		case b.diverged() != nil:
			return group, b.diverged()
		case isRefusal(err):
			switch asPgError(err).Code {
			case codeReadOnly:
				b.writer.drop() // it was a primary before
				again = true
			case codeDeadlock, codeSerialization:
				again = true
			}
			err = b.refusal(err)
		default: // not sent
			err = fmt.Errorf("%w: postgres: %w", storage.ErrUnavailable, err)
			again = true
		}
		if !again || time.Since(began) > reconnectGrace {
			return group, err
		}
		if !backoff(b.ctx, attempt) {
			return group, storage.ErrClosed
		}
	}
}

// brokenError: the connection broke when a transaction had been sent.
type brokenError struct {
	error
	stamp int64 // of the transaction
	seen  int64 // a revision that was committed before it
}

// transact sends a group to the database once, and sets the results unless it returns
// an error: a brokenError, ErrUncertain, or one that says that nothing was committed.
func (b *Backend) transact(group []*write) error {
	// Not b.ctx: Close waits for a transaction that was sent.
	ctx, cancel := context.WithTimeout(context.Background(), b.opts.CommitTimeout)
	defer cancel()
	conn, err := b.writerSession()
	if err != nil {
		return err
	}
	var (
		ops      = make([]int16, len(group))
		names    = make([][]byte, len(group))
		guards   = make([]int64, len(group))
		ttls     = make([]int64, len(group))
		contents = make([][]byte, len(group))
	)
	for i, w := range group {
		ops[i], names[i], guards[i], ttls[i], contents[i] = int16(w.op), []byte(w.key), w.guard, w.ttl.Microseconds(), w.value
		if w.ttl > 0 {
			ttls[i] = max(ttls[i], 1)
		}
	}
	stamp := rand.Int64()
	seen, seenStamp := b.seen.get()
	warnings := b.warnings.Load()
	watched := b.feed.isWatched()
	results := make([]outcome, len(group))
	err = rows(ctx, conn, func(r raw) error {
		results[r.int(0)-1] = outcome{
			there: true, applied: r.bool(1), revision: r.int(2), expires: r.time(3),
			found: storage.KeyValue{ModRevision: r.int(4), CreateRevision: r.int(5), Expires: r.time(6), Value: r.bytes(7)},
		}
		return nil
	}, b.text.write, seen, seenStamp, stamp, watched, ops, names, guards, ttls, contents)
	b.writer.used = time.Now()
	switch {
	case err == nil:
	case isRefusal(err):
		return err
	case isNotSent(err):
		b.writer.drop()
		return err
	default:
		b.writer.drop()
		return brokenError{err, stamp, seen}
	}
	if b.warnings.Load() != warnings {
		return fmt.Errorf("%w: the database has committed with a warning, so it may not be replicated as configured", storage.ErrUncertain)
	}
	b.fillValues(ctx, conn, group, results)
	b.settleAll(group, results, stamp, watched)
	return nil
}

// settleAll sets the results of a group that was committed, and passes its events on.
func (b *Backend) settleAll(group []*write, results []outcome, stamp int64, watched bool) {
	var events []storage.Event
	last := int64(0)
	for i, w := range group {
		o := &results[i]
		b.settle(w, o)
		if !o.applied {
			continue
		}
		last = o.revision
		ev := storage.Event{Op: w.op, KV: storage.KeyValue{Key: w.key, Value: w.value, CreateRevision: w.kv.CreateRevision, ModRevision: o.revision, Expires: o.expires}}
		if w.op != storage.Created {
			ev.Prev = o.found
			watched = watched && o.found.Value != nil
		}
		events = append(events, ev)
	}
	if last == 0 {
		return
	}
	b.seen.note(last, stamp)
	// Unless another server has written in between, or values are missing, the events
	// need not be read. Who was answered finds them in this server's watches.
	if !watched || !b.feed.publish(events, last-int64(len(events)), last, false) {
		b.feed.wake()
	}
}

// writerSession returns the connection for writes. A session that broke may still have a
// transaction to execute that was sent to it. So the next session begins by ending its
// predecessor and waiting until the database has no such session any more: then what the
// predecessor has not committed it never will. There is no lock in this that other roles could
// take: advisory locks are for everybody who may connect.
func (b *Backend) writerSession() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.opts.ConnectTimeout)
	defer cancel()
	conn, err := b.writer.get(ctx)
	if err != nil || conn == b.session.conn {
		return conn, err
	}
	var id sessionID
	err = conn.QueryRow(ctx, "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint FROM pg_stat_activity WHERE pid = pg_backend_pid()").Scan(&id.pid, &id.began)
	if err == nil && b.session.id.pid != 0 {
		err = endSession(ctx, conn, b.session.id)
	}
	if err != nil {
		b.writer.drop()
		return nil, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	b.session.conn, b.session.id = conn, id
	return conn, nil
}

// sessionID tells a session from all others of a database. began is nil if the role may not see
// when its sessions have begun; then there may be another session with the same pid later, and
// who waits for this one waits for that.
type sessionID struct {
	pid   int32
	began *int64 // microseconds
}

// endSession ends a session, if there still is one, and waits until it is gone. The database
// removes a session from pg_stat_activity after its transaction has ended.
func endSession(ctx context.Context, conn *pgx.Conn, id sessionID) error {
	const same = "a.pid = $1 AND a.pid <> pg_backend_pid() AND ($2::bigint IS NULL OR a.backend_start IS NULL OR (extract(epoch FROM a.backend_start) * 1000000)::bigint = $2)"
	// A role may end its own sessions. If this one may not, it waits all the same. It also
	// waits for one that waits for a standby: to end it would commit its transaction
	// without.
	_, err := conn.Exec(ctx, "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE "+same+" AND a.wait_event IS DISTINCT FROM 'SyncRep'", id.pid, id.began)
	for left := 0; err == nil || isRefusal(err); {
		err = conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity a WHERE "+same, id.pid, id.began).Scan(&left)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return err
}

// resolve finds out what became of a transaction whose connection broke, sets the results
// of its writes if it was committed, and returns the writes that were not applied. If the
// database cannot be asked within reconnectGrace, all are ErrUncertain.
func (b *Backend) resolve(group []*write, broken brokenError) (rest []*write, err error) {
	found := map[string]outcome{}
	for began, attempt := time.Now(), 0; ; attempt++ {
		var conn *pgx.Conn
		compacted := int64(0)
		if conn, err = b.writerSession(); err == nil {
			ctx, cancel := context.WithTimeout(b.ctx, b.opts.ConnectTimeout)
			clear(found)
			// A transaction that writes to the log, and so waits for standbys if it has
			// to: then the one that broke is replicated, too.
			if _, err = conn.Exec(ctx, b.text.lock); err == nil {
				err = rows(ctx, conn, func(r raw) error {
					if compacted = r.int(0); !r.isNull(1) {
						found[string(r[1])] = outcome{
							there: true, applied: true, revision: r.int(2), expires: r.time(4),
							found: storage.KeyValue{ModRevision: r.int(5), CreateRevision: r.int(6), Expires: r.time(7), Value: r.bytes(8)},
						}
					}
					return nil
				}, b.text.outcome, broken.seen, broken.stamp)
			}
			cancel()
		}
		if err == nil && broken.seen > 0 && compacted > broken.seen {
			err = errors.New("history was compacted meanwhile")
			break
		}
		if err == nil {
			break
		}
		b.writer.drop()
		if time.Since(began) > reconnectGrace || !backoff(b.ctx, attempt) {
			break
		}
	}
	if err != nil {
		b.log.Warn("the outcome of a transaction is unknown", "writes", len(group), "error", broken.error, "again", err)
		return group, fmt.Errorf("%w: postgres: %w; asking what became of it: %w", storage.ErrUncertain, broken.error, err)
	}
	for _, w := range group {
		o, ok := found[w.key]
		if !ok {
			rest = append(rest, w)
			continue
		}
		b.settle(w, &o)
		b.seen.note(o.revision, broken.stamp)
	}
	b.feed.wake()
	return rest, nil
}

// outcome is a row that write_group returns. found is the version that it has found, if
// its ModRevision is not zero; its value is there if the write needs it and the values of
// the group are not too large.
type outcome struct {
	there, applied bool
	revision       int64
	expires        time.Time
	found          storage.KeyValue
	err            error
}

// fillValues reads the values that write_group has left out.
func (b *Backend) fillValues(ctx context.Context, conn *pgx.Conn, group []*write, results []outcome) {
	missing := map[int64]*outcome{}
	var revisions []int64
	for i, w := range group {
		o := &results[i]
		if o.found.ModRevision != 0 && o.found.Value == nil && (!o.applied || w.op == storage.Deleted) {
			missing[o.found.ModRevision] = o
			revisions = append(revisions, o.found.ModRevision)
		}
	}
	if len(missing) == 0 {
		return
	}
	err := rows(ctx, conn, func(r raw) error {
		if o := missing[r.int(0)]; o != nil {
			o.found.Value = r.bytes(1)
			delete(missing, r.int(0))
		}
		return nil
	}, b.text.values, revisions)
	for revision, o := range missing {
		sentinel := storage.ErrUnavailable
		if o.applied {
			sentinel = storage.ErrUncertain
		}
		o.err = fmt.Errorf("%w: reading the value of revision %d: %v", sentinel, revision, err)
	}
}

// settle sets the result of a write.
func (b *Backend) settle(w *write, o *outcome) {
	o.found.Key = w.key
	switch {
	case o.err != nil:
		w.err = o.err
	case !o.there:
		w.err = fmt.Errorf("%w: postgres: no answer for a write", storage.ErrUncertain)
	case o.applied && w.op == storage.Deleted:
		w.kv, w.revision = o.found, o.revision
	case o.applied:
		w.revision = o.revision
		w.kv = storage.KeyValue{Key: w.key, Value: w.value, CreateRevision: o.revision, ModRevision: o.revision, Expires: o.expires}
		if w.op == storage.Updated {
			w.kv.CreateRevision = o.found.CreateRevision
		}
		if !o.expires.IsZero() {
			b.noteExpiry(o.expires)
		}
	case o.found.ModRevision == 0:
		w.err = fmt.Errorf("%w: %s", storage.ErrNotFound, w.key)
	case w.op == storage.Created:
		w.kv, w.err = o.found, fmt.Errorf("%w: %s", storage.ErrExists, w.key)
	default:
		w.kv, w.err = o.found, fmt.Errorf("%w: %s is at revision %d, not %d", storage.ErrConflict, w.key, o.found.ModRevision, w.guard)
	}
}
