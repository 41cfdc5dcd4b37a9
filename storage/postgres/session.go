package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"

	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// minVersion is the oldest version of PostgreSQL, as server_version_num.
const minVersion = 130000

// sessionSettings make the plans of all statements those that use the indexes, whatever
// the statistics say: there is one such plan for each. Without them a large table that
// was not analyzed yet, or was analyzed while it was empty, is scanned. And write_group
// needs a snapshot for each of its statements, not one for all.
const sessionSettings = `
SET jit = off;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_sort = off;
SET enable_incremental_sort = off;
SET max_parallel_workers_per_gather = 0;
SET plan_cache_mode = force_generic_plan;
SET work_mem = '16MB';
SET lock_timeout = '10s';
SET search_path = pg_catalog;
SET default_transaction_isolation = 'read committed';
`

// errNotPostgres: the database speaks the protocol of PostgreSQL, but lacks what the order
// of revisions and the end of broken sessions rest on.
var errNotPostgres = configError{errors.New("CockroachDB is not supported: it has no LISTEN, and a session cannot end another one by its lock")}

// errTooManyWait: the queue for connections is full.
var errTooManyWait = errors.New("too many reads wait for a connection")

// prepare sets up a new connection, and refuses it if the database behind it must not be
// used.
func (b *Backend) prepare(ctx context.Context, conn *pgx.Conn) error {
	if conn.PgConn().ParameterStatus("crdb_version") != "" {
		return errNotPostgres
	}
	if _, err := conn.Exec(ctx, sessionSettings); err != nil {
		return err
	}
	var version int
	var name, commit, fsync string
	var standby bool
	err := conn.QueryRow(ctx, `SELECT version(), current_setting('server_version_num')::int, current_setting('synchronous_commit'),
		current_setting('fsync'), pg_is_in_recovery()`, pgx.QueryExecModeExec).Scan(&name, &version, &commit, &fsync, &standby)
	switch {
	case err != nil:
		return err
	case strings.Contains(name, "CockroachDB"):
		return errNotPostgres
	case version < minVersion:
		return configError{fmt.Errorf("version %d.%d of PostgreSQL is too old, at least %d is needed", version/10000, version%10000, minVersion/10000)}
	case standby:
		return errors.New("the database is a standby that accepts no writes")
	case (commit == "off" || fsync == "off") && !b.opts.AllowNoSync:
		return configError{fmt.Errorf("the database has synchronous_commit=%s and fsync=%s: it would lose acknowledged writes when it crashes; set both to on (at least synchronous_commit=local), or allow it explicitly", commit, fsync)}
	}
	return nil
}

// configError is a reason not to use a database that trying again does not change.
type configError struct{ error }

func (e configError) Unwrap() error { return e.error }

// connect opens a connection outside of the pool.
func (b *Backend) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := b.opts.connConfig()
	if err != nil {
		return nil, err
	}
	config.OnNotice = b.noteWarning
	// When a connection breaks or a context ends, pgx dials once more to cancel the
	// statement. A commit that waits for a standby must not be cancelled: the database
	// would commit without it.
	dial, connected := config.DialFunc, new(atomic.Bool)
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("statements of this connection are not cancelled")
		}
		return dial(ctx, network, address)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, explainConnect(err)
	}
	connected.Store(true)
	if err = b.prepare(ctx, conn); err == nil {
		err = b.verify(ctx, conn)
	}
	if err != nil {
		closeConn(conn)
		return nil, fmt.Errorf("%w: %w", errNoConnection, err)
	}
	return conn, nil
}

// noteWarning counts warnings. A commit that ends with one may not have been replicated
// as the database is configured to do: somebody has cancelled the wait for the standby.
func (b *Backend) noteWarning(_ *pgconn.PgConn, n *pgconn.Notice) {
	if n.SeverityUnlocalized == "WARNING" {
		b.warnings.Add(1)
		b.log.Warn("warning from the database", "message", n.Message, "code", n.Code)
	}
}

// closeConn closes a connection, without waiting for the database for long.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// newPool returns the pool of connections for reads. A read whose context ends is
// cancelled in the database, and its connection used again.
func (b *Backend) newPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(b.opts.DSN)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if config.ConnConfig, err = b.opts.connConfig(); err != nil {
		return nil, err
	}
	config.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Second}
	}
	config.MaxConns, config.MinConns = int32(b.opts.MaxConns), 0
	config.MaxConnIdleTime, config.PingTimeout = 5*time.Minute, 2*time.Second
	config.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		fresh, err := b.opts.connConfig()
		if err != nil {
			return err
		}
		conn.Password, conn.TLSConfig, conn.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
		return nil
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		return errors.Join(b.prepare(ctx, conn), b.verify(ctx, conn))
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// read calls f with a connection of the pool. If the connection breaks, it tries others
// for reconnectGrace: f may be called several times.
func (b *Backend) read(ctx context.Context, f func(conn *pgx.Conn) error) error {
	if err := b.checkUsable(ctx); err != nil {
		return err
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	for began := time.Now(); ; {
		err := b.readOnce(own, f)
		switch {
		case err == nil:
			return nil
		case b.diverged() != nil:
			return b.diverged()
		case own.Err() != nil || !isBroken(err) || errors.Is(err, errTooManyWait) || time.Since(began) > reconnectGrace:
			return b.readError(ctx, err)
		}
		select {
		case <-own.Done():
		case <-time.After(reconnectPoll):
		}
	}
}

func (b *Backend) readOnce(ctx context.Context, f func(conn *pgx.Conn) error) error {
	conn, err := b.acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return f(conn.Conn())
}

// acquire takes a connection from the pool. Both the number of those who wait and the
// time are bounded.
func (b *Backend) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if b.waiting.Add(1) > int64(b.opts.MaxWaiting) {
		b.waiting.Add(-1)
		b.refused.Add(1)
		return nil, fmt.Errorf("%w: %w: %d", storage.ErrUnavailable, errTooManyWait, b.opts.MaxWaiting)
	}
	defer b.waiting.Add(-1)
	wait, cancel := context.WithTimeout(ctx, b.opts.WaitTimeout)
	defer cancel()
	conn, err := b.pool.Acquire(wait)
	if err != nil && wait.Err() != nil && ctx.Err() == nil {
		b.refused.Add(1)
		return nil, fmt.Errorf("%w: none of %d connections was free within %v: %w", storage.ErrUnavailable, b.opts.MaxConns, b.opts.WaitTimeout, errTooManyWait)
	}
	return conn, err
}

// line is a connection that one goroutine has for itself, opened when it is needed.
type line struct {
	b    *Backend
	conn *pgx.Conn
	used time.Time
}

// get returns the connection. One that was idle is tried first: a statement that is sent
// into a dead one is uncertain, and need not be.
func (l *line) get(ctx context.Context) (*pgx.Conn, error) {
	if l.conn != nil && !l.conn.IsClosed() && time.Since(l.used) > time.Second {
		ping, cancel := context.WithTimeout(ctx, 2*time.Second)
		if l.conn.Ping(ping) != nil {
			l.drop()
		}
		cancel()
	}
	if l.conn == nil || l.conn.IsClosed() {
		conn, err := l.b.connect(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoConnection, err)
		}
		l.conn = conn
	}
	l.used = time.Now()
	return l.conn, nil
}

// drop closes the connection.
func (l *line) drop() {
	if l.conn != nil {
		closeConn(l.conn)
		l.conn = nil
	}
}

// maxBackoff is the longest wait between two attempts to connect. Writes and watches go on
// only after it when the database is back.
const maxBackoff = 200 * time.Millisecond

// backoff waits before another attempt to connect, for longer each time, and returns
// false if ctx has ended.
func backoff(ctx context.Context, attempt int) bool {
	wait := min(25*time.Millisecond<<min(attempt, 6), maxBackoff)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait/2 + rand.N(wait/2)):
		return true
	}
}
