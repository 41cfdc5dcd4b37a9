package storage_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"github.com/apikeel/kelson/storage/storagetest"
)

// The same work on every store, in one run:
//
//	go test -run xxx -bench . ./storage
//
// KELSON_KEYS sets how many keys the stores hold, 10,000 unless told.

func BenchmarkEngine(b *testing.B) {
	storagetest.Benchmark(b, subject(func(tb testing.TB) storage.Backend { return openEngine(tb, tb.TempDir()) }))
}

func BenchmarkMemory(b *testing.B) {
	storagetest.Benchmark(b, subject(func(tb testing.TB) storage.Backend { return memory.New(memory.Options{}) }))
}

// BenchmarkEtcd is one member that syncs, in the same process, through the
// client and loopback.
func BenchmarkEtcd(b *testing.B) {
	storagetest.Benchmark(b, subject(func(tb testing.TB) storage.Backend {
		store, err := etcd.Open(tb.Context(), etcd.Options{Endpoints: etcdtest.Start(tb, etcdtest.Fsync()).Endpoints()})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { store.Close() })
		return store
	}))
}

// BenchmarkPostgres is a PostgreSQL that syncs, on this machine, through its socket.
func BenchmarkPostgres(b *testing.B) {
	storagetest.Benchmark(b, subject(func(tb testing.TB) storage.Backend {
		store, err := postgres.Open(tb.Context(), postgres.Options{DSN: pgtest.Start(tb, pgtest.Sync()).SocketDSN()})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { store.Close() })
		return store
	}))
}

// BenchmarkDisk is the limit: appending the bytes of so many writes to a file,
// and syncing it.
func BenchmarkDisk(b *testing.B) {
	for _, writes := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("fsync/writes=%d", writes), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "log"))
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			value := make([]byte, writes<<10)
			for b.Loop() {
				if _, err := f.Write(value); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
			b.ReportMetric(float64(b.N)*float64(writes)/b.Elapsed().Seconds(), "writes/s")
		})
	}
}

// BenchmarkOpen opens a store that exists, with KELSON_KEYS objects of 2 KiB,
// and a new one.
func BenchmarkOpen(b *testing.B) {
	b.Run("empty", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			dir := b.TempDir()
			b.StartTimer()
			if err := openEngine(b, dir).Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run(fmt.Sprintf("keys=%d", keys()), func(b *testing.B) {
		dir := b.TempDir()
		store := openEngine(b, dir)
		storagetest.Fill(b, store, keys(), 2<<10)
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := openEngine(b, dir).Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func subject(open func(testing.TB) storage.Backend) storagetest.Subject {
	return storagetest.Subject{Open: open, BenchmarkKeys: keys()}
}

func keys() int {
	if n, err := strconv.Atoi(os.Getenv("KELSON_KEYS")); err == nil {
		return n
	}
	return 10_000
}

func openEngine(tb testing.TB, dir string) *engine.Engine {
	e, err := engine.Open(engine.Options{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { e.Close() })
	return e
}
