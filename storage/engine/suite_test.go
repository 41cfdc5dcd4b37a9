package engine

import (
	"testing"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/storagetest"
)

func TestDisk(t *testing.T) { storagetest.Run(t, disk()) }

func TestLong(t *testing.T) {
	if !long() {
		t.Skip("set KELSON_LONG=1 to run the long suite")
	}
	storagetest.RunLong(t, disk())
}

func disk() storagetest.Subject {
	return storagetest.Subject{
		Open: func(t testing.TB) storage.Backend { return open(t, Options{Dir: t.TempDir()}) },
		Reopen: func(t testing.TB, b storage.Backend) storage.Backend {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, Options{Dir: b.(*Engine).opts.Dir})
		},
	}
}
