package apiserver

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/resource"
)

// shelf has objects by name.
type shelf struct {
	resource.Objects
	mu  sync.Mutex
	all map[string]resource.Object
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

// A namespace that every cluster has comes back when somebody deletes it.
func TestNamespacesAreCreatedAgain(t *testing.T) {
	catalog, err := resource.NewCatalog(resource.Group{Resources: []resource.Definition{core.Namespaces()}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		objects := &shelf{all: map[string]resource.Object{}}
		s := &Server{
			Catalog: func() *resource.Catalog { return catalog },
			Objects: func(_, _, _ string) resource.Objects { return objects },
			Running: new(sync.WaitGroup), Logger: slog.New(slog.DiscardHandler),
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := s.StartNamespaces(ctx); err != nil {
			t.Fatal(err)
		}
		const name = "kube-node-lease"
		kept := objects.all["default"]
		delete(objects.all, name)
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
