package replicas

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
)

// newPostgresFleet starts a PostgreSQL and three servers on it, and waits until all are ready.
func newPostgresFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{owner: t, t: t, dir: t.TempDir(), spec: func(*serverSpec) {}, db: pgtest.Start(t, pgtest.Sync())}
	f.history = &postgresHistory{db: f.db}
	for i := range size {
		f.links[i][0] = newProxy(t)
		f.links[i][0].forward(f.db.Addr())
	}
	f.startServers()
	return f
}

// postgresHistory is the table of changes. It is read past the servers.
type postgresHistory struct {
	db *pgtest.DB
	at atomic.Int64 // the revision that follow has come to
}

func (h *postgresHistory) revision(ctx context.Context) (revision int64, err error) {
	conn, err := pgx.Connect(ctx, h.db.SocketDSN())
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, "SELECT max(revision) FROM kelson.versions").Scan(&revision)
	return revision, err
}

// follow reads the table again and again. It may not be trimmed beyond h.at.
func (h *postgresHistory) follow(ctx context.Context, prefix string, after int64, note func(seenEvent) bool) error {
	h.at.Store(after)
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	for ; ctx.Err() == nil; pause(10 * time.Millisecond) {
		if conn == nil || conn.IsClosed() {
			var err error
			if conn, err = pgx.Connect(ctx, h.db.SocketDSN()); err != nil {
				conn = nil // the database was killed
				continue
			}
		}
		rows, err := conn.Query(ctx, "SELECT revision, created, deleted, key FROM kelson.versions WHERE revision > $1 ORDER BY revision", h.at.Load())
		if err != nil {
			continue
		}
		for rows.Next() {
			var revision, created int64
			var deleted bool
			var key []byte
			if rows.Scan(&revision, &created, &deleted, &key) != nil {
				break
			}
			if want := h.at.Load() + 1; revision != want {
				rows.Close()
				return fmt.Errorf("got revision %d, want %d: revisions have no gaps", revision, want)
			}
			h.at.Store(revision)
			name, ok := bytes.CutPrefix(key, []byte(prefix))
			if !ok {
				continue
			}
			kind := "MODIFIED"
			if deleted {
				kind = "DELETED"
			} else if created == revision {
				kind = "ADDED"
			}
			if !note(seenEvent{revision, kind, string(name)}) {
				rows.Close()
				return nil
			}
		}
		rows.Close()
	}
	return ctx.Err()
}

// session opens a session of the database past the proxies.
func (f *fleet) session() *pgx.Conn {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.db.SocketDSN())
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// execute executes a statement past the servers.
func (f *fleet) execute(statement string, args ...any) {
	f.t.Helper()
	conn := f.session()
	defer conn.Close(context.Background())
	if _, err := conn.Exec(f.t.Context(), statement, args...); err != nil {
		f.t.Error(err)
	}
}

// compactAll discards all history, once the load has recorded it.
func (f *fleet) compactAll() {
	f.t.Helper()
	revision, err := f.history.revision(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	polltest.Until(f.t, "the test has read the history", func() bool { return f.history.(*postgresHistory).at.Load() >= revision })
	f.execute("SELECT kelson.compact($1)", revision)
	f.execute("SELECT kelson.trim(1000000)")
}

func postgresFaults() []fault {
	everyone := []int{0, 1, 2}
	return []fault{
		{name: "database-killed", lasts: time.Second, begin: func(f *fleet) (func(), []int) {
			f.db.Kill()
			return f.db.Restart, everyone
		}},
		{name: "connections-break", begin: func(f *fleet) (func(), []int) {
			// In the middle of a message, of a statement or of an answer. To connect takes
			// some kilobytes: the shorter ones break that off.
			rng := randomtest.New(f.t)
			for n := range testsize.Pick(4, 10, 100) {
				before, after := f.db.Breaks(), rng.Int64N([]int64{6_000, 200_000}[n/2%2])
				if n%2 == 0 {
					f.db.BreakAfter(after, -1)
				} else {
					f.db.BreakAfter(-1, after)
				}
				polltest.Until(f.t, "the connections break", func() bool { return f.db.Breaks() > before })
			}
			return func() {}, nil
		}},
		{name: "sequencer-locked", lasts: time.Second, writesOnly: true, begin: func(f *fleet) (func(), []int) {
			conn := f.session()
			tx, err := conn.Begin(f.t.Context())
			if err == nil {
				_, err = tx.Exec(f.t.Context(), "SELECT FROM kelson.sequencer FOR UPDATE")
			}
			if err != nil {
				f.t.Fatal(err)
			}
			return func() {
				if err := tx.Rollback(context.Background()); err != nil {
					f.t.Error(err)
				}
				_ = conn.Close(context.Background())
			}, everyone
		}},
		{name: "server-killed", lasts: time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[0].kill()
			return func() { f.startServer(0); f.awaitReady(0) }, []int{0}
		}},
		{name: "compaction", long: true, lasts: 5 * time.Second, expires: true, begin: func(f *fleet) (func(), []int) {
			// Watchers of server 2 see nothing for a while, and history is compacted
			// meanwhile. They have to go on elsewhere then.
			f.fronts[2].mute(toClient)
			return func() {
				f.compactAll()
				f.fronts[2].reset()
				f.heal()
			}, []int{2}
		}},
		{name: "compaction-while-cut-off", long: true, lasts: 3 * time.Second, expires: true, begin: func(f *fleet) (func(), []int) {
			// Server 2 cannot read what has changed meanwhile.
			f.links[2][0].refuse()
			return func() {
				f.compactAll()
				f.heal()
			}, []int{2}
		}},
		{name: "database-frozen", long: true, lasts: 4 * time.Second, begin: func(f *fleet) (func(), []int) { return f.db.Pause(), everyone }},
		{name: "database-frozen-long", long: true, lasts: 15 * time.Second, begin: func(f *fleet) (func(), []int) { return f.db.Pause(), everyone }},
		{name: "database-killed-often", long: true, begin: func(f *fleet) (func(), []int) {
			for range 10 {
				f.db.Kill()
				f.db.Restart()
				before, err := f.history.revision(f.t.Context())
				if err != nil {
					f.t.Fatal(err)
				}
				polltest.Until(f.t, "writes go on", func() bool {
					now, err := f.history.revision(f.t.Context())
					return err == nil && now > before+50
				})
			}
			return func() {}, everyone
		}},
		{name: "sessions-terminated", long: true, begin: func(f *fleet) (func(), []int) {
			for range 10 {
				f.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kelson'")
				pause(500 * time.Millisecond)
			}
			return func() {}, nil
		}},
		{name: "sequencer-locked-long", long: true, lasts: 14 * time.Second, writesOnly: true, begin: func(f *fleet) (func(), []int) {
			for _, fault := range postgresFaults() {
				if fault.name == "sequencer-locked" {
					return fault.begin(f)
				}
			}
			return nil, nil
		}},
		{name: "server-frozen", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.servers[2].freeze()
			return f.servers[2].thaw, []int{2}
		}},
		{name: "server-cut-off-by-silence", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.links[1][0].mute()
			return f.heal, []int{1}
		}},
		{name: "server-cut-off-by-refusal", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.links[1][0].refuse()
			return f.heal, []int{1}
		}},
		{name: "answers-lost", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			f.links[1][0].mute(toClient)
			return f.heal, []int{1}
		}},
		{name: "database-far", long: true, lasts: 5 * time.Second, begin: func(f *fleet) (func(), []int) {
			for i := range size {
				f.links[i][0].delay(50 * time.Millisecond)
			}
			return f.heal, nil
		}},
	}
}

// TestPostgres disturbs three servers on one PostgreSQL in one way after the other. Clients
// lose nothing, and every server serves again soon after the fault is over.
func TestPostgres(t *testing.T) {
	f := newPostgresFleet(t)
	f.disturbAll(postgresFaults())
}
