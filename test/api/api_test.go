// Package api runs scenarios of client-go against a whole server, over every
// kind of storage.
package api

import (
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
	"github.com/apikeel/kelson/storage/postgres"
	"github.com/apikeel/kelson/storage/postgres/pgtest"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long something may take to arrive on a busy machine.
const patience = 30 * time.Second

// everywhere runs a scenario over every storage, each in a namespace of its own
// on a server of its own.
func everywhere(t *testing.T, scenario func(t *testing.T, c kubernetes.Interface)) {
	for name, option := range map[string]func(t *testing.T) []kelsontest.Option{
		"memory": func(*testing.T) []kelsontest.Option { return nil },
		"disk":   func(*testing.T) []kelsontest.Option { return []kelsontest.Option{kelsontest.Disk()} },
		"etcd": func(t *testing.T) []kelsontest.Option {
			return []kelsontest.Option{kelsontest.Backend(openEtcd(t, etcdtest.Start(t)))}
		},
		"postgres": func(t *testing.T) []kelsontest.Option {
			return []kelsontest.Option{kelsontest.Backend(openPostgres(t))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, client(t, kelsontest.Start(t, append(option(t), kelsontest.NoControllers())...)))
		})
	}
}

func openEtcd(t *testing.T, cluster *etcdtest.Cluster) storage.Backend {
	t.Helper()
	backend, err := etcd.Open(t.Context(), etcd.Options{Endpoints: cluster.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return backend
}

// openPostgres opens a store in a database of its own.
func openPostgres(t *testing.T) storage.Backend {
	t.Helper()
	backend, err := postgres.Open(t.Context(), postgres.Options{DSN: pgtest.Start(t).DSN(), AllowNoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
	})
	return backend
}

func client(t *testing.T, s *kelsontest.Server) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// must returns the value of a call that should succeed.
func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}
}

// next returns the next event of a watch that is not a bookmark.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case e, open := <-w.ResultChan():
			if !open {
				t.Fatal("the watch has ended")
			}
			if e.Type != watch.Bookmark {
				return e
			}
		case <-timeout:
			t.Fatal("no event")
		}
	}
}
