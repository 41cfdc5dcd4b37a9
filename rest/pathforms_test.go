package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// codeOf sends a request, and returns 404 for a path that is not known.
func codeOf(t *testing.T, h *Handler, method, path, body string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // of a watch
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	info, err := request.Parse(r)
	if err != nil {
		return http.StatusBadRequest
	}
	req := &request.Request{Info: info, Received: time.Now(), Warned: &request.Warnings{}}
	w := httptest.NewRecorder()
	if !h.Route(w, r.WithContext(request.With(r.Context(), req))) {
		return http.StatusNotFound
	}
	return w.Code
}

// TestEveryMethodOnEveryFormOfPath sends every method to every form of path, of a kind that is a
// struct and of one that is a map. Both are answered alike but for what the exceptions name,
// which are kube-apiserver's, and what one refuses the other does not do.
func TestEveryMethodOnEveryFormOfPath(t *testing.T) {
	forms := []struct{ name, scoped, cluster string }{
		{"collection of all", "/%s", ""},
		{"collection", "/namespaces/ns/%s", "/%s"},
		{"object", "/namespaces/ns/%s/a", "/%s/a"},
		{"no object", "/namespaces/ns/%s/none", "/%s/none"},
		{"object without namespace", "/%s/a", "/namespaces/ns/%s/a"},
		{"no subresource", "/namespaces/ns/%s/a/none", "/%s/a/none"},
		{"subresource without name", "/namespaces/ns/%s//none", "/%s//none"},
		{"too long", "/namespaces/ns/%s/a/b/c", "/%s/a/b/c"},
		{"watch of all", "/watch/%s", ""},
		{"watch", "/watch/namespaces/ns/%s", "/watch/%s"},
		{"watch of one", "/watch/namespaces/ns/%s/a", "/watch/%s/a"},
		{"proxy", "/proxy/namespaces/ns/%s/a", "/proxy/%s/a"},
	}
	for _, namespaced := range []bool{true, false} {
		for _, form := range forms {
			path := form.scoped
			if !namespaced {
				path = form.cluster
			}
			if path == "" {
				continue
			}
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "get", "Post", "delete"} {
				structs, _ := serve(t, func(def *resource.Definition) { def.Namespaced = namespaced })
				maps, _ := serve(t, func(def *resource.Definition) { things(def); def.Namespaced = namespaced })
				var codes [2]int
				for i, c := range []struct {
					h                     *Handler
					root, resource, about string
				}{
					{structs, "/api/v1", "configmaps", `"apiVersion":"v1","kind":"ConfigMap"`},
					{maps, "/apis/example.com/v1", "things", `"apiVersion":"example.com/v1","kind":"Thing"`},
				} {
					collection := c.root + "/" + c.resource
					if namespaced {
						collection = c.root + "/namespaces/ns/" + c.resource
					}
					do(t, c.h, "POST", collection, "{"+c.about+`,"metadata":{"name":"a"}}`)
					codes[i] = codeOf(t, c.h, method, c.root+fmt.Sprintf(path, c.resource), "{"+c.about+`,"metadata":{"name":"reserved"}}`)
					made := codeOf(t, c.h, "GET", collection+"/reserved", "") == 200
					if want := form.name == "collection" && method == "POST"; made != want {
						t.Errorf("%s %s: got an object made %v, want %v", method, c.root+path, made, want)
					}
				}
				want := codes[0]
				switch { // paths of maps come and go: they are not told apart by their methods
				case method == "HEAD" && want == 405 && codes[1] == 200:
					want = 200 // without a body
				case want == 405 && form.name == "collection of all" || want == 405 && method == "HEAD":
					want = 404
				case want == 405 && form.name == "collection" && (method == "PUT" || method == "PATCH"):
					want = 400
				}
				if codes[1] != want {
					t.Errorf("%s on %s, namespaced %v: got %d for a struct and %d for a map, want %d", method, form.name, namespaced, codes[0], codes[1], want)
				}
			}
		}
	}
}

// nameKeeper notes the names that plugins and their objects have.
type nameKeeper struct{ names []string }

func (*nameKeeper) Name() string                  { return "NameKeeper" }
func (*nameKeeper) Handles(admission.Target) bool { return true }

func (k *nameKeeper) Admit(_ context.Context, a *admission.Attributes) error {
	k.names = append(k.names, "admit "+a.Name)
	return nil
}

func (k *nameKeeper) Validate(_ context.Context, a *admission.Attributes) error {
	k.names = append(k.names, "validate "+a.Name)
	if name := a.Object.(resource.Object).GetName(); name != a.Name {
		k.names = append(k.names, "for an object named "+name)
	}
	return nil
}

// TestPluginsSeeTheNameThatIsStored has the names of two attempts taken by others.
func TestPluginsSeeTheNameThatIsStored(t *testing.T) {
	for name, define := range map[string]func(*resource.Definition){"struct": nil, "map": func(def *resource.Definition) { things(def); def.Namespaced = true }} {
		h, backend := serve(t, define)
		keeper := &nameKeeper{}
		h.Admission = admission.NewChain(keeper)
		path, body := configMaps, `{"metadata":{"generateName":"g-"}}`
		if name == "map" {
			path, body = "/apis/example.com/v1/namespaces/ns/things", `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"generateName":"g-"}}`
		}
		collisions := &collidingBackend{Backend: backend, left: 2}
		objects, err := store.Open(t.Context(), collisions, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(objects.Close)
		h.Store = objects
		a := do(t, h, "POST", path, body)
		stored, _ := a.meta("name").(string)
		if a.code != 201 || stored == "" || len(collisions.taken) != 2 {
			t.Fatalf("%s: got %d %s after %q were taken", name, a.code, a.body, collisions.taken)
		}
		want := []string{"admit ", "validate " + collisions.taken[0], "admit ", "validate " + collisions.taken[1], "admit ", "validate " + stored}
		if !slices.Equal(keeper.names, want) {
			t.Errorf("%s: got %q, want %q", name, keeper.names, want)
		}
	}
}

// collidingBackend has every key already, some times.
type collidingBackend struct {
	storage.Backend
	left  int
	taken []string
}

func (b *collidingBackend) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (storage.KeyValue, error) {
	if b.left == 0 {
		return b.Backend.Create(ctx, key, value, ttl)
	}
	b.left--
	b.taken = append(b.taken, key[strings.LastIndexByte(key, '/')+1:])
	return storage.KeyValue{}, storage.ErrExists
}
