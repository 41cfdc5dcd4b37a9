package etcd_test

import (
	"testing"
	"time"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/storagetest"
)

// TestSuite has the suite of all backends judge this one.
func TestSuite(t *testing.T) {
	clusters := map[storage.Backend]*etcdtest.Cluster{}
	open := func(t testing.TB, c *etcdtest.Cluster) storage.Backend {
		b, err := etcd.Open(t.Context(), etcd.Options{Endpoints: c.Endpoints()})
		if err != nil {
			t.Fatal(err)
		}
		clusters[b] = c
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	storagetest.Run(t, storagetest.Subject{
		Open: func(t testing.TB) storage.Backend { return open(t, etcdtest.Start(t)) },
		// Both ends go down, etcd without notice.
		Reopen: func(t testing.TB, b storage.Backend) storage.Backend {
			c := clusters[b]
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			c.Kill(0)
			c.Restart(0)
			return open(t, c)
		},
		TTLGranularity: time.Second,
	})
}
