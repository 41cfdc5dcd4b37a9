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

// TestDefinitionThatCannotBeReadDoesNotEndTheServer starts on a store with such a
// definition: built-in kinds are served, the server is not ready, and it becomes so when
// the definition is deleted.
func TestDefinitionThatCannotBeReadDoesNotEndTheServer(t *testing.T) {
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	_, do := run(t, Config{}, func(backend storage.Backend) {
		if _, err := backend.Create(t.Context(), storage.Root+"apiextensions.k8s.io/customresourcedefinitions/things.example.com", []byte(`{"kind":"Other"`), 0); err != nil {
			t.Fatal(err)
		}
	})
	until := func(want int, method, path string) { t.Helper(); until(t, do, want, method, path) }
	until(200, "GET", "/readyz/poststarthook/rbac/bootstrap-roles")
	until(200, "GET", "/api/v1/namespaces/default")
	for range 3 {
		if code, body := do("GET", "/readyz/poststarthook/crd-informer-synced", ""); code != 500 {
			t.Errorf("crd-informer-synced: got %d %s, want 500", code, body)
		}
		until(500, "GET", path+"/things.example.com")
	}
	until(200, "DELETE", path+"/things.example.com?ignoreStoreReadErrorWithClusterBreakingPotential=true")
	until(200, "GET", "/readyz")
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
