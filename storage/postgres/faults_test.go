package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/jackc/pgx/v5"
)

// counters is a load whose outcome can be checked: every writer counts up in a key of
// its own, with guards, on whichever server it likes. A write that is uncertain is looked
// up; every other answer must be true.
type counters struct {
	tb      testing.TB
	servers func() []*postgres.Backend
	stop    atomic.Bool
	wg      sync.WaitGroup

	mu           sync.Mutex
	acknowledged map[string]storage.KeyValue // the last write of each key that was acknowledged
	writes       int
	uncertain    int
	unavailable  int
}

func count(tb testing.TB, writers int, servers func() []*postgres.Backend) *counters {
	c := &counters{tb: tb, servers: servers, acknowledged: map[string]storage.KeyValue{}}
	for i := range writers {
		c.wg.Go(func() { c.run(i) })
	}
	return c
}

func (c *counters) run(writer int) {
	key := fmt.Sprintf("/registry/counters/%03d", writer)
	ctx := context.Background()
	var last storage.KeyValue // as this writer knows it
	for n := 0; !c.stop.Load(); n++ {
		servers := c.servers()
		b := servers[(writer+n)%len(servers)]
		value := fmt.Appendf(nil, "%d", n)
		var kv storage.KeyValue
		var err error
		if last.ModRevision == 0 {
			kv, err = b.Create(ctx, key, value, 0)
		} else {
			kv, err = b.Update(ctx, key, value, last.ModRevision, 0)
		}
		c.mu.Lock()
		switch {
		case err == nil:
			c.writes++
			if kv.ModRevision <= last.ModRevision {
				c.tb.Errorf("%s: got revision %d after %d, want a higher one", key, kv.ModRevision, last.ModRevision)
			}
			c.acknowledged[key], last = kv, kv
		case errors.Is(err, storage.ErrUncertain):
			c.uncertain++
		case errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrClosed):
			c.unavailable++
		default:
			c.tb.Errorf("%s at %d: got error %v, want none, ErrUncertain or ErrUnavailable", key, last.ModRevision, err)
			c.stop.Store(true)
		}
		c.mu.Unlock()
		if err == nil {
			continue
		}
		// Look up what became of it. A definite error means that the key is unchanged.
		definite := !errors.Is(err, storage.ErrUncertain)
		for !c.stop.Load() {
			servers := c.servers()
			now, getErr := servers[writer%len(servers)].Get(ctx, key)
			if errors.Is(getErr, storage.ErrNotFound) {
				getErr = nil
			}
			if getErr != nil {
				continue
			}
			if definite && now.ModRevision != last.ModRevision {
				c.tb.Errorf("%s: got revision %d after a write that failed with %q, want %d still", key, now.ModRevision, err, last.ModRevision)
			}
			if !definite && now.ModRevision != last.ModRevision && string(now.Value) != string(value) {
				c.tb.Errorf("%s: got value %s after writing %s uncertainly over %s", key, now.Value, value, last.Value)
			}
			last = now
			if now.ModRevision != 0 {
				c.mu.Lock()
				c.acknowledged[key] = now
				c.mu.Unlock()
			}
			break
		}
	}
}

// finish ends the load and compares what was acknowledged with what is there.
func (c *counters) finish(b *postgres.Backend) {
	c.tb.Helper()
	c.stop.Store(true)
	c.wg.Wait()
	for key, want := range c.acknowledged {
		got, err := b.Get(context.Background(), key)
		if err != nil || got.ModRevision < want.ModRevision {
			c.tb.Errorf("%s: got revision %d and error %v, want %d, which was acknowledged", key, got.ModRevision, err, want.ModRevision)
		}
	}
	c.tb.Logf("%d writes, %d uncertain, %d refused", c.writes, c.uncertain, c.unavailable)
}

// follower reads a watch of everything and checks that no revision is missing or comes
// twice: revisions are consecutive, so the stream has each.
type follower struct {
	tb     testing.TB
	w      storage.Watcher
	last   atomic.Int64
	cancel context.CancelFunc
	done   chan struct{}
}

func follow(tb testing.TB, b *postgres.Backend, after int64) *follower {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := b.Watch(ctx, "", after)
	if err != nil {
		cancel()
		tb.Fatal(err)
	}
	f := &follower{tb: tb, w: w, cancel: cancel, done: make(chan struct{})}
	f.last.Store(after)
	go f.run(ctx)
	tb.Cleanup(f.stop)
	return f
}

func (f *follower) run(ctx context.Context) {
	defer close(f.done)
	for {
		batch, err := f.w.Next(ctx)
		if err != nil {
			if !errors.Is(err, context.Canceled) && !errors.Is(err, storage.ErrClosed) {
				f.tb.Errorf("watch: %v", err)
			}
			return
		}
		for _, ev := range batch.Events {
			if want := f.last.Load() + 1; ev.KV.ModRevision != want {
				f.tb.Errorf("got event of revision %d, want %d", ev.KV.ModRevision, want)
			}
			f.last.Store(ev.KV.ModRevision)
		}
	}
}

func (f *follower) stop() {
	f.cancel()
	<-f.done
	f.w.Close()
}

// reaches waits until the watch has delivered all.
func (f *follower) reaches(b *postgres.Backend) {
	f.tb.Helper()
	revision, err := b.Revision(context.Background())
	if err != nil {
		f.tb.Fatal(err)
	}
	polltest.Until(f.tb, fmt.Sprintf("the watch reaches %d", revision), func() bool { return f.last.Load() >= revision })
}

// TestServersShareRevisions: three servers on one database, with transactions beside
// that are slow or rolled back: revisions have no gaps, and every watch has each event
// once.
func TestServersShareRevisions(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	var servers []*postgres.Backend
	var watches []*follower
	for range 3 {
		b := openSchema(t, db, "kelson")
		servers = append(servers, b)
		watches = append(watches, follow(t, b, 1))
	}
	load := count(t, 24, func() []*postgres.Backend { return servers })
	conn := admin(t, db)
	defer conn.Close(context.Background())
	for i := range testsize.Pick(5, 10, 200) {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// It gives revisions that come to nothing, and holds up the others meanwhile.
		_, err = tx.Exec(t.Context(), `SELECT kelson.write_group(0, 0, 1, false, ARRAY[1]::smallint[], ARRAY[$1]::bytea[], ARRAY[0]::bigint[], ARRAY[0]::bigint[], ARRAY['']::bytea[])`, fmt.Appendf(nil, "/rolled/%d", i))
		if err == nil {
			_, err = tx.Exec(t.Context(), "SELECT pg_sleep(0.03)")
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	load.finish(servers[0])
	for _, w := range watches {
		w.reaches(servers[0])
	}
	if load.uncertain > 0 || load.unavailable > 0 {
		t.Errorf("got %d uncertain and %d refused writes, want none", load.uncertain, load.unavailable)
	}
	if missing := number(t, db, "SELECT max(revision) - 1 - count(*) FROM kelson.versions"); missing != 0 {
		t.Errorf("got %d revisions missing, want none", missing)
	}
	if n, _, err := servers[0].Count(t.Context(), "/rolled/"); err != nil || n != 0 {
		t.Errorf("got %d keys of transactions that were rolled back and error %v, want none", n, err)
	}
}

// TestConnectionsCutAnywhere: connections break after any number of bytes, in either
// direction. What was acknowledged is there, what was refused is not, and watches go on
// without a gap.
func TestConnectionsCutAnywhere(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	w := follow(t, b, 1)
	rng := randomtest.New(t)
	load := count(t, 8, func() []*postgres.Backend { return []*postgres.Backend{b} })
	for i := range testsize.Pick(10, 25, 1500) {
		before := db.Breaks()
		// To connect takes some kilobytes: the shorter ones break that off.
		after := rng.Int64N([]int64{6_000, 60_000}[rng.IntN(2)])
		if i%2 == 0 {
			db.BreakAfter(after, -1)
		} else {
			db.BreakAfter(-1, after)
		}
		polltest.Until(t, "the connections break", func() bool { return db.Breaks() > before })
	}
	polltest.Until(t, "writes go on", func() bool { return w.last.Load() > 100 })
	load.finish(b)
	w.reaches(b)
	if load.uncertain > 0 {
		t.Errorf("got %d uncertain writes, want none: the database could be asked again each time", load.uncertain)
	}
}

// TestScanGoesOnAfterACut: a scan whose connection breaks shows each key once, in order and
// as of one revision.
func TestScanGoesOnAfterACut(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	const keys = 500
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			if _, err := b.Create(t.Context(), fmt.Sprintf("/registry/%04d", i), make([]byte, 2000), 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, after := range []int64{1000, 100_000, 300_000, 700_000} {
		before, n := db.Breaks(), 0
		db.BreakAfter(-1, after)
		page, err := b.Scan(t.Context(), "/registry/", storage.ListOptions{}, func(kv *storage.KeyValue) error {
			if want := fmt.Sprintf("/registry/%04d", n); kv.Key != want || len(kv.Value) != 2000 {
				t.Errorf("got %q with %d bytes, want %q with 2000", kv.Key, len(kv.Value), want)
			}
			// A write meanwhile changes nothing in this scan.
			if n++; n == 5 {
				if _, err := b.Create(t.Context(), fmt.Sprintf("/registry/0400-%d", after), nil, 0); err != nil {
					t.Log(err)
				}
			}
			return nil
		})
		if err != nil || n != keys || page.More || db.Breaks() == before {
			t.Errorf("cut after %d bytes: got %d keys, more %t and error %v after %d cuts, want %d after one", after, n, page.More, err, db.Breaks()-before, keys)
		}
		kv, err := b.Get(t.Context(), fmt.Sprintf("/registry/0400-%d", after))
		if err == nil {
			_, _, err = b.Delete(t.Context(), kv.Key, kv.ModRevision)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestUncertainWhileTheDatabaseIsAway: the connection breaks during a write, and the
// database does not answer for a while. The write is uncertain, and what a reader finds
// afterwards stays so: the session that broke does not execute it later.
func TestUncertainWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true, ConnectTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	kv, err := b.Create(t.Context(), "/registry/a", []byte("before"), 0)
	if err != nil {
		t.Fatal(err)
	}
	before := db.Breaks()
	resume := db.Pause()
	defer resume()
	db.BreakAfter(100, -1) // in the middle of the statement, or of the ping before it
	_, err = b.Update(t.Context(), "/registry/a", []byte("after"), kv.ModRevision, 0)
	if !errors.Is(err, storage.ErrUncertain) && !errors.Is(err, storage.ErrUnavailable) || db.Breaks() == before {
		t.Errorf("got error %v after %d breaks, want ErrUncertain or ErrUnavailable after one", err, db.Breaks()-before)
	}
	resume()
	var found storage.KeyValue
	polltest.Until(t, "a write succeeds", func() bool {
		if _, err := b.Create(t.Context(), "/registry/b", nil, 0); err != nil && !errors.Is(err, storage.ErrExists) {
			return false
		}
		found, err = b.Get(t.Context(), "/registry/a")
		return err == nil
	})
	if _, err := b.Update(t.Context(), "/registry/a", []byte("last"), found.ModRevision, 0); err != nil {
		t.Errorf("got error %v with the guard that was read, want none", err)
	}
}

// TestDatabaseKilled: the database is killed and started again under load.
func TestDatabaseKilled(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	servers := []*postgres.Backend{openSchema(t, db, "kelson"), openSchema(t, db, "kelson")}
	watches := []*follower{follow(t, servers[0], 1), follow(t, servers[1], 1)}
	load := count(t, 16, func() []*postgres.Backend { return servers })
	for range testsize.Pick(1, 2, 60) {
		revision := watches[0].last.Load()
		polltest.Until(t, "writes go on", func() bool { return watches[0].last.Load() > revision+200 })
		db.Kill()
		db.Restart()
	}
	revision := watches[0].last.Load()
	polltest.Until(t, "writes go on", func() bool { return watches[0].last.Load() > revision+200 })
	load.finish(servers[0])
	for _, w := range watches {
		w.reaches(servers[0])
	}
}

// TestWatchesArePromptAcrossServers: an event reaches a watch on another server long
// before the poll that is the net below the notifications, also after the connection that
// listens was lost.
func TestWatchesArePromptAcrossServers(t *testing.T) {
	t.Parallel()
	var opts []pgtest.Option
	if testsize.Long() {
		opts = append(opts, pgtest.Sync()) // the figure in docs/performance.md
	}
	db := pgtest.Start(t, opts...)
	writer, reader := openSchema(t, db, "kelson"), openSchema(t, db, "kelson")
	w, err := reader.Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	median := func() time.Duration {
		t.Helper()
		var took []time.Duration
		for i := range 51 {
			began := time.Now()
			if _, err := writer.Create(t.Context(), fmt.Sprintf("/registry/%d-%d", began.UnixNano(), i), nil, 0); err != nil {
				t.Fatal(err)
			}
			for got := false; !got; {
				batch, err := w.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got = len(batch.Events) > 0
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	if m := median(); m > 400*time.Millisecond {
		t.Errorf("got a median of %v from the call of a write to its event, want far less than a second", m)
	} else {
		t.Logf("median from the call of a write to its event on another server: %v", m)
	}
	sql(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
	polltest.Until(t, "both listen again", func() bool {
		return number(t, db, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'") == 2
	})
	if m := median(); m > 400*time.Millisecond {
		t.Errorf("after the listener was lost: got a median of %v, want far less than a second", m)
	}
}

// TestExpiryIsShared: several servers delete expired keys, each key once.
func TestExpiryIsShared(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	servers := []*postgres.Backend{openSchema(t, db, "kelson"), openSchema(t, db, "kelson"), openSchema(t, db, "kelson")}
	w := follow(t, servers[0], 1)
	const keys = 300
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			if _, err := servers[i%3].Create(t.Context(), fmt.Sprint("/registry/", i), nil, 300*time.Millisecond); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	polltest.Until(t, "all are deleted", func() bool { return w.last.Load() == 1+2*keys })
	if left := number(t, db, "SELECT count(*) FROM kelson.expiries"); left != 0 {
		t.Errorf("got %d keys that still expire, want none", left)
	}
	w.reaches(servers[1])
	if last := w.last.Load(); last != 1+2*keys {
		t.Errorf("got revision %d, want %d: a create and a delete of each key", last, 1+2*keys)
	}
}

// TestStrangersCannotStopWrites: a role that may only connect to the database takes and waits for
// every advisory lock that it sees there. Writes go on after a connection broke, and another
// server can make its tables.
func TestStrangersCannotStopWrites(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	if _, err := b.Create(t.Context(), "/registry/a", nil, 0); err != nil {
		t.Fatal(err)
	}
	sql(t, db, "CREATE ROLE stranger")
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	take := func(key int64) {
		conn := admin(t, db)
		waiting.Go(func() {
			defer conn.Close(context.Background())
			if _, err := conn.Exec(ctx, "SET SESSION AUTHORIZATION stranger"); err == nil {
				_, _ = conn.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_lock(%d)", key))
			}
			<-ctx.Done()
		})
	}
	conn := admin(t, db)
	defer conn.Close(context.Background())
	rows, _ := conn.Query(t.Context(), "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks WHERE locktype = 'advisory'")
	keys, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	hash := fnv.New64a()
	hash.Write([]byte("kelson schema other"))
	for _, key := range append(keys, int64(hash.Sum64())) {
		take(key)
	}
	polltest.Until(t, "the stranger has its locks or waits for them", func() bool {
		return number(t, db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") >= int64(2*len(keys)+1)
	})
	sql(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kelson'")
	within, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	for {
		_, err := b.Create(within, "/registry/b", nil, 0)
		if err == nil || errors.Is(err, storage.ErrExists) {
			break
		}
		if within.Err() != nil {
			t.Fatalf("a write after a connection broke: got %v, want it stored", err)
		}
	}
	other, err := postgres.Open(within, postgres.Options{DSN: db.DSN(), Schema: "other", AllowNoSync: true})
	if err != nil {
		t.Fatalf("another server: got %v, want it to make its tables", err)
	}
	_ = other.Close()
}
