// Package kelsontest runs a whole API server inside a test: no binary to
// install, no port to reserve, nothing left behind.
//
//	server := kelsontest.Start(t)                    // data in memory
//	server := kelsontest.Start(t, kelsontest.Disk()) // on disk, as in production
//	client := kubernetes.NewForConfigOrDie(server.Config())
//
// Start returns when the server is ready; it stops when the test ends. Servers
// share nothing, so tests with t.Parallel can each have their own.
//
// Namespaces that are deleted end, dependents follow their owners, and every
// namespace has its service account. There is no scheduler and no kubelet,
// though, and nobody makes the replica sets of a deployment: a test plays these
// parts itself.
package kelsontest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/storage/engine"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// startTimeout is how long a server may take to become ready, on a machine
	// that is busy with other tests.
	startTimeout = 60 * time.Second
	// stopTimeout bounds each step of the end: a request that hangs should fail
	// its test, not the whole run.
	stopTimeout = 10 * time.Second
	pollEvery   = time.Millisecond
)

// Option changes what Start sets up.
type Option func(*settings)

type settings struct {
	controllers []string
	admission   plugin.Config
	plugins     []admission.Plugin

	disk    bool
	folder  string
	backend storage.Backend
	logger  *slog.Logger

	encryption encrypt.Options
}

// Disk keeps the data in a temporary folder, synced as in production, instead
// of in memory.
func Disk() Option { return func(s *settings) { s.disk = true } }

// Folder keeps the data in a folder of the caller: a server that is started
// there after another one has stopped serves the same objects.
func Folder(dir string) Option { return func(s *settings) { s.disk, s.folder = true, dir } }

// Backend keeps the data in a store that is open already, such as one on etcd.
// It stays the caller's to close, after the server has stopped: a Cleanup from
// before Start does that in time.
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

// Encryption keeps values encrypted as an EncryptionConfiguration in a file says.
func Encryption(file string) Option {
	return func(s *settings) { s.encryption = encrypt.Options{File: file, Reload: true} }
}

// Server is a running API server.
type Server struct {
	tb         testing.TB
	server     *kelson.Server
	kubeconfig []byte
	config     *rest.Config

	cancel  context.CancelFunc
	ended   chan error      // gets what Run has returned
	backend storage.Backend // if it is ours to close
	stop    sync.Once
}

// Start starts a server on a free port of 127.0.0.1 and waits until it is
// ready. It is stopped, and its data removed, when the test ends.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	set := settings{admission: plugin.Config{MakeAccounts: true}}
	for _, o := range opts {
		o(&set)
	}
	if set.logger == nil {
		set.logger = slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	// The folder is asked for before the Cleanup is, so that it goes away after
	// what writes to it.
	if set.disk && set.folder == "" {
		set.folder = tb.TempDir()
	}
	s := &Server{tb: tb, ended: make(chan error, 1)}
	tb.Cleanup(s.Stop)
	if err := s.start(set); err != nil {
		tb.Fatalf("kelsontest: %v", err)
	}
	return s
}

func (s *Server) start(set settings) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	backend := set.backend
	if backend == nil {
		var err error
		if backend, err = engine.Open(engine.Options{Dir: set.folder, Logger: set.logger}); err != nil {
			return err
		}
		s.backend = backend
	}
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		return err
	}
	if s.server, err = (controlplane.Config{
		Logger: set.logger, Controllers: set.controllers, Admission: set.admission, Plugins: set.plugins,
		Encryption: set.encryption,
	}).Server(ctx, backend, authority); err != nil {
		return err
	}
	s.server.Addr, s.server.Shutdown.Timeout = "127.0.0.1:0", stopTimeout
	err = s.server.Listen()
	// Run closes what the server has opened, also if it cannot listen.
	go func() { s.ended <- s.server.Run(ctx) }()
	if err != nil {
		return err
	}
	if s.kubeconfig, err = authority.Kubeconfig(s.URL()); err != nil {
		return err
	}
	if s.config, err = clientcmd.RESTConfigFromKubeConfig(s.kubeconfig); err != nil {
		return err
	}
	s.config.QPS = -1 // no waiting: the server is the test's alone
	return s.waitReady(ctx, authority)
}

// waitReady waits until the server says that it is ready.
func (s *Server) waitReady(ctx context.Context, authority *pki.Authority) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: authority.Pool(), Certificates: []tls.Certificate{*authority.AdminCertificate()},
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for last := errors.New("no answer"); ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(req)
		if err == nil {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case err := <-s.ended:
			s.ended <- nil
			return fmt.Errorf("the server has ended: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("not ready within %v: %w", startTimeout, last)
		case <-tick.C:
		}
	}
}

// URL is where the server is: https://127.0.0.1:34567.
func (s *Server) URL() string { return s.server.URL() }

// Config returns a configuration for clients of the administrator, without a
// limit on the rate of requests. It is a copy that may be changed.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// Kubeconfig returns the same as a file for kubectl and other programs.
func (s *Server) Kubeconfig() []byte { return append([]byte(nil), s.kubeconfig...) }

// Stop ends the server: watches end, other requests finish, and then the data is
// closed. The test fails if something goes wrong at that. Calls after the first
// do nothing.
func (s *Server) Stop() {
	s.tb.Helper()
	s.stop.Do(func() {
		if err := s.close(); err != nil {
			s.tb.Errorf("kelsontest: stop: %v", err)
		}
	})
}

func (s *Server) close() (err error) {
	if s.cancel != nil {
		s.cancel()
	}
	if s.server != nil {
		// The server would wait for clients that hold on to their connection.
		if s.config != nil {
			if transport, err := rest.TransportFor(s.config); err == nil {
				utilnet.CloseIdleConnectionsFor(transport)
			}
		}
		err = <-s.ended
	}
	if s.backend != nil {
		err = errors.Join(err, s.backend.Close())
	}
	return err
}
