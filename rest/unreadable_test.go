package rest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// An object that cannot be decoded is there nevertheless: lists and watches leave it out,
// and it goes only if somebody wants just that.
func TestUnreadable(t *testing.T) {
	const unsafe = "?ignoreStoreReadErrorWithClusterBreakingPotential=true"
	h, backend := serve(t, nil)
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	do(t, h, "GET", configMaps, "") // the resource is loaded when the other one comes
	for _, name := range []string{"b", "c"} {
		stored := `{"apiVersion":"v0","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
		if _, err := backend.Create(t.Context(), "/registry/configmaps/ns/"+name, []byte(stored), 0); err != nil {
			t.Fatal(err)
		}
	}
	const why = `no kind "ConfigMap" is registered for version "v0" in scheme "pkg/runtime/scheme.go:111"`
	for _, c := range []struct {
		method, path, body string
		code               int
		reason             string
		message            string // a part of it
	}{
		{"GET", "", "", 200, "", ""},
		{"GET", "?labelSelector=x", "", 200, "", ""},
		{"GET", "?resourceVersion=0", "", 200, "", ""},
		{"GET", "?limit=1", "", 200, "", ""},
		{"GET", "?limit=2", "", 200, "", ""},
		{"DELETE", "?labelSelector=x", "", 200, "", ""},
		{"GET", "/a", "", 200, "", ""},
		{"PUT", "/a", `{"metadata":{"name":"a"},"data":{"k":"v"}}`, 200, "", ""},
		{"GET", "/b", "", 500, "InternalError", "Key: /configmaps/ns/b, ResourceVersion: 0, AdditionalErrorMsg: object not decodable revision="},
		{"GET", "/none", "", 404, "NotFound", ""},
		{"PUT", "/b", `{"metadata":{"name":"b"}}`, 500, "", why},
		{"POST", "", `{"metadata":{"name":"b"}}`, 409, "AlreadyExists", ""},
		{"DELETE", "/b", "", 500, "InternalError", why},
		{"DELETE", "/a" + unsafe, "", 409, "Conflict", "the object is decodable from storage"},
		{"DELETE", "/none" + unsafe, "", 404, "NotFound", ""},
		{"DELETE", "/b" + unsafe + "&dryRun=All", "", 200, "", ""},
		{"GET", "/b", "", 500, "InternalError", why},
		{"DELETE", "/b" + unsafe, "", 200, "", ""},
		{"GET", "/b", "", 404, "NotFound", ""},
		{"GET", "", "", 200, "", ""},
		{"DELETE", "?dryRun=All", "", 200, "", ""},
		{"GET", "/c", "", 500, "InternalError", why},
		{"DELETE", "", "", 200, "", ""},
		{"GET", "/c", "", 404, "NotFound", ""},
		{"GET", "/a", "", 404, "NotFound", ""},
	} {
		a := do(t, h, c.method, configMaps+c.path, c.body)
		reason, _ := a.object["reason"].(string)
		if a.code != c.code || reason != c.reason || !strings.Contains(a.message(), c.message) {
			t.Errorf("%s %s: %d %s %q, want %d %s …%q…", c.method, c.path, a.code, reason, a.message(), c.code, c.reason, c.message)
		}
	}
}

// TestUnreadableWithoutUnsafeDeletes has the answers with AllowUnsafeMalformedObjectDeletion
// off: the option of deletes does nothing, and errors have only the cause.
func TestUnreadableWithoutUnsafeDeletes(t *testing.T) {
	const (
		unsafe = "?ignoreStoreReadErrorWithClusterBreakingPotential=true"
		why    = `no kind "ConfigMap" is registered for version "v0" in scheme "pkg/runtime/scheme.go:111"`
	)
	h, backend := serve(t, nil)
	h.NoUnsafeDeletes = true
	do(t, h, "GET", configMaps, "")
	if _, err := backend.Create(t.Context(), "/registry/configmaps/ns/b", []byte(`{"apiVersion":"v0","kind":"ConfigMap","metadata":{"name":"b"}}`), 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, path, body string
		code               int
		message            string
	}{
		{"GET", "", "", 200, ""},
		{"GET", "/b", "", 500, why},
		{"PUT", "/b", `{"metadata":{"name":"b"}}`, 500, why},
		{"DELETE", "/b", "", 500, why},
		{"DELETE", "/b" + unsafe, "", 500, why},
		{"DELETE", unsafe, "", 500, why},
		{"GET", "/b", "", 500, why},
	} {
		if a := do(t, h, c.method, configMaps+c.path, c.body); a.code != c.code || a.message() != c.message {
			t.Errorf("%s %s: got %d %q, want %d %q", c.method, c.path, a.code, a.message(), c.code, c.message)
		}
	}
}

// unreadableValues are stored bytes that nobody can decode as an object of the kind.
func unreadableValues(apiVersion, kind string) map[string]string {
	return map[string]string{
		"other-kind":    `{"apiVersion":"` + apiVersion + `","kind":"Other","metadata":{"name":"x"}}`,
		"other-version": `{"apiVersion":"` + apiVersion + `9","kind":"` + kind + `","metadata":{"name":"x"}}`,
		"other-group":   `{"apiVersion":"other.com/v1","kind":"` + kind + `","metadata":{"name":"x"}}`,
		"garbage":       "\x01\x02\x03", "envelope": "k8s\x00\xff", "cbor": "\xd9\xd9\xf7\xff", "list": "[]", "null": "null", "half": `{"kind":`, "empty": "",
	}
}

// TestUnreadableObjectsAreLeftOut starts with a store that has such objects, and gets some when
// it runs. Lists and watches have the others, in pages too, and all go with their collection.
func TestUnreadableObjectsAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		define                       func(*resource.Definition)
		path, key, apiVersion, thing string
	}{
		"struct": {nil, configMaps, "/registry/configmaps/ns/", "v1", "ConfigMap"},
		"map":    {things, thingsPath, "/registry/example.com/things/", "example.com/v1", "Thing"},
	} {
		for _, when := range []string{"before", "loaded", "bounded"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				h, backend := serve(t, c.define)
				put := func(name, value string) {
					t.Helper()
					if _, err := backend.Create(t.Context(), c.key+name, []byte(value), 0); err != nil {
						t.Fatal(err)
					}
				}
				if when == "loaded" {
					do(t, h, "GET", c.path, "")
				}
				for _, name := range []string{"a", "m", "z"} {
					put(name, `{"apiVersion":"`+c.apiVersion+`","kind":"`+c.thing+`","metadata":{"name":"`+name+`","namespace":"ns"}}`)
				}
				for name, value := range unreadableValues(c.apiVersion, c.thing) {
					put(name, value)
				}
				if when == "bounded" {
					s, err := store.Open(t.Context(), backend, store.Options{ValueBytes: 1 << 20})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(s.Close)
					h.Store = s
				}
				for _, query := range []string{"", "?resourceVersion=0", "?limit=100", "?labelSelector=!x", "?fieldSelector=metadata.name!=x"} {
					if a := do(t, h, "GET", c.path+query, ""); a.code != 200 || strings.Count(a.body, `"name":`) != 3 {
						t.Errorf("list %s: got %d %s, want 3 objects", query, a.code, a.body)
					}
				}
				var read []string
				for token, pages := "", 0; ; pages++ {
					a := do(t, h, "GET", c.path+"?limit=1&continue="+token, "")
					items, _ := a.object["items"].([]any)
					if a.code != 200 || len(items) > 1 || pages > 20 {
						t.Fatalf("page %d: got %d %s", pages, a.code, a.body)
					}
					for _, item := range items {
						read = append(read, item.(map[string]any)["metadata"].(map[string]any)["name"].(string))
					}
					if token, _ = a.meta("continue").(string); token == "" {
						break
					}
				}
				if want := []string{"a", "m", "z"}; !slices.Equal(read, want) {
					t.Errorf("pages: got %q, want %q", read, want)
				}
				if a := do(t, h, "GET", c.path+"/garbage", ""); a.code != 500 {
					t.Errorf("object: got %d %s, want 500", a.code, a.body)
				}
				if a := do(t, h, "DELETE", c.path, ""); a.code != 200 {
					t.Errorf("delete of all: got %d %s, want 200", a.code, a.body)
				}
				if page, err := backend.List(t.Context(), c.key, storage.ListOptions{}); err != nil || len(page.Items) > 0 {
					t.Errorf("after the delete of all: got %d objects, %v, want none", len(page.Items), err)
				}
			})
		}
	}
}

// TestUndecryptableObjectSpoilsItsLists: of what cannot be decrypted nothing is known, so that
// nobody is told that it is not there.
func TestUndecryptableObjectSpoilsItsLists(t *testing.T) {
	h, backend := serve(t, nil)
	s, err := store.Open(t.Context(), lockedBackend{backend}, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	h.Store = s
	for _, name := range []string{"a", "locked"} {
		if _, err := backend.Create(t.Context(), "/registry/configmaps/ns/"+name, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`+name+`"}}`), 0); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]int{configMaps: 429, configMaps + "?limit=5": 500, "/api/v1/namespaces/kube-system/configmaps": 429,
		"/api/v1/namespaces/kube-system/configmaps?limit=5": 200, configMaps + "/a": 200, configMaps + "/locked": 500} {
		if a := do(t, h, "GET", path, ""); a.code != want {
			t.Errorf("GET %s: got %d %s, want %d", path, a.code, a.message(), want)
		}
	}
}

// lockedBackend is a backend in which objects named locked cannot be decrypted.
type lockedBackend struct{ storage.Backend }

var errLocked = errors.New("no key")

func (b lockedBackend) lock(kv *storage.KeyValue) error {
	if strings.HasSuffix(kv.Key, "/locked") {
		kv.Value, kv.Err = nil, errLocked
	}
	return kv.Err
}

func (b lockedBackend) Get(ctx context.Context, key string) (storage.KeyValue, error) {
	kv, err := b.Backend.Get(ctx, key)
	return kv, cmp.Or(err, b.lock(&kv))
}

func (b lockedBackend) List(ctx context.Context, prefix string, opts storage.ListOptions) (storage.Page, error) {
	page, err := b.Backend.List(ctx, prefix, opts)
	page.Items = slices.Clone(page.Items)
	for i := range page.Items {
		_ = b.lock(&page.Items[i])
	}
	return page, err
}

// Objects of all namespaces are not deleted at once.
func TestDeleteOfAllNamespaces(t *testing.T) {
	h, _ := serve(t, nil)
	do(t, h, "POST", configMaps, `{"metadata":{"name":"a"}}`)
	if a := do(t, h, "DELETE", "/api/v1/configmaps", ""); a.code != 405 {
		t.Errorf("%d %s", a.code, a.body)
	}
	if a := do(t, h, "GET", configMaps+"/a", ""); a.code != 200 {
		t.Errorf("%d %s", a.code, a.body)
	}
}

// TestObjectsThatAreNotConvertedAreNotLeftOut: while a conversion webhook does not answer, nobody is told
// that there are no objects: the garbage collector would delete what belongs to them. All are back when
// it answers.
func TestObjectsThatAreNotConvertedAreNotLeftOut(t *testing.T) {
	var away atomic.Bool
	h, backend := serve(t, func(def *resource.Definition) {
		things(def)
		def.Fields = []resource.Field{{Path: "metadata.name", Get: resource.Object.GetName}}
		old := def.Versions[0]
		old.Name = "v0"
		old.ToHub = func(obj resource.Object) (resource.Object, error) {
			if away.Load() {
				return nil, errors.New("the webhook does not answer")
			}
			obj.(*unstructured.Unstructured).SetAPIVersion("example.com/v1")
			return obj, nil
		}
		old.FromHub = func(obj resource.Object) (resource.Object, error) { return obj, nil }
		def.Versions = append(def.Versions, old)
	})
	for name, version := range map[string]string{"a": "v0", "b": "v1"} {
		value := `{"apiVersion":"example.com/` + version + `","kind":"Thing","metadata":{"name":"` + name + `"}}`
		if _, err := backend.Create(t.Context(), "/registry/example.com/things/"+name, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	const path = "/apis/example.com/v1/things"
	away.Store(true)
	for range 2 {
		for _, query := range []string{"", "?resourceVersion=0", "?limit=1", "?limit=100", "?watch=1&timeoutSeconds=1", "?labelSelector=!x", "/a"} {
			if a := do(t, h, "GET", path+query, ""); a.code != 429 && a.code != 500 {
				t.Errorf("GET %s while the webhook is away: got %d %s, want an error", query, a.code, a.body)
			}
		}
		if a := do(t, h, "DELETE", path, ""); a.code != 429 && a.code != 500 {
			t.Errorf("delete of all while the webhook is away: got %d %s, want an error", a.code, a.body)
		}
	}
	if a := do(t, h, "GET", path+"/b", ""); a.code != 200 {
		t.Errorf("an object of the newest version: got %d %s, want 200", a.code, a.body)
	}
	away.Store(false)
	polltest.Until(t, "both objects are listed", func() bool {
		a := do(t, h, "GET", path, "")
		return a.code == 200 && strings.Count(a.body, `"name":`) == 2
	})
}
