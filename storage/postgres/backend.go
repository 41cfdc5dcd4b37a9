// Package postgres is a storage.Backend on PostgreSQL 13 or newer. Start at Open and
// Backend. Keys and values are those of the other backends. Nothing but this package
// may write to its tables (schema.sql), which any number of servers share.
//
// # Invariants
//
//   - Revisions are consecutive and become visible in their order. Whoever gives
//     revisions holds the lock of one row until its transaction is committed, and the
//     first revision that it gives follows the newest in the table: a transaction that
//     is rolled back leaves no gap.
//   - Rows of versions are inserted and removed, never changed, and a read is one
//     statement. So it sees the state of one revision, which it reads in the same
//     statement, and an update leaves no dead row for readers to step over.
//   - A process remembers the newest revision that it has seen and the random stamp of
//     its transaction, and looks for them on every new connection, with every write and
//     whenever it asks for the revision. A database that has something else there has
//     lost acknowledged writes (failover to a standby that lagged, a restored backup),
//     and is not used until the process is restarted.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// reconnectGrace is how long a read or a write is tried again if there is no
	// connection, every reconnectPoll.
	reconnectGrace = 2500 * time.Millisecond
	reconnectPoll  = 25 * time.Millisecond
)

// Backend is a storage.Backend on PostgreSQL.
type Backend struct {
	opts  Options
	names names
	text  statements
	log   *slog.Logger

	pool     *pgxpool.Pool
	waiting  atomic.Int64  // reads that wait for a connection of the pool
	refused  atomic.Int64  // reads that got none
	warnings atomic.Uint64 // from the database, on connections outside of the pool
	writer   *line         // for commitLoop alone, as session is
	// session is the connection of writer, and what the database knows it by; the last such
	// connection if writer has none.
	session struct {
		conn *pgx.Conn
		id   sessionID
	}

	queue    chan *write
	seen     seen
	lost     atomic.Pointer[error] // set once: the database has lost writes
	revision revisionReader
	feed     feed
	wakeTrim chan struct{} // capacity 1
	wakeTTL  chan struct{} // capacity 1
	nextTTL  atomic.Int64  // when the sweeper looks again, in Unix microseconds

	// ctx is canceled by Close.
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool
	// writes counts calls that write, tasks goroutines. Neither is added to once closed
	// is set.
	writes, tasks sync.WaitGroup
}

var (
	_ storage.Backend     = (*Backend)(nil)
	_ storage.ValueReader = (*Backend)(nil)
	_ storage.Scanner     = (*Backend)(nil)
)

// Open connects to the database and makes the tables if they are not there. It fails
// when the database does not answer within Options.ConnectTimeout.
func Open(ctx context.Context, opts Options) (*Backend, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	b := &Backend{
		opts: opts, names: newNames(opts.Schema), log: opts.Logger,
		queue:    make(chan *write, maxQueued),
		wakeTrim: make(chan struct{}, 1), wakeTTL: make(chan struct{}, 1),
	}
	b.text = newStatements(b.names)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	b.writer = &line{b: b}
	b.revision.b = b
	if err := b.openDatabase(ctx); err != nil {
		b.cancel()
		b.writer.drop()
		return nil, err
	}
	var err error
	if b.pool, err = b.newPool(b.ctx); err != nil {
		b.cancel()
		b.writer.drop()
		return nil, err
	}
	b.feed.init()
	b.spawn(b.commitLoop)
	b.spawn(b.listen)
	b.spawn(b.runFeed)
	b.spawn(b.expireLoop)
	b.spawn(b.trimLoop)
	if opts.CompactInterval > 0 {
		b.spawn(b.compactLoop)
	}
	return b, nil
}

// openDatabase waits for the database and makes the tables.
func (b *Backend) openDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.opts.ConnectTimeout)
	defer cancel()
	var last error
	for attempt := 0; ; attempt++ {
		conn, err := b.writer.get(ctx)
		if err == nil {
			if err = b.ensureSchema(ctx, conn); err == nil {
				return nil
			}
			if isRefusal(err) {
				return fmt.Errorf("postgres: %w", err)
			}
			b.writer.drop()
		}
		if errors.As(err, new(configError)) || asPgError(err) != nil && !isTemporary(err) {
			return fmt.Errorf("postgres: %w", err)
		}
		// "Connection refused" is a better reason than the deadline that ends the wait.
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if !backoff(ctx, attempt) {
			return fmt.Errorf("postgres: no answer within %v: %w: %w", b.opts.ConnectTimeout, storage.ErrUnavailable, last)
		}
	}
}

// isTemporary reports whether a database that has refused a connection may accept it
// later: it is starting, stopping, or has no room.
func isTemporary(err error) bool {
	switch pg := asPgError(err); pg.Code[:min(2, len(pg.Code))] {
	case "53", "57", "08", "40", "25":
		return true
	}
	return false
}

// seen is the newest revision that this process knows to be committed.
type seen struct {
	mu              sync.Mutex
	revision, stamp int64
}

func (s *seen) note(revision, stamp int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if revision > s.revision {
		s.revision, s.stamp = revision, stamp
	}
}

func (s *seen) get() (revision, stamp int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revision, s.stamp
}

// verify checks that the database has the newest revision that this process has seen.
func (b *Backend) verify(ctx context.Context, conn *pgx.Conn) error {
	revision, stamp := b.seen.get()
	if revision <= 1 {
		return b.diverged()
	}
	_, err := b.readState(ctx, conn, revision, stamp)
	return err
}

// state is what a statement says about the store as a whole.
type state struct{ revision, compacted int64 }

// readState reads the current revision. It fails if the database lacks a revision that
// was seen before.
func (b *Backend) readState(ctx context.Context, conn *pgx.Conn, seen, stamp int64) (s state, err error) {
	var there *int64
	var newest int64
	if err := conn.QueryRow(ctx, b.text.state, seen).Scan(&s.compacted, &s.revision, &newest, &there); err != nil {
		return s, err
	}
	if err := b.checkSeen(s, seen, stamp, there); err != nil {
		return s, err
	}
	b.seen.note(s.revision, newest)
	return s, b.diverged()
}

// checkSeen compares what a statement has found at a revision that was seen before the
// statement began.
func (b *Backend) checkSeen(s state, seen, stamp int64, there *int64) error {
	switch {
	case seen <= 1:
	case s.revision < seen:
		return b.diverge(fmt.Sprintf("the newest revision is %d, and %d was committed", s.revision, seen))
	case there != nil && *there != stamp, there == nil && seen >= s.compacted:
		return b.diverge(fmt.Sprintf("revision %d is not the one that was committed", seen))
	}
	return nil
}

// diverge records that the database has lost writes, and returns the error that every
// call fails with from then on.
func (b *Backend) diverge(what string) error {
	err := fmt.Errorf("%w: the database has lost acknowledged writes (%s): it was restored, or failed over to a standby that lagged; restart this server to go on with what the database has", storage.ErrUnavailable, what)
	if b.lost.CompareAndSwap(nil, &err) {
		b.log.Error("the database has lost acknowledged writes; this server serves nothing until it is restarted", "reason", what)
		b.feed.fail(err)
	}
	return *b.lost.Load()
}

func (b *Backend) diverged() error {
	if err := b.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Revision returns the current revision. Callers that wait at the same time share a
// statement.
func (b *Backend) Revision(ctx context.Context) (int64, error) {
	s, err := b.revision.get(ctx)
	return s.revision, err
}

// Progress makes the feed read on, and every watcher report the revision that it has
// reached then.
func (b *Backend) Progress(ctx context.Context) error {
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	b.feed.requestProgress()
	return nil
}

// Status describes the database. The size is that of the tables with their indexes.
func (b *Backend) Status(ctx context.Context) (storage.Status, error) {
	status := storage.Status{Engine: "postgres", Connections: b.connections()}
	s, err := b.revision.get(ctx)
	if err != nil {
		return status, err
	}
	status.Revision, status.CompactRevision = s.revision, s.compacted
	err = b.read(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, b.text.size).Scan(&status.SizeBytes) })
	return status, err
}

// connections describes the pool.
func (b *Backend) connections() *storage.Connections {
	s := b.pool.Stat()
	return &storage.Connections{
		Max: int(s.MaxConns()), Used: int(s.AcquiredConns()), Idle: int(s.IdleConns()),
		Waiting: int(b.waiting.Load()), Waited: s.EmptyAcquireCount(), Refused: b.refused.Load(),
	}
}

// Shared implements storage.Backend: any number of servers may use one database.
func (b *Backend) Shared() bool { return true }

// HasValues implements storage.ValueReader.
func (b *Backend) HasValues() bool { return true }

// Close ends all watchers, waits for writes in flight and closes the connections. Calls
// after it fail with ErrClosed.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	b.mu.Unlock()
	b.cancel()
	b.feed.close()
	b.writes.Wait()
	b.tasks.Wait()
	b.writer.drop()
	b.pool.Close()
	return nil
}

// checkUsable returns an error if a call cannot be served.
func (b *Backend) checkUsable(ctx context.Context) error {
	switch {
	case b.ctx.Err() != nil:
		return storage.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return b.diverged()
}

// spawn runs a task in a goroutine that Close waits for.
func (b *Backend) spawn(task func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.tasks.Go(task)
	return true
}

// beginWrite makes Close wait for the write that follows, until b.writes.Done.
func (b *Backend) beginWrite(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return storage.ErrClosed
	}
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	b.writes.Add(1)
	return nil
}

// signal sends to a channel of capacity 1 unless it is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// revisionReader shares statements for the current state between concurrent callers.
// Invariant: a caller's answer comes from a statement that began after the call.
type revisionReader struct {
	b       *Backend
	mu      sync.Mutex
	running bool
	next    *revisionCall // nil unless a caller waits for it
}

type revisionCall struct {
	done  chan struct{} // closed when the result below is set
	state state
	err   error
}

func (r *revisionReader) get(ctx context.Context) (state, error) {
	if err := r.b.checkUsable(ctx); err != nil {
		return state{}, err
	}
	r.mu.Lock()
	if r.next == nil {
		r.next = &revisionCall{done: make(chan struct{})}
	}
	call := r.next
	if !r.running {
		r.running = r.b.spawn(r.run)
		if !r.running {
			r.next = nil
			r.mu.Unlock()
			return state{}, storage.ErrClosed
		}
	}
	r.mu.Unlock()
	select {
	case <-call.done:
		return call.state, call.err
	case <-ctx.Done():
		return state{}, ctx.Err()
	}
}

// run answers calls until nobody waits.
func (r *revisionReader) run() {
	for {
		r.mu.Lock()
		call := r.next
		r.next = nil
		if call == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(r.b.ctx, r.b.opts.WaitTimeout)
		revision, stamp := r.b.seen.get()
		call.err = r.b.read(ctx, func(conn *pgx.Conn) (err error) {
			call.state, err = r.b.readState(ctx, conn, revision, stamp)
			return err
		})
		if errors.Is(call.err, context.DeadlineExceeded) {
			// It is this statement's deadline, not the caller's.
			call.err = fmt.Errorf("%w: postgres did not answer within %v", storage.ErrUnavailable, r.b.opts.WaitTimeout)
		}
		cancel()
		close(call.done)
	}
}
