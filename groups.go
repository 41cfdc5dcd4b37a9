package kelson

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authn"
	authndelegated "github.com/apikeel/kelson/authn/delegated"
	authzdelegated "github.com/apikeel/kelson/authz/delegated"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// API is a Router for the resources of a catalog: the verbs, discovery and OpenAPI.
type API struct {
	catalog   func() *resource.Catalog
	rest      *rest.Handler
	discovery *discovery.Handler
	openapi   *openapi.Handler
}

// NewAPI returns an API; catalog is called for each request. With the gate
// CBORServingAndStorage, its OpenAPI documents name CBOR.
func NewAPI(catalog func() *resource.Catalog, resources *rest.Handler, gates features.Gates) *API {
	a := &API{
		catalog:   catalog,
		rest:      resources,
		discovery: discovery.New(catalog, func(r *http.Request) string { return r.Host }),
		openapi:   openapi.New(catalog, openapi.Config{Log: resources.Logger, CBOR: gates.Enabled(features.CBOR)}),
	}
	a.discovery.NoHashes = !gates.Enabled(features.StorageVersionHash)
	return a
}

// Route implements Router.
func (a *API) Route(w http.ResponseWriter, r *http.Request) bool {
	if a.rest.Route(w, r) || a.openapi.Serve(w, r) {
		return true
	}
	if known, err := a.discovery.Serve(w, r); known {
		if err != nil {
			rest.WriteError(w, r, err, a.rest)
		}
		return true
	}
	return false
}

// Paths implements Router.
func (a *API) Paths() []string {
	paths := a.openapi.Paths()
	for _, g := range a.catalog().Groups() {
		root := "/api"
		if g.Name != "" {
			root = "/apis/" + g.Name
			paths = append(paths, "/apis")
		}
		paths = append(paths, root)
		for i := range g.Versions {
			paths = append(paths, root+"/"+g.Versions[i].Name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// NotFound answers a request below /api or a served group, for a path that does not exist,
// with a Status. It returns false for other paths.
func (a *API) NotFound(w http.ResponseWriter, r *http.Request) bool {
	path, inGroup := strings.CutPrefix(r.URL.Path, "/apis/")
	group, _, _ := strings.Cut(path, "/")
	g, known := a.catalog().Group(group)
	served := known && group != "" && len(g.Versions) > 0
	if served && len(g.Versions[0].Resources) > 0 {
		served = !g.Versions[0].Resources[0].Unstructured // custom resources answer such requests themselves
	}
	if inGroup && !served || !inGroup && !strings.HasPrefix(path, "/api/") {
		return false
	}
	rest.WriteError(w, r, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
	}}, a.rest)
	return true
}

// ending is an API at the end of its chain: it also answers NotFound.
type ending struct{ *API }

// Route implements Router.
func (e ending) Route(w http.ResponseWriter, r *http.Request) bool {
	return e.API.Route(w, r) || e.NotFound(w, r)
}

// prepareGroups makes the API for Groups.
func (s *Server) prepareGroups() error {
	if len(s.Groups) == 0 {
		return nil
	}
	if s.API != nil {
		return fmt.Errorf("server %q has Groups and an API: it is one or the other", s.Name)
	}
	groups, err := resource.WithGates(resource.ServedWith(s.Groups, s.Gates), s.Gates)
	if err != nil {
		return err
	}
	catalog, err := resource.NewCatalog(groups...)
	if err != nil {
		return err
	}
	backend := s.Storage
	if backend == nil {
		backend = memory.New(memory.Options{})
	}
	mem := s.memory()
	objects, err := store.Open(context.Background(), backend, store.Options{Logger: s.Logger}.Within(mem))
	if err == nil {
		s.Close = append(s.Close, func() error { objects.Close(); return nil })
	}
	if s.Storage == nil {
		s.Close = append(s.Close, backend.Close)
	}
	if err != nil {
		return err
	}
	get := func() *resource.Catalog { return catalog }
	s.objects.Store(&rest.Handler{
		Catalog: get, Store: objects, Owners: &managedfields.Owners{}, Memory: mem, Logger: s.Logger,
		Admission: admission.NewChain(s.Admission...), Authorizer: s.Authorizer,
		NoUnsafeDeletes: !s.Gates.Enabled(features.UnsafeDeletes), NoCompression: !s.Gates.Enabled(features.Compression),
		NoWatchCompression: !s.Gates.Enabled(features.WatchCompression),
	})
	s.API = ending{NewAPI(get, s.objects.Load(), s.Gates)}
	s.HealthChecks = append(s.HealthChecks, HealthCheck{Name: "etcd", Check: func(ctx context.Context) error {
		_, err := backend.Revision(ctx)
		return err
	}})
	return nil
}

// Objects returns access to the objects of a resource in Groups, for admission plugins, hooks
// and handlers. It can be called at any time; requests fail until the server is prepared.
func (s *Server) Objects(group, name string) resource.Objects {
	if h := s.objects.Load(); h != nil {
		return h.Objects(group, name)
	}
	return unprepared{}
}

// DelegateTo makes another API server, the one that aggregates this one, authenticate and
// authorize users. kubeconfig is a file; "" uses the in-cluster configuration. Fields that are
// set already, such as Authorizer, are kept.
func (s *Server) DelegateTo(ctx context.Context, kubeconfig string) error {
	parent, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return configfile.Unquoted(err)
	}
	if s.Authenticate == nil {
		a, err := authndelegated.New(ctx, parent, s.Logger)
		if err != nil {
			return err
		}
		s.Authenticate, s.Strip, s.ConnContext, s.Serving.ClientCAs = a.User, a.Strip, authn.WithConnection, a.ClientCAs
		s.PostStartHooks = append(s.PostStartHooks, Hook{Name: "start-delegated-authentication", Run: func(ctx context.Context) error {
			go a.Watch(ctx)
			return nil
		}})
	}
	if s.Authorizer == nil {
		s.Authorizer, err = authzdelegated.New(parent, s.Logger)
	}
	return err
}

// errUnprepared is the error of requests before the server is prepared.
var errUnprepared = errors.New("the server is not prepared")

// unprepared implements resource.Objects for a server that is not prepared.
type unprepared struct{}

func (unprepared) Get(context.Context, string, string) (resource.Object, error) {
	return nil, errUnprepared
}
func (unprepared) List(context.Context, string) ([]resource.Object, error) {
	return nil, errUnprepared
}
func (u unprepared) Cached() resource.Lister                     { return u }
func (unprepared) Has(context.Context, string, string) bool      { return false }
func (unprepared) Create(context.Context, resource.Object) error { return errUnprepared }
func (unprepared) Update(context.Context, string, string, func(resource.Object) error) error {
	return errUnprepared
}
func (unprepared) Delete(context.Context, string, string, metav1.DeleteOptions) error {
	return errUnprepared
}

// memory returns the memory that the server may use.
func (s *Server) memory() *budget.Memory {
	if s.Memory != nil {
		return s.Memory
	}
	return budget.Default()
}
