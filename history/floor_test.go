package history

import (
	"context"
	"testing"
	"time"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
)

// inNamespace allows everything in a namespace, and nothing elsewhere.
type inNamespace string

func (n inNamespace) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	if a.Namespace == string(n) {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// Who has rights in one namespace sees nothing of a former one of the same name, its own
// object included; who may list all of them does.
func TestHistoryBeginsWithTheNamespace(t *testing.T) {
	backend := memory.New(memory.Options{})
	defer backend.Close()
	key := storage.Root + "namespaces/team"
	former, err := backend.Create(t.Context(), key, []byte("former"), time.Duration(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := backend.Delete(t.Context(), key, former.ModRevision); err != nil {
		t.Fatal(err)
	}
	now, err := backend.Create(t.Context(), key, []byte("now"), time.Duration(0))
	if err != nil {
		t.Fatal(err)
	}
	namespaces := &resource.Served{Definition: &resource.Definition{Resource: "namespaces", StorageKey: "namespaces"}}
	maps := &resource.Served{Definition: &resource.Definition{Resource: "configmaps", StorageKey: "configmaps", Namespaced: true}}
	for name, c := range map[string]struct {
		authorizer authz.Authorizer
		question   question
		want       int64
	}{
		"the namespace itself":     {inNamespace("team"), question{served: namespaces, name: "team"}, now.CreateRevision},
		"what is in it":            {inNamespace("team"), question{served: maps, namespace: "team"}, now.CreateRevision},
		"one object in it":         {inNamespace("team"), question{served: maps, namespace: "team", name: "a"}, now.CreateRevision},
		"an administrator asks":    {nil, question{served: namespaces, name: "team"}, 0},
		"an administrator, inside": {nil, question{served: maps, namespace: "team"}, 0},
	} {
		p := &Pages{Authorizer: c.authorizer, Main: func() storage.Backend { return backend }}
		q := c.question
		q.user = &request.User{Name: "jane"}
		if _, _, err := p.parts(t.Context(), &q); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if q.floor != c.want {
			t.Errorf("%s: history begins at %d, want %d", name, q.floor, c.want)
		}
		if err := q.visible(former.ModRevision); (err != nil) != (c.want != 0) {
			t.Errorf("%s: the former namespace: got %v", name, err)
		}
	}
}
