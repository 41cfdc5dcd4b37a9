// Package kelsontest runs a whole API server inside a test: no binary to
// install, no port to reserve, nothing left behind.
//
//	server := kelsontest.Start(t, kelsontest.CRDs("config/crd/bases"))
//	client := kubernetes.NewForConfigOrDie(server.Config())
//
// Start returns when the server is ready; it stops when the test ends. Servers
// share nothing, so tests with t.Parallel can each have their own. New is for
// where there is no test yet, such as TestMain.
//
// Namespaces that are deleted end, dependents follow their owners, and every
// namespace has its service account. There is no scheduler and no kubelet,
// though, and nobody makes the replica sets of a deployment: a test plays these
// parts itself.
//
// # Beyond a server
//
//   - User and Token are clients with other identities (users.go).
//   - CRDs, Manifests and Webhooks install what is in folders (install.go).
//   - On makes requests slow, fail or get lost; EndWatches ends watches; Record
//     tells what was asked (faults.go).
//   - Clock stops the time that is stamped on objects (clock.go).
//   - Snapshot and Restore bring a state back; CompactHistory makes clients list
//     anew (state.go).
package kelsontest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
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

// Server is a running API server.
type Server struct {
	server    *kelson.Server
	authority *pki.Authority
	admin     func() admin // makes it once

	clock  Clock
	faults faults
	tokens tokens
	state  tap // the data

	mu       sync.Mutex
	configs  []*rest.Config // that were handed out, and may hold connections
	folder   string         // for files of the server's own, "" if there are none
	webhooks *Webhooks

	cancel  context.CancelFunc
	ended   chan error   // gets what Run has returned
	release func() error // closes the data, if it is ours to close
	stopped sync.Once
	stopErr error
}

// Start starts a server on a free port of 127.0.0.1 and waits until it is
// ready. It is stopped, and its data removed, when the test ends; the test fails
// if something goes wrong at that.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	// What the server says belongs to the test. It has ended before the test has.
	log := slog.New(slog.NewTextHandler(testLog{tb}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	s, err := New(append([]Option{Logger(log)}, opts...)...)
	if err != nil {
		tb.Fatalf("kelsontest: %v", err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("kelsontest: stop: %v", err)
		}
	})
	return s
}

// testLog writes lines to the log of a test.
type testLog struct{ tb testing.TB }

func (l testLog) Write(line []byte) (int, error) {
	l.tb.Logf("%s", line[:max(0, len(line)-1)])
	return len(line), nil
}

// New starts a server as Start does, for a TestMain or whoever else has no test
// at hand. Close stops it.
func New(opts ...Option) (*Server, error) {
	set := defaults()
	for _, o := range opts {
		o(&set)
	}
	s := &Server{ended: make(chan error, 1)}
	err := s.start(&set)
	if err == nil {
		err = s.install(&set.install)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) start(set *settings) (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := s.open(ctx, set); err != nil {
		return err
	}
	if s.authority, err = pki.New("127.0.0.1"); err != nil {
		return err
	}
	gates, err := features.New(set.features)
	if err != nil {
		return err
	}
	config := controlplane.Config{
		Gates: gates, Logger: set.logger, Controllers: set.controllers, Admission: set.admission, Plugins: set.plugins,
		Encryption: set.encryption, Now: s.clock.Now, Jumps: s.clock.jumps,
	}
	config.Serving.HTTP2Server = set.http2
	config.Authentication.Tokens = &s.tokens
	config.Authentication.TokenSuccessTTL = -1 // a token that has ended is refused at once
	for _, change := range set.configure {
		change(&config)
	}
	server, err := config.Server(ctx, &s.state, s.authority)
	if err != nil {
		return err
	}
	server.Addr, server.Shutdown.Timeout = "127.0.0.1:0", stopTimeout
	server.Middleware, server.Authenticate = s.faults.around, s.tokens.unexpired(server.Authenticate)
	s.server = server
	err = server.Listen()
	// Run closes what the server has opened, also if it cannot listen.
	go func() { s.ended <- server.Run(ctx) }()
	if err != nil {
		return err
	}
	s.admin = sync.OnceValue(s.newAdmin)
	return s.waitReady(ctx)
}

// admin is how the administrator reaches the server.
type admin struct {
	kubeconfig []byte
	config     *rest.Config
}

func (s *Server) newAdmin() (a admin) {
	kubeconfig, err := s.authority.Kubeconfig(s.URL())
	if err == nil {
		a.kubeconfig = kubeconfig
		a.config, err = clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	}
	if err != nil {
		panic(err) // there is nothing that a caller could have done wrong
	}
	a.config.QPS = -1 // no waiting: the server is the test's alone
	s.handOut(a.config)
	return a
}

// waitReady waits until the server says that it is ready.
func (s *Server) waitReady(ctx context.Context) error {
	// It is seldom ready before that, and asking costs more than waiting.
	select {
	case <-s.server.Signals().MuxAndDiscoveryComplete.Happened():
	case <-s.server.Signals().ShutdownInitiated.Happened():
	case <-time.After(startTimeout):
	}
	return poll(ctx, func(ctx context.Context) error {
		select {
		case err := <-s.ended:
			s.ended <- nil
			return fatal{fmt.Errorf("the server has ended: %w", err)}
		default:
			return s.server.Ready(ctx)
		}
	})
}

// fatal is an error that waiting does not help.
type fatal struct{ error }

// poll tries something until it works.
func poll(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for last := errors.New("no answer"); ; {
		err := try(ctx)
		if err == nil || errors.As(err, new(fatal)) {
			return err
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
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
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.admin().config) }

// Kubeconfig returns the same as the content of a file for kubectl and other
// programs.
func (s *Server) Kubeconfig() []byte { return append([]byte(nil), s.admin().kubeconfig...) }

// Clock is the one by which the server stamps objects.
func (s *Server) Clock() *Clock { return &s.clock }

// Stop ends the server: watches end, other requests finish, and then the data is
// closed. What goes wrong at that fails the test when it ends. Calls after the
// first do nothing.
func (s *Server) Stop() { _ = s.Close() }

// Close is Stop for who wants to know what went wrong. Every call returns the
// same.
func (s *Server) Close() error {
	s.stopped.Do(func() { s.stopErr = s.close() })
	return s.stopErr
}

func (s *Server) close() (err error) {
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Lock()
	folder, webhooks, configs := s.folder, s.webhooks, s.configs
	s.mu.Unlock()
	if webhooks != nil {
		err = webhooks.close()
	}
	if s.server != nil {
		// The server would wait for clients that hold on to their connection.
		for _, config := range configs {
			if transport, err := rest.TransportFor(config); err == nil {
				utilnet.CloseIdleConnectionsFor(transport)
			}
		}
		err = errors.Join(err, <-s.ended)
	}
	if s.release != nil {
		err = errors.Join(err, s.release())
	}
	if folder != "" {
		err = errors.Join(err, os.RemoveAll(folder))
	}
	return err
}

// temp returns a folder for files of the server's own. It goes with the server.
func (s *Server) temp() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.folder == "" {
		s.folder, err = os.MkdirTemp("", "kelsontest-")
	}
	return s.folder, err
}

var _ storage.Backend = (*tap)(nil)
