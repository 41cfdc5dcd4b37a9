package apiserver

//lint:file-ignore SA1019 Endpoints are what older clients read

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/builtin/discovery"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/resource"
)

// shelf has objects by name.
type shelf struct {
	resource.Objects
	mu  sync.Mutex
	all map[string]resource.Object
}

// newServer returns a Server with its objects.
func newServer(catalog *resource.Catalog) (*shelf, *Server) {
	objects := &shelf{all: map[string]resource.Object{}}
	return objects, &Server{
		Catalog: func() *resource.Catalog { return catalog },
		Objects: func(_, _, _ string) resource.Objects { return objects },
		Running: new(sync.WaitGroup), Logger: slog.New(slog.DiscardHandler),
	}
}

func (s *shelf) Get(_ context.Context, _, name string) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if obj := s.all[name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
}

func (s *shelf) Has(ctx context.Context, namespace, name string) bool {
	_, err := s.Get(ctx, namespace, name)
	return err == nil
}

func (s *shelf) Create(_ context.Context, obj resource.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[obj.GetName()] = obj
	return nil
}

func (s *shelf) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
}

func (s *shelf) Update(ctx context.Context, namespace, name string, change func(resource.Object) error) error {
	obj, err := s.Get(ctx, namespace, name)
	if err != nil {
		return err
	}
	changed := obj.DeepCopyObject().(resource.Object)
	if err := change(changed); err != nil {
		return err
	}
	return s.Create(ctx, changed)
}

// A namespace that every cluster has comes back when somebody deletes it.
func TestNamespacesAreCreatedAgain(t *testing.T) {
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{core.Namespaces()}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		objects, s := newServer(catalog)
		ctx, stop := context.WithCancel(t.Context())
		if err := s.StartNamespaces(ctx); err != nil {
			t.Fatal(err)
		}
		const name = "kube-node-lease"
		kept := objects.all["default"]
		objects.remove(name)
		time.Sleep(namespacesEvery - time.Second)
		synctest.Wait()
		if objects.Has(ctx, "", name) {
			t.Error("a deleted namespace is back at once")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !objects.Has(ctx, "", name) || objects.all["default"] != kept {
			t.Error("a deleted namespace is not back, or another was created again")
		}
		stop()
		s.Running.Wait()
	})
}

// The endpoints of the service kubernetes come back when somebody deletes or changes them,
// also where no other server can share the store.
func TestEndpointsOfALoneServerAreKept(t *testing.T) {
	catalog, err := resource.NewCatalog(
		resource.Group{Resources: []resource.Definition{core.Namespaces(), core.Services(nil, slog.New(slog.DiscardHandler)), core.Endpoints()}},
		resource.Group{Name: "discovery.k8s.io", Resources: []resource.Definition{discovery.EndpointSlices()}},
	)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		_, server := newServer(catalog)
		shelves := map[string]*shelf{}
		for _, name := range []string{"services", "endpoints", "endpointslices"} {
			shelves[name] = &shelf{all: map[string]resource.Object{}}
		}
		server.Objects = func(_, _, name string) resource.Objects { return shelves[name] }
		s := NewService(ServiceConfig{Server: server, ClusterIP: "10.0.0.1", IP: "192.0.2.1", Port: 6443})
		ctx, stop := context.WithCancel(t.Context())
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		points := func(when string) {
			t.Helper()
			time.Sleep(endpointsEvery)
			synctest.Wait()
			endpoints, err := shelves["endpoints"].Get(ctx, "default", kubernetes)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			slice, err := shelves["endpointslices"].Get(ctx, "default", kubernetes)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			inSlice := slice.(*discoveryv1.EndpointSlice).Endpoints
			if got := addresses(endpoints.(*corev1.Endpoints)); len(got) != 1 || got[0] != s.IP || len(inSlice) != 1 || inSlice[0].Addresses[0] != s.IP {
				t.Errorf("%s: got endpoints %v and slice %v, want %s in both", when, got, inSlice, s.IP)
			}
		}
		shelves["endpoints"].remove(kubernetes)
		points("Endpoints were deleted")
		shelves["endpointslices"].remove(kubernetes)
		points("the EndpointSlice was deleted")
		if err := shelves["endpoints"].Update(ctx, "default", kubernetes, func(obj resource.Object) error {
			obj.(*corev1.Endpoints).Subsets[0].Addresses[0].IP = "192.0.2.9"
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		points("Endpoints were changed")
		stop()
		s.Running.Wait()
	})
}

// What servers behind this one have to believe comes back when somebody deletes it, and
// follows the certificates.
func TestTrustIsPublishedAgain(t *testing.T) {
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{core.Namespaces(), core.ConfigMaps()}})
	if err != nil {
		t.Fatal(err)
	}
	var authorities atomic.Pointer[[]byte]
	renew := func() {
		authority, err := pki.New()
		if err != nil {
			t.Fatal(err)
		}
		authorities.Store(new(authority.CertificatePEM()))
	}
	renew()
	synctest.Test(t, func(t *testing.T) {
		objects, s := newServer(catalog)
		ctx, stop := context.WithCancel(t.Context())
		again, err := s.StartTrust(ctx, func() (Trust, error) { return Trust{Clients: *authorities.Load()}, nil })
		if err != nil {
			t.Fatal(err)
		}
		published := func() string {
			obj, err := objects.Get(ctx, "", trustName)
			if err != nil {
				return ""
			}
			return obj.(*corev1.ConfigMap).Data[clientCAKey]
		}
		first := published()
		objects.remove(trustName)
		time.Sleep(trustEvery)
		synctest.Wait()
		if got := published(); first == "" || got != first {
			t.Errorf("after its deletion: got %q, want what was published before, %q", got, first)
		}
		renew()
		time.Sleep(trustEvery)
		synctest.Wait()
		if got := published(); !strings.Contains(got, string(*authorities.Load())) {
			t.Errorf("after a renewal: got %q, want the new authority in it", got)
		}
		renew()
		again()
		if got := published(); !strings.Contains(got, string(*authorities.Load())) {
			t.Errorf("after a renewal that was noticed: got %q, want the new authority in it", got)
		}
		stop()
		s.Running.Wait()
	})
}
