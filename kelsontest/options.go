package kelsontest

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/google/uuid"
)

// Option changes what Start sets up.
type Option func(*settings)

type settings struct {
	controllers []string
	admission   plugin.Config
	plugins     []admission.Plugin
	configure   []func(*controlplane.Config)
	features    features.Config

	disk    bool
	folder  string
	etcd    []string
	backend storage.Backend
	logger  *slog.Logger

	encryption encrypt.Options
	install    install
	http2      string // kelson.Serving.HTTP2Server
}

func defaults() settings {
	return settings{
		http2:     http2test.Chosen(),
		admission: plugin.Config{MakeAccounts: true},
		logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// Disk keeps the data in a temporary folder, synced as in production, instead
// of in memory.
func Disk() Option { return func(s *settings) { s.disk = true } }

// Folder keeps the data in a folder of the caller: a server that is started
// there after another one has stopped serves the same objects.
func Folder(dir string) Option { return func(s *settings) { s.disk, s.folder = true, dir } }

// Etcd keeps the data in an etcd, below a prefix of its own, which is removed in
// the end: many servers can share one.
func Etcd(endpoints ...string) Option { return func(s *settings) { s.etcd = endpoints } }

// Backend keeps the data in a store that is open already. It stays the caller's
// to close, after the server has stopped: a Cleanup from before Start does that
// in time.
func Backend(b storage.Backend) Option { return func(s *settings) { s.backend = b } }

// Controllers chooses the controllers that run, as the flag --controllers does:
// "*" for all, which is the default, "-garbagecollector" for one that does not.
func Controllers(words ...string) Option {
	return func(s *settings) { s.controllers = append([]string{}, words...) }
}

// NoControllers leaves nothing but the API: namespaces never end, owners leave
// their dependents behind, and there are no service accounts.
func NoControllers() Option { return Controllers("-*") }

// Admission chooses the plugins that look at writes, and adds others. The
// default has those of a server, and makes the service account that pods need.
func Admission(cfg plugin.Config, plugins ...admission.Plugin) Option {
	return func(s *settings) { s.admission, s.plugins = cfg, plugins }
}

// Logger gets the server's log. The default puts warnings and errors into the
// output of the test.
func Logger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// HTTP2Server chooses the implementation of HTTP/2: kelson.HTTP2Own, the default,
// or kelson.HTTP2NetHTTP. The environment variable KELSON_TEST_HTTP2 chooses it for
// servers without this option.
func HTTP2Server(implementation string) Option {
	return func(s *settings) { s.http2 = implementation }
}

// Encryption keeps values encrypted as an EncryptionConfiguration in a file says.
func Encryption(file string) Option {
	return func(s *settings) { s.encryption = encrypt.Options{File: file, Reload: true} }
}

// FeatureGates sets feature gates of Kubernetes, as the flag --feature-gates does, and
// adds to those of other such options. What the flag refuses, such as a gate whose
// dependencies are disabled, keeps the server from starting. Kinds that come with an
// alpha or beta version need that version too: Configure has RuntimeConfig.
func FeatureGates(gates map[string]bool) Option {
	return func(s *settings) {
		all := maps.Clone(s.features.Set)
		if all == nil {
			all = map[string]bool{}
		}
		maps.Copy(all, gates)
		s.features.Set = all
	}
}

// EmulatedVersion has the server behave as an earlier version of Kubernetes, such as
// 1.36, as the flag --emulated-version does: it serves the API of that version, with
// its feature gates and their defaults.
func EmulatedVersion(version string) Option {
	return func(s *settings) { s.features.EmulatedVersion = version }
}

// MemoryLimit bounds what the server keeps in memory, and what it lets clients hold, as the
// flag --memory-limit does. The default is what the machine has. The Go runtime, which a
// server shares with the test, is not bounded.
func MemoryLimit(bytes int64) Option {
	return Configure(func(c *controlplane.Config) { c.Memory = budget.New(bytes) })
}

// Configure changes what has no option here: everything that flags can say.
func Configure(change func(*controlplane.Config)) Option {
	return func(s *settings) { s.configure = append(s.configure, change) }
}

// open opens the data.
func (s *Server) open(ctx context.Context, set *settings) error {
	switch {
	case set.backend != nil:
		s.state.Backend = set.backend
		return nil
	case len(set.etcd) > 0:
		b, err := etcd.Open(ctx, etcd.Options{
			Endpoints: set.etcd, Prefix: "/kelsontest-" + uuid.NewString(), CompactInterval: -1, Logger: set.logger,
		})
		if err != nil {
			return err
		}
		s.state.Backend, s.state.private = b, true
		s.release = func() error { return errors.Join(clear(b), b.Close()) }
		return nil
	}
	if !set.disk {
		b := memory.New(memory.Options{})
		s.state.Backend, s.release = b, b.Close
		return nil
	}
	dir := set.folder
	if dir == "" {
		temp, err := s.temp()
		if err != nil {
			return err
		}
		dir = filepath.Join(temp, "data")
	}
	b, err := engine.Open(engine.Options{Dir: dir, Logger: set.logger})
	if err != nil {
		return err
	}
	s.state.Backend, s.release = b, b.Close
	return nil
}

// clear removes all keys of a store.
func clear(b storage.Backend) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	page, err := b.List(ctx, storage.Root, storage.ListOptions{KeysOnly: true})
	if err != nil {
		return err
	}
	for _, kv := range page.Items {
		if _, _, gone := b.Delete(ctx, kv.Key, kv.ModRevision); gone != nil && !errors.Is(gone, storage.ErrNotFound) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
