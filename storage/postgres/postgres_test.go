package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sql runs statements as the administrator of the database.
func sql(t testing.TB, db *pgtest.DB, text string) {
	t.Helper()
	conn := admin(t, db)
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func admin(t testing.TB, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), db.SocketDSN())
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// number returns the result of a statement.
func number(t testing.TB, db *pgtest.DB, text string) (n int64) {
	t.Helper()
	conn := admin(t, db)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), text).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// logs keeps what a backend logs.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// TestSchema: servers that start together make the tables once, whatever the name of the
// schema; tables of a later version are refused.
func TestSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	for _, schema := range []string{"kelson", "9-Other_one"} {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				b, err := postgres.Open(context.Background(), postgres.Options{DSN: db.DSN(), Schema: schema, AllowNoSync: true})
				if err != nil {
					t.Errorf("schema %s: %v", schema, err)
					return
				}
				defer b.Close()
				w, err := b.Watch(t.Context(), "", 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer w.Close()
				if _, err := b.Create(t.Context(), "/registry/a", []byte("{}"), 0); err != nil && !errors.Is(err, storage.ErrExists) {
					t.Errorf("schema %s: %v", schema, err)
				}
				if s, err := b.Status(t.Context()); err != nil || s.SizeBytes < 8192 {
					t.Errorf("got status %+v and error %v, want a size of some pages", s, err)
				}
			})
		}
		wg.Wait()
	}
	for _, schema := range []string{"a b", `a"`, "a'", "a$$", "ä", strings.Repeat("a", 49)} {
		if _, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), Schema: schema, AllowNoSync: true}); err == nil || !strings.Contains(err.Error(), "a name has") {
			t.Errorf("schema %q: got error %v, want that it is no name", schema, err)
		}
	}
	sql(t, db, "UPDATE kelson.state SET format = 99")
	_, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true})
	if !errors.Is(err, postgres.ErrTooNew) {
		t.Errorf("got error %v, want ErrTooNew", err)
	}
	sql(t, db, "CREATE SCHEMA foreign_one; CREATE TABLE foreign_one.state (a int)")
	if _, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), Schema: "foreign_one", AllowNoSync: true}); err == nil || !strings.Contains(err.Error(), "not one of Kelson's") {
		t.Errorf("got error %v, want that the schema is somebody else's", err)
	}
	// A user without rights to make a schema is told so.
	sql(t, db, "CREATE ROLE weak LOGIN")
	weak := strings.Replace(db.DSN(), "kelson@", "weak@", 1)
	if _, err := postgres.Open(t.Context(), postgres.Options{DSN: weak, Schema: "new", AllowNoSync: true}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("got error %v, want permission denied", err)
	}
}

// TestRefusesDatabasesThatLoseWrites: a database that does not wait for its disk is used
// only if that is allowed.
func TestRefusesDatabasesThatLoseWrites(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t, pgtest.Set("fsync = on"))
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	sql(t, db, "ALTER ROLE kelson SET synchronous_commit = off")
	if _, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN()}); err == nil || !strings.Contains(err.Error(), "synchronous_commit=off") {
		t.Errorf("got error %v, want one that names synchronous_commit=off", err)
	}
	b, err = postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	// Settings of the database that would break the order of revisions are overridden.
	sql(t, db, "ALTER ROLE kelson SET default_transaction_isolation = 'serializable'; ALTER ROLE kelson RESET synchronous_commit")
	b, err = postgres.Open(t.Context(), postgres.Options{DSN: db.DSN()})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.Create(t.Context(), "/registry/a", nil, 0); err != nil {
		t.Error(err)
	}
}

// TestOpenSaysWhatIsWrong: a database that cannot be used is named with the reason, and
// without the password.
func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	for dsn, want := range map[string]string{
		"":           "no connection string",
		"postgres:%": "parse",
		"postgres://u:sesame@127.0.0.1:1/x?connect_timeout=1":                                "connection refused",
		strings.Replace(db.DSN(), "/postgres?", "/missing?", 1):                              "does not exist",
		strings.Replace(db.DSN(), "sslmode=disable", "sslmode=require", 1):                   "TLS",
		strings.Replace(db.DSN(), "sslmode=disable", "sslmode=bogus&password=x", 1):          "sslmode",
		strings.Replace(db.DSN(), "kelson@", "nobody-here:sesame@", 1):                       "does not exist",
		db.DSN() + "&target_session_attrs=standby":                                           "standby",
		strings.Replace(db.DSN(), "sslmode=disable", "sslrootcert=/none&sslmode=require", 1): "none",
	} {
		_, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, AllowNoSync: true, ConnectTimeout: 3 * time.Second})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%q: got error %v, want one with %q and without the password", dsn, err, want)
		}
	}
	// Of several hosts the one that answers is taken.
	several := strings.Replace(db.DSN(), "@", "@127.0.0.1:1,", 1)
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: several, AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// TestPasswordFileIsReadAgain: a password that is changed, and with it the file that has
// it, does not disturb a server, which reads the file for each connection.
func TestPasswordFileIsReadAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t, pgtest.Access("local all guarded scram-sha-256"))
	file := filepath.Join(t.TempDir(), "pass")
	set := func(password string) {
		t.Helper()
		sql(t, db, fmt.Sprintf("ALTER ROLE guarded PASSWORD '%s'", password))
		if err := os.WriteFile(file, []byte("*:*:*:guarded:"+password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sql(t, db, "CREATE ROLE guarded LOGIN; GRANT CREATE ON DATABASE postgres TO guarded")
	set("first")
	dsn := strings.Replace(db.DSN(), "kelson@", "guarded@", 1)
	if _, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, AllowNoSync: true}); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("without a password: got error %v, want one about the password", err)
	}
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn + "&passfile=" + file, AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	w := follow(t, b, 1)
	for i, password := range []string{"second", "third"} {
		set(password)
		db.Cut()
		if _, err := b.Create(t.Context(), fmt.Sprint("/registry/", i), nil, 0); err != nil {
			t.Errorf("write with the password changed: %v", err)
		}
		if _, err := b.List(t.Context(), "", storage.ListOptions{}); err != nil {
			t.Errorf("list with the password changed: %v", err)
		}
	}
	w.reaches(b)
}

// TestLostWritesAreNoticed: a database without a revision that this process has seen, or
// with another write there, is not served, neither to readers nor writers nor watchers.
func TestLostWritesAreNoticed(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	for name, lose := range map[string]string{
		"missing": "DELETE FROM {s}.versions WHERE revision > 5",
		"other":   "UPDATE {s}.versions SET stamp = stamp + 1 WHERE revision > 5",
		// What others have written since hides that revisions are missing.
		"overgrown": `DELETE FROM {s}.versions WHERE revision > 5;
			SELECT {s}.write_group(0, 0, 7, false, ARRAY[1,1,1,1,1,1,1,1]::smallint[],
				ARRAY['a','b','c','d','e','f','g','h']::bytea[], array_fill(0::bigint, ARRAY[8]), array_fill(0::bigint, ARRAY[8]), array_fill(''::bytea, ARRAY[8]))`,
	} {
		for call, try := range map[string]func(b *postgres.Backend) error{
			"revision": func(b *postgres.Backend) error { _, err := b.Revision(t.Context()); return err },
			"write":    func(b *postgres.Backend) error { _, err := b.Create(t.Context(), "/registry/new", nil, 0); return err },
			"watch": func(b *postgres.Backend) error {
				w, err := b.Watch(t.Context(), "", 0)
				for err == nil {
					defer w.Close()
					_, err = w.Next(t.Context())
				}
				return err
			},
			"reconnect": func(b *postgres.Backend) error {
				db.Cut()
				_, err := b.Get(t.Context(), "/registry/k0")
				return err
			},
		} {
			t.Run(name+"/"+call, func(t *testing.T) {
				var log logs
				schema := name + "_" + call
				b, err := postgres.Open(t.Context(), postgres.Options{
					DSN: db.DSN(), Schema: schema, AllowNoSync: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				defer b.Close()
				for i := range 8 {
					if _, err := b.Create(t.Context(), fmt.Sprint("/registry/k", i), nil, 0); err != nil {
						t.Fatal(err)
					}
				}
				sql(t, db, strings.ReplaceAll(lose, "{s}", schema))
				if err := try(b); !errors.Is(err, storage.ErrUnavailable) || !strings.Contains(err.Error(), "lost acknowledged writes") {
					t.Errorf("got error %v, want ErrUnavailable and that writes are lost", err)
				}
				if _, err := b.List(t.Context(), "", storage.ListOptions{}); !errors.Is(err, storage.ErrUnavailable) {
					t.Errorf("list afterwards: got error %v, want ErrUnavailable", err)
				}
				if !log.contains("level=ERROR") {
					t.Error("got no error in the log, want one")
				}
				if n := number(t, db, fmt.Sprintf("SELECT count(*) FROM %s.versions WHERE key = '/registry/new'", schema)); n != 0 {
					t.Error("a write was applied to the database that had lost others")
				}
				// A server that starts takes the database as it is.
				again := openSchema(t, db, schema)
				if _, err := again.Create(t.Context(), "/registry/again", nil, 0); err != nil && name != "other" {
					t.Errorf("after a restart: got error %v, want none", err)
				}
			})
		}
	}
}

// TestHostileKeys: what LIKE, text encodings and index sizes would trip over. A key that
// the database cannot index harms no other write of its transaction.
func TestHostileKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	rng := randomtest.New(t)
	random := func(n int) string {
		key := make([]byte, n)
		for i := range key {
			key[i] = byte(1 + rng.IntN(255))
		}
		return string(key)
	}
	keys := []string{"%", "_", "a%b", `\`, `\x41`, "'", `"`, "$1", "{schema}", "\xff\xfe", "\x80", "é\xcc\x81", "NULL", strings.Repeat("\xff", 4096), random(500), random(2500)}
	long := []string{random(3500), random(4096)}
	values := map[string][]byte{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, key := range append(slices.Clone(keys), long...) {
		wg.Go(func() {
			value := make([]byte, 1000)
			_, err := b.Create(t.Context(), key, value, 0)
			if tooLong := len(key) > 2600 && strings.Count(key, key[:1]) < len(key); tooLong != (err != nil) || tooLong && !errors.Is(err, storage.ErrTooLarge) {
				t.Errorf("key of %d bytes %.20q: got error %v", len(key), key, err)
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				values[key] = value
			}
		})
	}
	wg.Wait()
	for key := range values {
		page, err := b.List(t.Context(), key, storage.ListOptions{})
		if err != nil || len(page.Items) == 0 || page.Items[0].Key != key {
			t.Errorf("list of %.20q: got %d keys and error %v, want that key first", key, len(page.Items), err)
		}
	}
	if page, err := b.List(t.Context(), "", storage.ListOptions{}); err != nil || len(page.Items) != len(keys) {
		t.Errorf("got %d keys and error %v, want %d", len(page.Items), err, len(keys))
	}
	if _, err := b.List(t.Context(), "a_", storage.ListOptions{}); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"", "\x00", "a\x00"} {
		if _, err := b.Create(t.Context(), key, nil, 0); !errors.Is(err, storage.ErrInvalidKey) {
			t.Errorf("key %q: got error %v, want ErrInvalidKey", key, err)
		}
		if _, err := b.List(t.Context(), key, storage.ListOptions{}); err != nil {
			t.Errorf("list of prefix %q: %v", key, err)
		}
	}
}

// TestLargeValues: values of 1.5 MB, many at a time, on two servers, with conflicts and
// deletes that return them.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	servers := []*postgres.Backend{openSchema(t, db, "kelson"), openSchema(t, db, "kelson")}
	value := make([]byte, 1536<<10)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	w, err := servers[0].Watch(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			b, key := servers[i%2], fmt.Sprint("/registry/", i)
			kv, err := b.Create(t.Context(), key, value, 0)
			if err != nil {
				t.Error(err)
				return
			}
			if there, err := b.Create(t.Context(), key, nil, 0); !errors.Is(err, storage.ErrExists) || !bytes.Equal(there.Value, value) {
				t.Errorf("got %d bytes and error %v, want the value in the way", len(there.Value), err)
			}
			if there, _, err := b.Delete(t.Context(), key, kv.ModRevision); err != nil || !bytes.Equal(there.Value, value) {
				t.Errorf("got %d bytes and error %v, want the value deleted", len(there.Value), err)
			}
		})
	}
	wg.Wait()
	for seen := 0; seen < 24; {
		batch, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range batch.Events {
			if ev.Op == storage.Created && !bytes.Equal(ev.KV.Value, value) || ev.Op == storage.Deleted && !bytes.Equal(ev.Prev.Value, value) {
				t.Errorf("got an event %v of %s without its value", ev.Op, ev.KV.Key)
			}
		}
		seen += len(batch.Events)
	}
}

// TestObjectsView: people read objects as JSON.
func TestObjectsView(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	for key, value := range map[string]string{"/registry/a": `{"kind":"A","n":1}`, "/registry/\xff": "k8s\x00binary", "/registry/b": "{broken", "/registry/c": ""} {
		if _, err := b.Create(t.Context(), key, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	conn := admin(t, db)
	defer conn.Close(context.Background())
	var kind string
	if err := conn.QueryRow(t.Context(), "SELECT json->>'kind' FROM kelson.objects WHERE key = '/registry/a'").Scan(&kind); err != nil || kind != "A" {
		t.Errorf("got kind %q and error %v, want A", kind, err)
	}
	if n := number(t, db, "SELECT count(*) FROM kelson.objects WHERE json IS NULL"); n != 3 {
		t.Errorf("got %d objects that are not JSON, want 3", n)
	}
}

// TestDumpAndRestore: a dump of the schema, restored elsewhere while writes went on, is
// the state of one revision, and can be written to.
func TestDumpAndRestore(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b := openSchema(t, db, "kelson")
	load := count(t, 8, func() []*postgres.Backend { return []*postgres.Backend{b} })
	polltest.Until(t, "something is written", func() bool {
		revision, err := b.Revision(t.Context())
		return err == nil && revision > 200
	})
	file := filepath.Join(db.Dir(), "dump.sql")
	db.Run("pg_dump", "-n", "kelson", "-f", file, "postgres")
	load.finish(b)
	db.Run("createdb", "other")
	db.Run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", "other", "-f", file)
	restored, err := postgres.Open(t.Context(), postgres.Options{DSN: strings.Replace(db.DSN(), "/postgres?", "/other?", 1), AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	page, err := restored.List(t.Context(), "", storage.ListOptions{})
	if err != nil || len(page.Items) != 8 {
		t.Fatalf("got %d keys and error %v, want 8", len(page.Items), err)
	}
	then, err := b.List(t.Context(), "", storage.ListOptions{Revision: page.Revision})
	if err != nil || !slices.EqualFunc(page.Items, then.Items, func(a, b storage.KeyValue) bool {
		return a.Key == b.Key && a.ModRevision == b.ModRevision && string(a.Value) == string(b.Value)
	}) {
		t.Errorf("got another state in the dump than that of revision %d, error %v", page.Revision, err)
	}
	w := follow(t, restored, 1)
	if _, err := restored.Create(t.Context(), "/registry/new", nil, 0); err != nil {
		t.Error(err)
	}
	w.reaches(restored)
}

// TestCompactionIsShared: of several servers that compact, one does so an interval; it
// goes on after errors; and versions out of reach are removed.
func TestCompactionIsShared(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	var log logs
	var servers []*postgres.Backend
	for range 3 {
		b, err := postgres.Open(t.Context(), postgres.Options{
			DSN: db.DSN(), AllowNoSync: true, CompactInterval: 300 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		servers = append(servers, b)
	}
	write := func() {
		t.Helper()
		for i := range 30 {
			b := servers[i%3]
			var kv storage.KeyValue
			err := storage.ErrUncertain
			for errors.Is(err, storage.ErrUncertain) { // the first after connections were cut
				kv, err = b.Create(t.Context(), fmt.Sprint("/registry/", i), nil, 0)
			}
			if errors.Is(err, storage.ErrExists) {
				kv, err = b.Update(t.Context(), kv.Key, nil, kv.ModRevision, 0)
			}
			if err == nil && i%3 == 0 {
				_, _, err = b.Delete(t.Context(), kv.Key, kv.ModRevision)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	trimmed := func() bool {
		return number(t, db, "SELECT count(*) FROM kelson.versions") <= 21 && number(t, db, "SELECT count(*) FROM kelson.keys") <= 21
	}
	write()
	write()
	polltest.Until(t, "old versions are removed", trimmed)
	// Errors do not end it: for a while the functions fail, and connections break.
	sql(t, db, "ALTER FUNCTION kelson.trim RENAME TO trim_away; ALTER FUNCTION kelson.compact_periodically RENAME TO compact_away")
	db.Cut()
	write()
	polltest.Until(t, "compaction fails", func() bool { return log.contains("compaction failed") })
	sql(t, db, "ALTER FUNCTION kelson.trim_away RENAME TO trim; ALTER FUNCTION kelson.compact_away RENAME TO compact_periodically")
	oldest := number(t, db, "SELECT compacted FROM kelson.state")
	polltest.Until(t, "compaction goes on", func() bool { return number(t, db, "SELECT compacted FROM kelson.state") > oldest })
	if page, err := servers[0].List(t.Context(), "", storage.ListOptions{}); err != nil || len(page.Items) != 20 {
		t.Errorf("got %d keys and error %v, want 20", len(page.Items), err)
	}
}

// TestSlowDatabase: while the database hangs, reads and writes end when their contexts
// do, no more wait than are allowed to, and all goes on when it answers again.
func TestSlowDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.Start(t)
	b, err := postgres.Open(t.Context(), postgres.Options{
		DSN: db.DSN(), AllowNoSync: true, MaxConns: 2, MaxWaiting: 8, WaitTimeout: 500 * time.Millisecond, ConnectTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	kv, err := b.Create(t.Context(), "/registry/a", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	resume := db.Pause()
	defer resume()
	began := time.Now()
	var mu sync.Mutex
	var refused int
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			var err error
			switch i % 4 {
			case 0:
				_, err = b.Get(ctx, "/registry/a")
			case 1:
				_, err = b.List(ctx, "", storage.ListOptions{})
			case 2:
				_, err = b.Revision(ctx)
			case 3:
				_, err = b.Update(ctx, "/registry/a", nil, kv.ModRevision+int64(i), 0)
				if err == nil {
					t.Error("got a write while the database hangs")
				}
			}
			if errors.Is(err, storage.ErrUnavailable) {
				mu.Lock()
				refused++
				mu.Unlock()
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got error %v, want ErrUnavailable or the deadline", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("calls took %v, want about 2s", took)
	}
	if refused == 0 {
		t.Error("got no read refused for the length of the queue, want some")
	}
	// Just then somebody wants to know about the pool.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	status, err := b.Status(ctx)
	cancel()
	if c := status.Connections; err == nil || c == nil || c.Max != 2 || c.Refused == 0 {
		t.Errorf("while the database hangs: got %+v of the pool and error %v, want 2 connections, reads that were refused, and an error", c, err)
	}
	resume()
	polltest.Until(t, "the database answers again", func() bool {
		_, err := b.Get(t.Context(), "/registry/a")
		return err == nil
	})
	polltest.Until(t, "writes go on", func() bool {
		now, err := b.Get(t.Context(), "/registry/a")
		if err == nil {
			_, err = b.Update(t.Context(), "/registry/a", nil, now.ModRevision, 0)
		}
		return err == nil
	})
}
