package postgres_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/apikeel/kelson/storage/storagetest"
)

// TestSuite has the suite of all backends judge this one.
func TestSuite(t *testing.T) { storagetest.Run(t, subject(pgtest.Start(t))) }

func TestLong(t *testing.T) {
	if !testsize.Long() {
		t.Skip("set KELSON_LONG=1 to run the long suite")
	}
	storagetest.RunLong(t, subject(pgtest.Start(t)))
}

// subject opens stores in schemas of their own.
func subject(db *pgtest.DB) storagetest.Subject {
	var stores atomic.Int64
	schemas := map[storage.Backend]string{}
	open := func(t testing.TB, schema string) storage.Backend {
		b := openSchema(t, db, schema)
		schemas[b] = schema
		return b
	}
	return storagetest.Subject{
		Open: func(t testing.TB) storage.Backend { return open(t, fmt.Sprint("s", stores.Add(1))) },
		// Both ends go down, the database without notice.
		Reopen: func(t testing.TB, b storage.Backend) storage.Backend {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			db.Kill()
			db.Restart()
			return open(t, schemas[b])
		},
	}
}

func openSchema(t testing.TB, db *pgtest.DB, schema string) *postgres.Backend {
	t.Helper()
	b, err := postgres.Open(t.Context(), postgres.Options{DSN: db.DSN(), Schema: schema, AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}
