package kelson

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apiversion "k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn/certificate"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/internal/logwatch"
	"github.com/apikeel/kelson/internal/turns"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/trace"
)

// What a Server does unless it is told otherwise.
const (
	DefaultAddr            = "127.0.0.1:6443"
	DefaultRequestTimeout  = 60 * time.Second
	DefaultShutdownTimeout = 60 * time.Second
)

// Router is the API of one server of a chain.
type Router interface {
	// Route answers a request, or returns false without having touched
	// anything if the path is not one of its own.
	Route(w http.ResponseWriter, r *http.Request) bool
	// Paths lists what the index of the server shows: /api/v1, /apis/apps.
	Paths() []string
}

// Hook is something to be done when the server starts or stops.
type Hook struct {
	Name string
	// Run gets a context that ends when the server does. What it starts must
	// end then too.
	Run func(ctx context.Context) error
}

// Server serves an API, alone or as a link of a chain. The zero value is one
// that knows no API: it can be run, and tells its version and health. Fields
// must not be changed once it is prepared.
type Server struct {
	// Name is for logs.
	Name string
	// API is asked first, Delegate if it does not know the path.
	API      Router
	Delegate *Server
	// Groups are kinds to serve from here: an API is made of them, with storage,
	// discovery and OpenAPI. Objects gives access to what is stored.
	Groups []resource.Group
	// Gates are the feature gates that Groups obey: kinds and fields that are behind
	// disabled gates are not served. The zero value has the defaults of Kubernetes.
	Gates features.Gates
	// Admission has a say in writes to them.
	Admission []admission.Plugin
	// Storage keeps their objects: engine.Open returns one in a folder, etcd.Open one
	// in an etcd. It stays the caller's to close, after Run has returned. Nil keeps
	// objects in memory for as long as the server runs.
	Storage storage.Backend
	// Version is what /version tells; the zero value is Version().
	Version apiversion.Info
	// Paths are handlers beside the API, such as /metrics. A path that ends in
	// a slash stands for all below it. They go before the API.
	Paths map[string]http.Handler

	// PostStartHooks run at once when the server listens, each on its own. The
	// server is not ready before all have returned, and stops if one fails.
	PostStartHooks []Hook
	// PreShutdownHooks run one after the other when the server is to stop, as
	// long as it still answers.
	PreShutdownHooks []Hook
	HealthChecks     []HealthCheck
	// Close are called at the very end, when no request is left: storage is
	// closed here.
	Close []func() error

	// The fields below matter for the outermost server only.

	// Addr is where to listen; it defaults to DefaultAddr. Port 0 takes a free
	// one.
	Addr string
	// Serving has the rest of how the server is reached.
	Serving Serving
	// PKI has the certificates. The default is a new one that is not kept.
	PKI *pki.Authority
	// Authenticate says who asks. The default wants a client certificate that
	// PKI has issued.
	Authenticate func(r *http.Request) (user request.User, ok bool, err error)
	// Strip removes from the headers of a request what proved who asks, and what
	// only a trusted proxy may say. The default knows the usual ones.
	Strip func(h http.Header)
	// ConnContext adds to the context of a new connection what Authenticate
	// remembers of it.
	ConnContext func(ctx context.Context) context.Context
	// Audit writes down what is asked and answered; nil does not. It is closed
	// with the server.
	Audit *audit.Log
	// Metrics counts requests; nil does not.
	Metrics *metrics.Requests
	// Middleware is put around what comes after authentication: request.From
	// tells of every request who asks for what. It may answer itself. What the
	// server asks of itself does not pass through it; nil is none.
	Middleware func(next http.Handler) http.Handler
	// Now tells the time that is stamped on objects; nil is time.Now. Time-outs go
	// by the clock of the machine.
	Now func() time.Time
	// Tracer keeps traces of requests; nil does not.
	Tracer *trace.Tracer
	// Checks counts what health checks say; nil does not.
	Checks *metrics.Health
	// Flow decides which requests have to wait, or to come back later; nil lets
	// all in.
	Flow flow.Limiter
	// Authorizer decides what a user may do; nil allows everything to everyone
	// who is authenticated.
	Authorizer authz.Authorizer
	// RequestTimeout bounds requests that are not long-running.
	RequestTimeout time.Duration
	// Shutdown says how the server ends.
	Shutdown Shutdown
	// LivezGrace is how long /livez does not ask whether post-start hooks are done:
	// --livez-grace-period.
	LivezGrace time.Duration
	// DisabledPostStartHooks are the names of hooks of the chain that do not run.
	DisabledPostStartHooks []string
	// Logger gets what operators want to know; nil discards it.
	Logger *slog.Logger

	objects    atomic.Pointer[rest.Handler] // of Groups
	prepare    sync.Once
	prepareErr error
	chain      []*Server // from the outermost, this one, to the last
	hooks      []*startHook
	stopHooks  []Hook
	paths      map[string]http.Handler
	stages     []stage
	shown      *pki.ServingCertificates
	tls        *tls.Config
	listener   net.Listener

	signals  *Signals
	began    time.Time
	refusing atomic.Bool // new requests
	refused  atomic.Int64
	// ending ends when long-running requests have to. Watches end one after the
	// other, endEvery nanoseconds apart; ended counts them.
	ending   context.Context
	end      context.CancelCauseFunc
	watching atomic.Int64
	ended    atomic.Int64
	endEvery atomic.Int64
	// inFlight counts requests, long-running ones too. When it falls to zero
	// in a server that stops, drained is told.
	inFlight atomic.Int64
	drained  chan struct{}
	turns    *turns.Scheduler // of large responses
	// strangers limits lines of the log that anybody can cause without credentials.
	strangers boundedlog.Limit
}

// startHook is a PostStartHook and whether it is done.
type startHook struct {
	Hook
	done atomic.Bool
}

// PrepareRun collects what the servers behind this one bring, refuses what does
// not fit together, and installs the health endpoints. Run does it if nobody
// has before; from then on the server can be used as an http.Handler.
func (s *Server) PrepareRun() error {
	s.prepare.Do(func() { s.prepareErr = s.prepareRun() })
	return s.prepareErr
}

func (s *Server) prepareRun() error {
	s.defaults()
	for link := s; link != nil; link = link.Delegate {
		if slices.Contains(s.chain, link) {
			return fmt.Errorf("server %q is twice in the chain", link.Name)
		}
		s.chain = append(s.chain, link)
		if link.Logger == nil {
			link.Logger = s.Logger
		}
		if link.Authorizer == nil {
			link.Authorizer = s.Authorizer
		}
		if err := link.prepareGroups(); err != nil {
			return err
		}
	}
	if s.PKI == nil {
		host, _, _ := net.SplitHostPort(s.Addr)
		var err error
		if s.PKI, err = pki.New(host); err != nil {
			return err
		}
	}
	if err := s.prepareServing(); err != nil {
		return err
	}
	if s.Authenticate == nil {
		s.Authenticate, s.ConnContext = byCertificate(s.PKI.Pool()), certificate.WithConnection
	}
	if s.Strip == nil {
		s.Strip = dropCredentials
	}
	s.ending, s.end = context.WithCancelCause(context.Background())
	s.drained = make(chan struct{}, 1)
	s.turns = turns.New()
	s.signals, s.began = newSignals(), time.Now()

	if err := s.collectHooks(); err != nil {
		return err
	}
	if len(s.hooks) == 0 {
		s.signal(&s.signals.MuxAndDiscoveryComplete)
	}
	if err := s.installPaths(); err != nil {
		return err
	}
	s.stages = s.pipeline()
	return nil
}

func (s *Server) defaults() {
	if s.Addr == "" {
		s.Addr = DefaultAddr
	}
	if s.RequestTimeout == 0 {
		s.RequestTimeout = DefaultRequestTimeout
	}
	if s.Shutdown.Timeout == 0 {
		s.Shutdown.Timeout = DefaultShutdownTimeout
	}
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	s.Logger = logwatch.New(s.Logger)
}

// collectHooks takes over the hooks of the chain. The last server's come
// first: the others may count on what it sets up.
func (s *Server) collectHooks() error {
	var err error
	seen := map[string]string{}
	add := func(kind, server string, hook Hook) {
		key := kind + " " + hook.Name
		switch other, twice := seen[key]; {
		case hook.Name == "" || hook.Run == nil:
			err = errors.Join(err, fmt.Errorf("server %q has a %s hook without a name or function", server, kind))
		case twice:
			err = errors.Join(err, fmt.Errorf("%s hook %q of server %q: server %q has one of that name", kind, hook.Name, server, other))
		}
		seen[key] = server
	}
	for _, link := range slices.Backward(s.chain) {
		for _, hook := range link.PostStartHooks {
			add("post-start", link.Name, hook)
			if slices.Contains(s.DisabledPostStartHooks, hook.Name) {
				s.Logger.Info("post-start hook is disabled", "hook", hook.Name)
				continue
			}
			s.hooks = append(s.hooks, &startHook{Hook: hook})
		}
		for _, hook := range link.PreShutdownHooks {
			add("pre-shutdown", link.Name, hook)
			s.stopHooks = append(s.stopHooks, hook)
		}
	}
	return err
}

// installPaths collects the paths of the chain, of which the outermost server
// wins, and adds those that every server has.
func (s *Server) installPaths() error {
	s.paths = map[string]http.Handler{}
	for _, link := range slices.Backward(s.chain) {
		maps.Copy(s.paths, link.Paths)
	}
	index := http.HandlerFunc(s.serveIndex)
	s.paths["/"], s.paths["/index.html"] = index, index
	version := http.HandlerFunc(s.serveVersion)
	s.paths["/version"], s.paths["/version/"] = version, version
	return s.installHealth()
}

// ServeHTTP sends a request through the pipeline. The server must be prepared.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.inFlight.Add(1)
	x := newExchange(w, r)
	x.counted, x.Turns = true, &x.turn
	x.turn.Scheduler = s.turns
	if s.Now != nil {
		x.MachineTime, x.Received = x.Received, s.Now()
	}
	s.run(x, s.begin)
}

// forgetRequest counts a request as one that the end of the server need not wait
// for.
func (s *Server) forgetRequest(x *exchange) {
	if !x.counted {
		return
	}
	x.counted = false
	if s.inFlight.Add(-1) == 0 && s.refusing.Load() {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
}

// route sends a request down the chain until somebody knows its path.
func (s *Server) route(x *exchange) {
	x.ended = metrics.Answered
	// Requests for resources, which are most, need not look at other paths.
	if !x.IsResource {
		if handler := s.pathHandler(x.r.URL.Path); handler != nil {
			handler.ServeHTTP(x.w, x.r)
			return
		}
	} else if strings.HasPrefix(x.r.URL.Path, "//") {
		// It is authorized as the resource that it would be with one slash, but no
		// path begins so.
		s.notFound(x)
		return
	}
	for _, link := range s.chain {
		if link.API != nil && link.API.Route(x.w, x.r) {
			return
		}
	}
	s.notFound(x)
}

// pathHandler returns the handler of a path, or else of the longest one that
// ends in a slash and that it is below.
func (s *Server) pathHandler(path string) http.Handler {
	if handler := s.paths[path]; handler != nil {
		return handler
	}
	for end := strings.LastIndexByte(path, '/'); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if handler := s.paths[path[:end+1]]; handler != nil {
			return handler
		}
	}
	return nil
}
