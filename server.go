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
	"github.com/apikeel/kelson/budget"
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
	"github.com/apikeel/kelson/usage"
)

// Defaults of Server.
const (
	DefaultAddr            = "127.0.0.1:6443"
	DefaultRequestTimeout  = 60 * time.Second
	DefaultShutdownTimeout = 60 * time.Second
)

// Router serves the API of one server of a chain.
type Router interface {
	// Route answers a request, or returns false without having written anything if the
	// path is not its own.
	Route(w http.ResponseWriter, r *http.Request) bool
	// Paths lists the paths for the index of the server: /api/v1, /apis/apps.
	Paths() []string
}

// Hook is a function that runs when the server starts or stops.
type Hook struct {
	Name string
	// Run gets a context that ends when the server does. Goroutines that it starts must
	// end with it.
	Run func(ctx context.Context) error
}

// Server serves an API, alone or as a link of a chain. The zero value has no API: it can be
// run, and serves version and health. Fields must not be changed once it is prepared.
type Server struct {
	// Name is for logs.
	Name string
	// API is asked first; Delegate serves the paths that API does not know.
	API      Router
	Delegate *Server
	// Groups are kinds to serve: an API is made for them, with storage, discovery and
	// OpenAPI. Objects gives access to the stored objects.
	Groups []resource.Group
	// Gates are the feature gates that Groups obey: kinds and fields that are behind
	// disabled gates are not served. With CBORServingAndStorage, requests and responses
	// can be in CBOR. The zero value has the defaults of Kubernetes.
	Gates features.Gates
	// Admission are the admission plugins for writes to Groups.
	Admission []admission.Plugin
	// Storage stores the objects of Groups: engine.Open returns one in a folder, etcd.Open
	// one in an etcd. The caller closes it, after Run has returned. Nil stores objects in
	// memory for as long as the server runs.
	Storage storage.Backend
	// Memory is the memory that the server may use for Groups, and for what clients do not
	// read; nil is budget.Default.
	Memory *budget.Memory
	// Version is the response of /version; the zero value is Version().
	Version apiversion.Info
	// Paths are handlers beside the API, such as /metrics. A path that ends in a slash
	// includes all below it. They take precedence over the API.
	Paths map[string]http.Handler

	// PostStartHooks run concurrently once the server listens. The server is not ready
	// before all have returned, and stops if one fails.
	PostStartHooks []Hook
	// PreShutdownHooks run one after the other when the server is told to stop, while it
	// still answers requests.
	PreShutdownHooks []Hook
	HealthChecks     []HealthCheck
	// Close functions are called last, when no request is left: storage is closed here.
	Close []func() error

	// The fields below are used by the outermost server only.

	// Addr to listen on; the default is DefaultAddr. Port 0 takes a free port.
	Addr string
	// Listener, if it is not nil, is served instead of Addr: a socket that was bound, or
	// passed on by another process, before the server was made.
	Listener net.Listener
	// ListenWhenReady binds Addr when all post-start hooks have returned. A server that
	// shares its port with the one that it replaces gets no connection before it can serve
	// it, and refuses no request when it is replaced itself. Addr needs a port then.
	ListenWhenReady bool
	// Serving configures TLS, HTTP/2 and how clients reach the server.
	Serving Serving
	// PKI issues certificates. The default is a new one in memory.
	PKI *pki.Authority
	// Authenticate returns the user of a request. The default requires a client
	// certificate that PKI has issued.
	Authenticate func(r *http.Request) (user request.User, ok bool, err error)
	// Strip removes credentials and front-proxy headers from a request. The default
	// knows the usual ones.
	Strip func(h http.Header)
	// ConnContext adds a per-connection cache of Authenticate to the context of a new
	// connection.
	ConnContext func(ctx context.Context) context.Context
	// Audit is the audit log; nil for none. It is closed with the server.
	Audit *audit.Log
	// Metrics counts requests; nil for none.
	Metrics *metrics.Requests
	// Usage accounts for what clients cost; nil for none. Who sets it starts it.
	Usage *usage.Meter
	// Middleware wraps the stages after authentication: request.From returns the user
	// and what is asked for. It may answer requests itself. Loopback requests skip it.
	Middleware func(next http.Handler) http.Handler
	// Now returns the time for timestamps of objects; nil is time.Now. Timeouts use the
	// machine's clock.
	Now func() time.Time
	// Tracer records traces of requests; nil for none.
	Tracer *trace.Tracer
	// Checks counts results of health checks; nil for none.
	Checks *metrics.Health
	// Flow is priority and fairness: it queues or refuses requests; nil admits all.
	Flow flow.Limiter
	// Authorizer authorizes requests; nil allows everything to authenticated users.
	Authorizer authz.Authorizer
	// UnconstrainedImpersonation makes the right to impersonate a user, whatever for, the
	// only one by which requests go on as another user.
	UnconstrainedImpersonation bool
	// RequestTimeout bounds requests that are not long-running.
	RequestTimeout time.Duration
	// Shutdown configures the shutdown sequence.
	Shutdown Shutdown
	// LivezGrace is how long after the start /livez ignores post-start hooks:
	// --livez-grace-period.
	LivezGrace time.Duration
	// DisabledPostStartHooks are names of hooks of the chain that do not run.
	DisabledPostStartHooks []string
	// Logger for operators; nil discards.
	Logger *slog.Logger

	objects      atomic.Pointer[rest.Handler] // of Groups
	prepare      sync.Once
	prepareErr   error
	chain        []*Server // from this server, the outermost, to the last
	hooks        []*startHook
	stopHooks    []Hook
	paths        map[string]http.Handler
	healthChecks []HealthCheck // in the order in which they are listed
	stages       []stage
	shown        *pki.ServingCertificates
	tls          *tls.Config
	listener     net.Listener

	signals  *Signals
	began    time.Time
	parting  atomic.Bool // connections are closed after the next response
	refusing atomic.Bool // new requests are refused
	refused  atomic.Int64
	// ending ends when long-running requests have to end. Watches end one after the
	// other, endEvery nanoseconds apart; ended counts them.
	ending   context.Context
	end      context.CancelCauseFunc
	watching atomic.Int64
	ended    atomic.Int64
	endEvery atomic.Int64
	// inFlight counts requests, also long-running ones. When it falls to zero during
	// shutdown, drained is signalled.
	inFlight atomic.Int64
	drained  chan struct{}
	turns    *turns.Scheduler // CPU scheduling of large responses
	// strangers rate-limits log lines that unauthenticated clients can cause.
	strangers boundedlog.Limit
}

// startHook is a post-start hook and whether it has returned.
type startHook struct {
	Hook
	done atomic.Bool
}

// PrepareRun collects hooks, paths and health checks of the chain, validates the
// configuration, and installs the health endpoints. Run calls it if needed; afterwards the
// server can be used as an http.Handler.
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

// collectHooks collects the hooks of the chain. Those of the last server come first: others
// may depend on what they set up.
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

// installPaths collects the paths of the chain, in which outer servers win, and adds those
// that every server has.
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
	x.CBOR = s.Gates.Enabled(features.CBOR)
	x.counted, x.Turns = true, &x.turn
	x.turn.Scheduler = s.turns
	if s.Now != nil {
		x.MachineTime, x.Received, x.Clock = x.Received, s.Now(), s.Now
	}
	s.run(x, s.begin)
}

// Busy reports whether a request other than a watch is being answered. Work that can wait
// gives way to it.
func (s *Server) Busy() bool { return s.inFlight.Load() > s.watching.Load() }

// forgetRequest excludes a request from those that shutdown waits for.
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

// route sends a request down the chain until a Router knows its path.
func (s *Server) route(x *exchange) {
	x.ended = metrics.Answered
	if s.Flow == nil {
		x.EndArrival()
	}
	// Most requests are for resources and skip the other paths.
	if !x.IsResource {
		if handler := s.pathHandler(x.Path); handler != nil {
			handler.ServeHTTP(x.w, x.r)
			return
		}
	} else if strings.HasPrefix(x.Path, "//") {
		// A path with a double slash is authorized as the resource it would be with one
		// slash, but does not exist.
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

// pathHandler returns the handler of a path, or of its longest prefix that ends in a slash.
func (s *Server) pathHandler(path string) http.Handler {
	if handler := s.paths[path]; handler != nil {
		return handler
	}
	if handler := s.checkHandler(path); handler != nil {
		return handler
	}
	for end := strings.LastIndexByte(path, '/'); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		if handler := s.paths[path[:end+1]]; handler != nil {
			return handler
		}
	}
	return nil
}
