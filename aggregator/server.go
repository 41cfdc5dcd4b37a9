package aggregator

import (
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Config configures a Server.
type Config struct {
	// Services follows APIServices, Network follows Services and EndpointSlices.
	Services, Network resource.Follower
	// Objects reads Services and EndpointSlices from the cache.
	Objects func(group, resource string) resource.Lister
	// Loopback carries requests of the server itself to this server, as a privileged
	// user. APIServices are written through it.
	Loopback http.RoundTripper
	// Create, if it is not nil, creates the initial APIServices without going through
	// HTTP.
	Create func(ctx context.Context, service resource.Object) error
	// Hold, if it is not nil, takes bytes of the memory that clients hold, in the name of a
	// user. It returns a function that gives them back, or nil if there is no room.
	Hold func(user *request.User, bytes int64) (release func())
	// Dial connects to services; nil dials directly.
	Dial egress.Dial
	// Catalog returns what this process serves; Settled returns when that includes all
	// custom resources.
	Catalog func() *resource.Catalog
	Settled func(ctx context.Context) error
	// Routes are other paths of this process that OpenAPI describes.
	Routes []openapi.Route
	// CBOR says that the server speaks CBOR, for OpenAPI.
	CBOR bool
	// NoHashes is discovery.Handler.NoHashes.
	NoHashes bool
	// NoUID does not tell backends the UID of a user: the gate RemoteRequestHeaderUID is
	// off.
	NoUID bool

	// EndpointRouting sends requests to endpoints of services instead of their cluster
	// IPs: --enable-aggregator-routing.
	EndpointRouting bool
	// Resolve, if it is not nil, returns the address of a service instead of the lookup
	// of API objects; nil or an error means that there is none.
	Resolve func(ctx context.Context, namespace, name string, port int32) (*url.URL, error)
	// Certificate returns the client certificate for backends: --proxy-client-cert-file
	// and --proxy-client-key-file. It is called for each connection.
	Certificate func() (*tls.Certificate, error)
	// ForwardRedirects forwards redirects to clients:
	// --aggregator-reject-forwarding-redirect=false.
	ForwardRedirects bool

	// Certificates counts deprecated certificates of backends; nil does not.
	Certificates *servercert.Counter
	// NoEnums is openapi.Config.NoEnums.
	NoEnums bool
	// Fail answers a request with an error.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Logger gets backends whose documents or addresses cannot be read, and failed
	// writes; nil discards them.
	Logger *slog.Logger
}

// Server is the first in the chain of servers: it proxies requests for remote
// APIServices, and serves discovery and OpenAPI of all groups. It implements
// kelson.Router.
type Server struct {
	Config
	discovery *discovery.Handler
	openapi   *openapi.Handler

	// remotes are the backends by group and version, read by every request.
	remotes atomic.Pointer[map[schema.GroupVersion]*backend]
	// changed is incremented when discovery or OpenAPI must be computed again.
	changed atomic.Int64
	wake    chan struct{} // capacity 1: the catalog or an APIService has changed
	// interrupt cancels the wait for changes in Run; nil before the first wait.
	interrupt atomic.Pointer[context.CancelFunc]

	mu       sync.Mutex
	services map[string]*apiregistration.APIService
	running  context.Context // the context of Run; nil before
	backends sync.WaitGroup
	started  bool // the initial APIServices exist
	// following reports whether Services and EndpointSlices are followed, which begins
	// with the first backend.
	following bool

	buffers   sync.Pool // copy buffers for bodies
	merging   sync.Mutex
	merged    merged
	described described
}

// New returns a server. Before Run it only proxies requests to backends that are
// available.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{Config: cfg, services: map[string]*apiregistration.APIService{}, wake: make(chan struct{}, 1)}
	s.remotes.Store(&map[schema.GroupVersion]*backend{})
	s.discovery = discovery.New(cfg.Catalog, func(r *http.Request) string { return r.Host })
	s.discovery.NoHashes = cfg.NoHashes
	s.discovery.Merge(s.mergedDiscovery)
	s.openapi = openapi.New(cfg.Catalog, openapi.Config{Log: cfg.Logger, Remote: s.documents, Routes: cfg.Routes, NoEnums: cfg.NoEnums, CBOR: cfg.CBOR})
	return s
}

// Available returns whether each known APIService is available.
func (s *Server) Available() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool, len(s.services))
	for name, service := range s.services {
		all[name] = isAvailable(service)
	}
	return all
}

// Discovery returns the handler of discovery for all groups.
func (s *Server) Discovery() *discovery.Handler { return s.discovery }

// OpenAPI returns the handler of OpenAPI for all groups.
func (s *Server) OpenAPI() *openapi.Handler { return s.openapi }

// Changed must be called when the catalog has changed.
func (s *Server) Changed() {
	s.changed.Add(1)
	s.wakeUp()
}

// wakeUp makes Run look for changes.
func (s *Server) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if interrupt := s.interrupt.Load(); interrupt != nil {
		(*interrupt)()
	}
}

// Revision changes when discovery does: that of the catalog, or an APIService.
func (s *Server) Revision() int64 { return s.changed.Load() }

// Remote returns the groups and versions that other servers serve.
func (s *Server) Remote() []schema.GroupVersion {
	return slices.Collect(maps.Keys(*s.remotes.Load()))
}

// Run keeps APIServices up to date and watches backends until ctx ends.
func (s *Server) Run(ctx context.Context) {
	s.mu.Lock()
	s.running = ctx
	for _, b := range *s.remotes.Load() {
		s.watch(b)
	}
	s.mu.Unlock()
	for ctx.Err() == nil {
		if err := s.register(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Warn("APIServices could not be brought up to date", "error", err)
			pause(ctx, nil, retryDelay)
			continue
		}
		s.waitForChange(ctx)
	}
	s.backends.Wait()
}

// waitForChange returns when APIServices or the catalog may have changed.
func (s *Server) waitForChange(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// wakeUp cancels the wait from now on; an earlier call has filled s.wake.
	s.interrupt.Store(&cancel)
	select {
	case <-s.wake:
		return
	default:
	}
	_ = s.Services.Wait(ctx)
	select {
	case <-s.wake:
	default:
	}
}

// sync applies all changes of APIServices that were acknowledged by now. After an error
// the state stays as it was.
func (s *Server) sync(ctx context.Context) {
	if s.Services.Current() {
		return
	}
	if err := s.Services.Pull(ctx, s.apply); err != nil && ctx.Err() == nil {
		s.Logger.Warn("APIServices cannot be read", "error", err)
	}
}

// apply applies changes of APIServices.
func (s *Server) apply(reset bool, changes []resource.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.services
	if reset {
		s.services = map[string]*apiregistration.APIService{}
	}
	for _, c := range changes {
		if c.Deleted {
			delete(s.services, c.Object.GetName())
		} else if service, ok := c.Object.(*apiregistration.APIService); ok {
			s.services[service.Name] = reduce(service)
		}
	}
	s.route()
	if len(before) > 0 || len(s.services) > 0 {
		s.changed.Add(1)
	}
	// Run may be waiting for the source, whose changes a request has just taken.
	s.wakeUp()
}

// route updates the backends to the remote APIServices. A backend is kept if its spec
// is unchanged. The caller holds mu.
func (s *Server) route() {
	old := *s.remotes.Load()
	next := map[schema.GroupVersion]*backend{}
	same := true
	for _, service := range s.services {
		// The group of APIServices is always local: otherwise nobody could remove an
		// APIService that claims it.
		if service.Spec.Service == nil || service.Spec.Group == Group {
			continue
		}
		gv := schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}
		b := old[gv]
		if b == nil || b.uid != service.UID || !equality.Semantic.DeepEqual(b.spec, service.Spec) {
			same = false
			b = s.newBackend(service)
			s.watch(b)
		}
		b.observe(service)
		next[gv] = b
	}
	for gv, b := range old {
		if next[gv] != b {
			same = false
			b.stop()
		}
	}
	if !same {
		s.remotes.Store(&next)
	}
}

// watch starts the goroutine of a backend.
func (s *Server) watch(b *backend) {
	if s.running == nil || s.running.Err() != nil || b.watched {
		return
	}
	b.watched = true
	s.backends.Go(func() { b.run(s.running) })
	if !s.following {
		s.following = true
		s.backends.Go(func() { s.followNetwork(s.running) })
	}
}

// followNetwork notifies backends when their Services or EndpointSlices change.
func (s *Server) followNetwork(ctx context.Context) {
	for ctx.Err() == nil {
		if len(*s.remotes.Load()) > 0 {
			err := s.Network.Pull(ctx, func(reset bool, changes []resource.Change) {
				for _, b := range *s.remotes.Load() {
					if reset || slices.ContainsFunc(changes, b.concerns) {
						b.forgetAddress()
					}
				}
			})
			if err == nil {
				err = s.Network.Wait(ctx)
			}
			if err == nil {
				continue
			}
		}
		pause(ctx, nil, idleDelay)
	}
}

// Route implements kelson.Router.
func (s *Server) Route(w http.ResponseWriter, r *http.Request) bool {
	s.sync(r.Context())
	if b := s.backend(r); b != nil {
		b.proxy(w, r)
		return true
	}
	if req := request.From(r.Context()); req.IsResource {
		return false
	}
	if s.openapi.Serve(w, r) {
		return true
	}
	known, err := s.discovery.Serve(w, r)
	if err != nil {
		s.Fail(w, r, err)
	}
	return known
}

// backend returns the backend of a request, nil if the request is for this process.
func (s *Server) backend(r *http.Request) *backend {
	remotes := *s.remotes.Load()
	if len(remotes) == 0 {
		return nil
	}
	if req := request.From(r.Context()); req.IsResource {
		return remotes[schema.GroupVersion{Group: req.Group, Version: req.Version}]
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) == 3 && parts[0] == "apis":
		return remotes[schema.GroupVersion{Group: parts[1], Version: parts[2]}]
	case len(parts) == 2 && parts[0] == "api":
		return remotes[schema.GroupVersion{Version: parts[1]}]
	}
	return nil
}

// Paths implements kelson.Router.
func (s *Server) Paths() []string {
	paths := []string{"/apis", "/apis/"}
	for gv := range *s.remotes.Load() {
		paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.String())
	}
	return append(paths, s.openapi.Paths()...)
}
