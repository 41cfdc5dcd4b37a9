// Package stores gives a server the flags that say where its objects are kept: --data-dir,
// --etcd-servers, --storage-dsn. Start at All.
//
//	func main() { serverflags.Main(server, stores.All("")...) }
//
// It is apart from serverflags, so that a program whose server keeps nothing does not link
// an engine and two clients of databases.
package stores

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/postgres"
)

// All returns the stores that come with the library: etcd, PostgreSQL, and a folder. dir is
// the default of --data-dir; if it is empty, and no flag names a store, the server keeps its
// Storage, or objects in memory.
func All(dir string) []serverflags.Store {
	return []serverflags.Store{&etcdServers{}, &database{}, &folder{dir}}
}

// folder is the embedded store.
type folder struct{ dir string }

func (f *folder) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.dir, "data-dir", f.dir, "`folder` to keep objects in; without one, and without etcd or PostgreSQL, they are lost at the end")
}

func (f *folder) Open(_ context.Context, logger *slog.Logger) (storage.Backend, error) {
	if f.dir == "" {
		return nil, nil
	}
	return engine.Open(engine.Options{Dir: f.dir, Logger: logger})
}

type etcdServers struct{ Etcd }

func (e *etcdServers) Bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&e.Servers, "etcd-servers", nil, "`URLs` of etcd to keep objects in, separated by commas")
	e.Etcd.Bind(fs)
}

func (e *etcdServers) Open(ctx context.Context, logger *slog.Logger) (storage.Backend, error) {
	if len(e.Servers) == 0 {
		return nil, nil
	}
	options := e.Options()
	options.Logger = logger
	return etcd.Open(ctx, options)
}

type database struct{ Postgres }

func (d *database) Open(ctx context.Context, logger *slog.Logger) (storage.Backend, error) {
	if !d.Given() {
		return nil, nil
	}
	options, err := d.Options()
	if err != nil {
		return nil, err
	}
	options.Logger = logger
	d.WarnPassword(logger)
	return postgres.Open(ctx, options)
}
