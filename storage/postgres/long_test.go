package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/jackc/pgx/v5"
)

func long(t *testing.T) {
	t.Helper()
	if !testsize.Long() {
		t.Skip("set KELSON_LONG=1 to run the long tests")
	}
}

// TestFailoverToSynchronousStandby: the database waits for its standby, so when it dies
// under load and the standby takes over, nothing that was acknowledged is lost.
func TestFailoverToSynchronousStandby(t *testing.T) {
	long(t)
	db := pgtest.Start(t)
	servers := []*postgres.Backend{openSchema(t, db, "kelson"), openSchema(t, db, "kelson")}
	watches := []*follower{follow(t, servers[0], 1), follow(t, servers[1], 1)}
	standby := db.Standby()
	sql(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	sql(t, db, "SELECT pg_reload_conf()")
	polltest.Until(t, "the standby is synchronous", func() bool {
		return number(t, db, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	load := count(t, 16, func() []*postgres.Backend { return servers })
	polltest.Until(t, "writes are acknowledged", func() bool { return watches[0].last.Load() > 500 })
	db.Kill()
	standby.Promote()
	sql(t, standby, "ALTER SYSTEM SET synchronous_standby_names = ''")
	sql(t, standby, "SELECT pg_reload_conf()")
	db.Divert(standby)
	revision := watches[0].last.Load()
	polltest.Until(t, "writes go on", func() bool { return watches[0].last.Load() > revision+500 })
	load.finish(servers[0])
	for _, w := range watches {
		w.reaches(servers[0])
	}
}

// TestFailoverToLaggingStandby: a standby that lacks acknowledged writes takes over. That
// is noticed and said, and not served.
func TestFailoverToLaggingStandby(t *testing.T) {
	long(t)
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	standby := db.Standby()
	kv, err := b.Create(t.Context(), "/registry/a", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the standby has the first write", func() bool {
		return number(t, standby, "SELECT coalesce(max(revision), 0) FROM kelson.versions") == kv.ModRevision
	})
	standby.Kill()
	if _, err := b.Update(t.Context(), "/registry/a", nil, kv.ModRevision, 0); err != nil {
		t.Fatal(err)
	}
	db.Kill()
	standby.Restart()
	standby.Promote()
	db.Divert(standby)
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := b.Get(t.Context(), "/registry/a"); return err },
		"list":   func() error { _, err := b.List(t.Context(), "", storage.ListOptions{}); return err },
		"create": func() error { _, err := b.Create(t.Context(), "/registry/b", nil, 0); return err },
	} {
		if err := call(); !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("%s: got error %v, want ErrUnavailable", name, err)
		}
	}
	if n := number(t, standby, "SELECT count(*) FROM kelson.keys"); n != 1 {
		t.Errorf("got %d keys in the standby, want 1: nothing was written to it", n)
	}
}

// TestStandbyAway: while a synchronous standby is away, the database commits nothing. No
// write is acknowledged meanwhile, also not one whose connection was given up; when the
// standby is back, writes go on.
func TestStandbyAway(t *testing.T) {
	long(t)
	db := pgtest.Start(t)
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true, CommitTimeout: time.Second, ConnectTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	standby := db.Standby()
	sql(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	sql(t, db, "SELECT pg_reload_conf()")
	polltest.Until(t, "the standby is synchronous", func() bool {
		return number(t, db, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	if _, err := b.Create(t.Context(), "/registry/before", nil, 0); err != nil {
		t.Fatal(err)
	}
	standby.Kill()
	for i := range 3 {
		_, err := b.Create(t.Context(), fmt.Sprint("/registry/", i), nil, 0)
		if !errors.Is(err, storage.ErrUncertain) && !errors.Is(err, storage.ErrUnavailable) {
			t.Errorf("write %d without the standby: got error %v, want ErrUncertain or ErrUnavailable", i, err)
		}
	}
	page, err := b.List(t.Context(), "", storage.ListOptions{})
	if err != nil || len(page.Items) != 1 {
		t.Errorf("got %d keys and error %v without the standby, want 1: what is not replicated is not read", len(page.Items), err)
	}
	standby.Restart()
	polltest.Until(t, "writes go on", func() bool {
		_, err := b.Create(t.Context(), "/registry/after", nil, 0)
		return err == nil || errors.Is(err, storage.ErrExists)
	})
}

// TestWaitForStandbyCancelled: an administrator cancels the wait of a commit for the
// standby. The database says that it has committed, with a warning, and the write is
// uncertain: a failover would lose it.
func TestWaitForStandbyCancelled(t *testing.T) {
	long(t)
	db := pgtest.Start(t, pgtest.Set("synchronous_standby_names = ''"))
	b := openSchema(t, db, "kelson")
	sql(t, db, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	sql(t, db, "SELECT pg_reload_conf()")
	result := make(chan error, 1)
	go func() {
		_, err := b.Create(context.Background(), "/registry/a", nil, 0)
		result <- err
	}()
	polltest.Until(t, "the commit waits", func() bool {
		return number(t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1
	})
	sql(t, db, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	if err := <-result; !errors.Is(err, storage.ErrUncertain) {
		t.Errorf("got error %v, want ErrUncertain", err)
	}
}

// churn updates keys with so many writers until each has done its part, and returns how
// long the writes took, in order.
func churn(t *testing.T, b *postgres.Backend, writers, keys, updates int, value []byte) []time.Duration {
	t.Helper()
	took := make([][]time.Duration, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			held := make([]storage.KeyValue, max(1, keys/writers))
			for n := range updates / writers {
				kv := &held[n%len(held)]
				began := time.Now()
				var err error
				if kv.ModRevision == 0 {
					*kv, err = b.Create(context.Background(), fmt.Sprintf("/registry/churn/%d/%d", w, n), value, 0)
					if errors.Is(err, storage.ErrExists) {
						err = nil
					}
				} else {
					*kv, err = b.Update(context.Background(), kv.Key, value, kv.ModRevision, 0)
				}
				if err != nil {
					t.Error(err)
					return
				}
				took[w] = append(took[w], time.Since(began))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all
}

// TestLongReaderHoldsBackVacuum: a transaction that stays open keeps dead rows alive.
// Reads and writes of keys that change often stay as fast as they were.
func TestLongReaderHoldsBackVacuum(t *testing.T) {
	long(t)
	db := pgtest.Start(t)
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true, CompactInterval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	value := make([]byte, 200)
	churn(t, b, 16, 16, 5_000, value)
	reader := admin(t, db)
	defer reader.Close(context.Background())
	tx, err := reader.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "SELECT count(*) FROM kelson.state"); err != nil {
		t.Fatal(err)
	}
	measure := func() (write, list time.Duration) {
		took := churn(t, b, 16, 16, 10_000, value)
		var lists []time.Duration
		for range 50 {
			began := time.Now()
			if _, err := b.List(t.Context(), "/registry/churn/", storage.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			lists = append(lists, time.Since(began))
		}
		slices.Sort(lists)
		return took[len(took)/2], lists[len(lists)/2]
	}
	writeBefore, listBefore := measure()
	churn(t, b, 16, 16, 200_000, value)
	writeAfter, listAfter := measure()
	dead := number(t, db, "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE schemaname = 'kelson'")
	t.Logf("medians before and after 200,000 updates of 16 keys with %d dead rows: write %v and %v, list of 16 keys %v and %v", dead, writeBefore, writeAfter, listBefore, listAfter)
	if writeAfter > 3*writeBefore+5*time.Millisecond || listAfter > 5*listBefore+5*time.Millisecond {
		t.Error("reads or writes have become slow while vacuum was held back")
	}
}

// TestSpaceIsGivenBack: after a million updates of 10,000 keys the tables are not much
// larger than what they hold and the history of one interval.
func TestSpaceIsGivenBack(t *testing.T) {
	long(t)
	db := pgtest.Start(t, pgtest.Set("autovacuum_naptime = 5s"))
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true, CompactInterval: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	const keys, updates, size = 10_000, 1_000_000, 500
	value := make([]byte, size)
	sizeNow := func() int64 {
		s, err := b.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.SizeBytes
	}
	churn(t, b, 64, keys, keys, value)
	first := sizeNow()
	began := time.Now()
	for part := range 10 {
		churn(t, b, 64, keys, updates/10, value)
		t.Logf("after %d updates: %d MB", (part+1)*updates/10, sizeNow()>>20)
	}
	took := time.Since(began)
	polltest.Until(t, "old versions are removed", func() bool {
		return number(t, db, "SELECT s.compacted - 1 - t.revision FROM kelson.state s, kelson.trimmed t") < 1000
	})
	t.Logf("%d keys of %d bytes: %d MB; after %d updates in %v: %d MB; %d rows", keys, size, first>>20, updates, took, sizeNow()>>20, number(t, db, "SELECT count(*) FROM kelson.versions"))
	if last := sizeNow(); last > first+1<<30 {
		t.Errorf("got %d MB after a million updates, want less than a gigabyte more than %d MB", last>>20, first>>20)
	}
}
