package controlplane

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/wire"
)

// run starts a server on what prepare stores, without waiting until it is ready, and
// returns a client that returns the code and body of an answer.
func run(t *testing.T, config Config, prepare func(storage.Backend)) (storage.Backend, func(method, path, body string) (int, string)) {
	t.Helper()
	config.Storage, config.Controllers, config.SecurePort, config.NoFolder = StorageMemory, []string{"-*"}, new(int), true
	if err := config.complete(); err != nil {
		t.Fatal(err)
	}
	backend, err := config.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	prepare(backend)
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	server, err := config.Server(t.Context(), backend, authority)
	if err != nil {
		t.Fatal(err)
	}
	server.Addr, server.Serving.HTTP2Server = "127.0.0.1:0", http2test.Chosen()
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v, want none", err)
		}
	})
	client := &http.Client{Transport: server.Loopback(loopbackUser())}
	return backend, func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://kelson"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
}

// until sends a request until it is answered with a code.
func until(t *testing.T, do func(method, path, body string) (int, string), want int, method, path string) {
	t.Helper()
	polltest.Until(t, fmt.Sprintf("%s %s is answered with %d", method, path, want), func() bool {
		code, _ := do(method, path, "")
		return code == want
	})
}

// TestDefinitionThatCannotBeReadKeepsNoOthers starts on a store with such a definition:
// built-in kinds and other definitions are served, and it can be deleted.
func TestDefinitionThatCannotBeReadKeepsNoOthers(t *testing.T) {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	_, do := run(t, Config{}, func(backend storage.Backend) {
		if _, err := backend.Create(t.Context(), storage.Root+"apiextensions.k8s.io/customresourcedefinitions/things.example.com", []byte(`{"kind":"Other"`), 0); err != nil {
			t.Fatal(err)
		}
	})
	until := func(want int, method, path string) { t.Helper(); until(t, do, want, method, path) }
	until(200, "GET", "/readyz")
	until(500, "GET", path+"/things.example.com")
	if code, body := do("POST", path, `{"metadata":{"name":"others.example.org"},"spec":{"group":"example.org","scope":"Cluster",
		"names":{"plural":"others","kind":"Other"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`); code != 201 {
		t.Fatalf("another definition: got %d %s, want 201", code, body)
	}
	if code, body := do("POST", "/apis/example.org/v1/others", `{"apiVersion":"example.org/v1","kind":"Other","metadata":{"name":"a"}}`); code != 201 {
		t.Errorf("its object: got %d %s, want 201", code, body)
	}
	until(200, "DELETE", path+"/things.example.com?ignoreStoreReadErrorWithClusterBreakingPotential=true")
	until(404, "GET", path+"/things.example.com")
}

// TestObjectsThatCannotBeReadGoWithWhatHoldsThem starts on a store with custom and built-in
// objects that cannot be read. The others can be listed, and nothing is left of them in a namespace or of a definition that ends.
func TestObjectsThatCannotBeReadGoWithWhatHoldsThem(t *testing.T) {
	const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	const things = "/apis/example.com/v1/namespaces/default/things"
	backend, do := run(t, Config{}, func(backend storage.Backend) {
		for key, value := range map[string]string{
			"apiextensions.k8s.io/customresourcedefinitions/things.example.com": `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.com","uid":"u","finalizers":["customresourcecleanup.apiextensions.k8s.io"]},
				"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]},
				"status":{"storedVersions":["v1"]}}`,
			"namespaces/going":                       `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"going","uid":"n"},"spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}}`,
			"example.com/things/default/other-kind":  `{"apiVersion":"example.com/v1","kind":"Other","metadata":{"name":"other-kind","namespace":"default"}}`,
			"example.com/things/default/good":        `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"good","namespace":"default","uid":"g"}}`,
			"example.com/things/going/garbage":       "\x00\x01",
			"example.com/things/default/other-group": `{"apiVersion":"other.com/v1","kind":"Thing","metadata":{"name":"other-group","namespace":"default"}}`,
			"configmaps/going/garbage":               "k8s\x00garbage",
			"configmaps/default/other-kind":          `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"other-kind","namespace":"default"}}`,
		} {
			if _, err := backend.Create(t.Context(), storage.Root+key, []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
	until(t, do, 200, "GET", "/readyz")
	for _, path := range []string{things, "/apis/example.com/v1/things", "/api/v1/configmaps", "/api/v1/namespaces/going/configmaps", "/api/v1/configmaps?limit=1", "/api/v1/configmaps?resourceVersion=0"} {
		if code, body := do("GET", path, ""); code != 200 || strings.Contains(body, "other-kind") {
			t.Errorf("GET %s: got %d %s, want a list without what cannot be read", path, code, body)
		}
	}
	if code, body := do("GET", things+"/good", ""); code != 200 {
		t.Errorf("a good object: got %d %s, want 200", code, body)
	}
	until(t, do, 200, "DELETE", "/api/v1/namespaces/going")
	for _, path := range []string{"/api/v1/namespaces/going/configmaps", "/apis/example.com/v1/namespaces/going/things"} { // as the controller of namespaces does
		if code, body := do("DELETE", path, ""); code != 200 {
			t.Errorf("DELETE %s: got %d %s, want 200", path, code, body)
		}
	}
	until(t, do, 200, "DELETE", definitions+"/things.example.com")
	until(t, do, 404, "GET", definitions+"/things.example.com")
	for _, prefix := range []string{"example.com/things/", "configmaps/going/"} {
		page, err := backend.List(t.Context(), storage.Root+prefix, storage.ListOptions{KeysOnly: true})
		if err != nil || len(page.Items) > 0 {
			t.Errorf("%s: got %v, %v in storage, want nothing", prefix, page.Items, err)
		}
	}
}

// TestStorageMediaType stores built-in kinds in the media type that the configuration has,
// and definitions in JSON whatever it is.
func TestStorageMediaType(t *testing.T) {
	for media, want := range map[string]string{"": "k8s\x00", wire.TypeProtobuf: "k8s\x00", wire.TypeJSON: "{", wire.TypeYAML: "apiVersion: "} {
		backend, do := run(t, Config{StorageMediaType: media}, func(storage.Backend) {})
		until(t, do, 200, "GET", "/readyz")
		if code, body := do("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"a"},"data":{"k":"v"}}`); code != 201 {
			t.Fatalf("%s: got %d %s, want 201", media, code, body)
		}
		code, body := do("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Cluster",
			"names":{"plural":"things","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
		if code != 201 {
			t.Fatalf("%s: got %d %s, want 201", media, code, body)
		}
		for key, want := range map[string]string{
			"configmaps/default/a": want, "clusterroles/cluster-admin": want, "namespaces/default": want,
			"apiextensions.k8s.io/customresourcedefinitions/things.example.com": "{", "apiregistration.k8s.io/apiservices/v1.": "{",
		} {
			kv, err := backend.Get(t.Context(), storage.Root+key)
			if err != nil || !strings.HasPrefix(string(kv.Value), want) {
				t.Errorf("%s as %q: got %.20q, %v, want it to begin with %q", key, media, kv.Value, err, want)
			}
		}
		if code, body := do("GET", "/api/v1/namespaces/default/configmaps/a", ""); code != 200 || !strings.Contains(body, `"data":{"k":"v"}`) {
			t.Errorf("%s: got %d %s, want the config map", media, code, body)
		}
	}
}
