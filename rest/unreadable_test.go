package rest

import (
	"strings"
	"testing"

	"github.com/apikeel/kelson/store"
)

// An object that cannot be read is there nevertheless: what would have to leave it
// out is refused, and it goes only if somebody wants just that.
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
	const (
		why  = `no kind "ConfigMap" is registered for version "v0" in scheme "pkg/runtime/scheme.go:111"`
		busy = "storage is (re)initializing: failed to list <unspecified>: failed to read one or more configmaps from the storage: " +
			"StorageError: corrupt object, Code: 7, Key: /registry/configmaps/ns/b, ResourceVersion: 0, AdditionalErrorMsg: object not decodable"
	)
	for _, c := range []struct {
		method, path, body string
		code               int
		reason             string
		message            string // a part of it
	}{
		{"GET", "", "", 500, "StorageReadError", "failed to read one or more configmaps from the storage: StorageError: corrupt object, Code: 7, Key: /registry/configmaps/ns/b,"},
		{"GET", "?labelSelector=x", "", 500, "StorageReadError", "(and 1 more)"},
		{"GET", "?resourceVersion=0", "", 429, "TooManyRequests", "(and 1 more)"},
		{"GET", "?watch=1", "", 429, "TooManyRequests", busy},
		{"GET", "?limit=1", "", 200, "", ""},
		{"GET", "?limit=2", "", 500, "StorageReadError", "Key: /registry/configmaps/ns/b,"},
		{"GET", "?limit=3", "", 500, "StorageReadError", "(and 1 more)"},
		{"DELETE", "", "", 500, "StorageReadError", "(and 1 more)"},
		{"DELETE", "?labelSelector=x", "", 500, "StorageReadError", "(and 1 more)"},
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
		{"GET", "", "", 500, "StorageReadError", "configmaps/ns/c"},
		{"DELETE", "/c" + unsafe, "", 200, "", ""},
		{"GET", "", "", 200, "", ""},
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
		{"GET", "", "", 500, why},
		{"GET", "?resourceVersion=0", "", 429, "storage is (re)initializing: failed to list <unspecified>: " + why},
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

// TestUnreadableObjectSpoilsItsListsOnly asks for lists of a resource with an object that
// cannot be read. Where a list is read without the cache, other namespaces do not matter.
func TestUnreadableObjectSpoilsItsListsOnly(t *testing.T) {
	const elsewhere = "/api/v1/namespaces/kube-system/configmaps"
	for _, c := range []struct {
		path          string
		fresh, loaded int // the codes if the object was there first, or came when the resource was loaded
	}{
		{configMaps, 429, 500},
		{configMaps + "?limit=5", 500, 500},
		{configMaps + "?limit=5&labelSelector=x", 429, 500},
		{elsewhere, 429, 200},
		{elsewhere + "?limit=5", 200, 200},
	} {
		for _, loaded := range []bool{false, true} {
			h, backend := serve(t, nil)
			want := c.fresh
			if loaded {
				do(t, h, "GET", configMaps, "")
				want = c.loaded
			}
			if _, err := backend.Create(t.Context(), "/registry/configmaps/ns/b", []byte(`{"apiVersion":"v0","kind":"ConfigMap","metadata":{"name":"b"}}`), 0); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if a := do(t, h, "GET", c.path, ""); a.code != want {
					t.Errorf("GET %s, loaded before: %v: got %d %s, want %d", c.path, loaded, a.code, a.message(), want)
				}
			}
		}
	}
}

// TestUnreadableObjectSpoilsItsPage: a list in pages comes to the object that cannot be read, however often
// it is asked for.
func TestUnreadableObjectSpoilsItsPage(t *testing.T) {
	h, backend := serve(t, nil)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		stored := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
		if name == "e" {
			stored = strings.Replace(stored, "v1", "v0", 1)
		}
		if _, err := backend.Create(t.Context(), "/registry/configmaps/ns/"+name, []byte(stored), 0); err != nil {
			t.Fatal(err)
		}
	}
	s, err := store.Open(t.Context(), backend, store.Options{ValueBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	h.Store = s
	for i := range 20 {
		token := ""
		for page, want := range []int{200, 200, 500} {
			a := do(t, h, "GET", configMaps+"?limit=2&continue="+token, "")
			if token, _ = a.meta("continue").(string); a.code != want || (token == "") != (want == 500) {
				t.Fatalf("list %d, page %d: got %d %q %s, want %d", i, page, a.code, token, a.message(), want)
			}
		}
	}
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
