package aggregator

import (
	"context"
	"crypto/tls"
	"log/slog"
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

// Config says what a Server works with.
type Config struct {
	// Services tells of APIServices, Network of services and endpoint slices.
	Services, Network resource.Follower
	// Objects reads services and endpoint slices, from memory.
	Objects func(group, resource string) resource.Lister
	// Loopback carries requests of the server itself to this server: it writes
	// APIServices.
	Loopback http.RoundTripper
	// Create, unless it is nil, is a shorter way to make those that there are when
	// the server starts.
	Create func(ctx context.Context, service resource.Object) error
	// Dial is how services are reached; nil is directly.
	Dial egress.Dial
	// Catalog is what this process serves, and Settled returns when that includes
	// all custom resources.
	Catalog func() *resource.Catalog
	Settled func(ctx context.Context) error
	// Routes are other paths of this process that OpenAPI describes.
	Routes []openapi.Route

	// EndpointRouting sends requests to endpoints of services instead of their
	// cluster IPs: --enable-aggregator-routing.
	EndpointRouting bool
	// Resolve finds the address of a service, if it is not to be found as above;
	// nil, or an error that it returns, is no address.
	Resolve func(ctx context.Context, namespace, name string, port int32) (*url.URL, error)
	// Certificate is what other servers know this one by: --proxy-client-cert-file
	// and --proxy-client-key-file. It is called for each connection.
	Certificate func() (*tls.Certificate, error)
	// ForwardRedirects passes redirects on to clients:
	// --aggregator-reject-forwarding-redirect=false.
	ForwardRedirects bool

	// Certificates looks at those of other servers; nil does not.
	Certificates *servercert.Counter
	// Fail answers a request with an error.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
	// Logger gets what operators want to know; nil discards it.
	Logger *slog.Logger
}

// Server is the first in the chain of servers: it passes requests on to others,
// and tells what all of them serve. It implements kelson.Router.
type Server struct {
	Config
	discovery *discovery.Handler
	openapi   *openapi.Handler

	// remotes are the backends by what they serve: what a request looks at.
	remotes atomic.Pointer[map[schema.GroupVersion]*backend]
	// changed is counted up when what is told about groups is no longer true.
	changed atomic.Int64
	wake    chan struct{} // what is served here, or an APIService, has changed
	// interrupt ends the wait for changes that Run is in; nil before the first.
	interrupt atomic.Pointer[context.CancelFunc]

	mu       sync.Mutex
	services map[string]*apiregistration.APIService
	running  context.Context // nil while no backend is to be watched
	backends sync.WaitGroup
	started  bool // everything served at the start has been registered
	// following: changes of services and endpoint slices are followed, which begins
	// with the first backend.
	following bool

	pieces    sync.Pool // of bodies
	merging   sync.Mutex
	merged    merged
	described described
}

// New returns a server. Nothing happens before Run, except that requests are
// passed on to those who are known to be available.
func New(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{Config: cfg, services: map[string]*apiregistration.APIService{}, wake: make(chan struct{}, 1)}
	s.remotes.Store(&map[schema.GroupVersion]*backend{})
	s.discovery = discovery.New(cfg.Catalog, func(r *http.Request) string { return r.Host })
	s.discovery.Merge(s.mergedDiscovery)
	s.openapi = openapi.New(cfg.Catalog, openapi.Config{Log: cfg.Logger, Remote: s.documents, Routes: cfg.Routes})
	return s
}

// Available tells of each APIService that is known whether it is available.
func (s *Server) Available() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]bool, len(s.services))
	for name, service := range s.services {
		all[name] = isAvailable(service)
	}
	return all
}

// Discovery returns the handler of what is told about all groups.
func (s *Server) Discovery() *discovery.Handler { return s.discovery }

// OpenAPI returns the handler of the documents about all groups.
func (s *Server) OpenAPI() *openapi.Handler { return s.openapi }

// Changed tells that the catalog has changed.
func (s *Server) Changed() {
	s.changed.Add(1)
	s.wakeUp()
}

// wakeUp makes Run look again.
func (s *Server) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if interrupt := s.interrupt.Load(); interrupt != nil {
		(*interrupt)()
	}
}

// Run keeps APIServices current, and watches backends, until ctx ends.
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
	// Who wakes it up from now on ends the wait; who did before has left a mark.
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

// sync takes over everything that was acknowledged by now. What cannot be known
// stays as it was.
func (s *Server) sync(ctx context.Context) {
	if s.Services.Current() {
		return
	}
	if err := s.Services.Pull(ctx, s.apply); err != nil && ctx.Err() == nil {
		s.Logger.Warn("APIServices cannot be read", "error", err)
	}
}

// apply takes over changes of APIServices.
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
			s.services[service.Name] = service
		}
	}
	s.route()
	if len(before) > 0 || len(s.services) > 0 {
		s.changed.Add(1)
	}
	// A request that needed the news took it from under Run, which would wait for
	// more.
	s.wakeUp()
}

// route makes the backends those of the remote services. One stays as long as
// the specification is the same.
func (s *Server) route() {
	old := *s.remotes.Load()
	next := map[schema.GroupVersion]*backend{}
	same := true
	for _, service := range s.services {
		// APIServices themselves are always to be had here, or nobody could take
		// back what locks them out.
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
		b.see(service)
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

// watch begins to watch a backend.
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

// followNetwork tells backends when what they are found by has changed.
func (s *Server) followNetwork(ctx context.Context) {
	for ctx.Err() == nil {
		if len(*s.remotes.Load()) > 0 {
			err := s.Network.Pull(ctx, func(reset bool, changes []resource.Change) {
				for _, b := range *s.remotes.Load() {
					if reset || slices.ContainsFunc(changes, b.concerns) {
						b.moved()
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

// backend returns who a request is passed on to, nil if it is for this process.
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
