package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/internal/http2test"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
)

// shared starts a server as one of several that could share the store.
func shared(t *testing.T) (backend storage.Backend, client *http.Client, stop func()) {
	t.Helper()
	config := Config{Storage: StorageMemory, Controllers: []string{"-*"}, SecurePort: new(int), NoFolder: true}
	if err := config.complete(); err != nil {
		t.Fatal(err)
	}
	backend, err := config.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = backend.Close() })
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	config.EndpointReconciler = EndpointNone
	server, err := config.Server(t.Context(), sharedBackend{backend}, authority)
	if err != nil {
		t.Fatal(err)
	}
	server.Addr, server.Serving.HTTP2Server = "127.0.0.1:0", http2test.Chosen()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- server.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	select {
	case <-server.Signals().MuxAndDiscoveryComplete.Happened():
	case err := <-ended:
		t.Fatal(err)
	}
	return backend, &http.Client{Transport: server.Loopback(loopbackUser())}, stop
}

func read(t *testing.T, client *http.Client, path string) string {
	t.Helper()
	resp, err := client.Get("http://kelson" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s %v", path, resp.Status, body, err)
	}
	return string(body)
}

// TestChecks: checks have the names and the order that they have elsewhere, and
// what is only for some endpoints is on no other.
func TestChecks(t *testing.T) {
	_, client, _ := shared(t)
	hooks := strings.Fields(`start-apiserver-admission-initializer generic-apiserver-start-informers
		priority-and-fairness-config-consumer priority-and-fairness-filter
		start-apiextensions-informers start-apiextensions-controllers crd-informer-synced
		start-system-namespaces-controller peer-endpoint-reconciler-controller start-cluster-authentication-info-controller
		start-kube-apiserver-identity-lease-controller start-kube-apiserver-identity-lease-garbage-collector storage-readiness
		start-legacy-token-tracking-controller start-service-ip-repair-controllers
		rbac/bootstrap-roles scheduling/bootstrap-system-priority-classes priority-and-fairness-config-producer
		bootstrap-controller start-kubernetes-service-cidr-controller
		start-kube-aggregator-informers apiservice-status-local-available-controller apiservice-status-remote-available-controller
		apiservice-registration-controller apiservice-discovery-controller kube-apiserver-autoregistration autoregister-completion
		apiservice-openapi-controller apiservice-openapiv3-controller`)
	for endpoint, want := range map[string][]string{
		"readyz":  slices.Concat([]string{"ping", "log", "etcd", "etcd-readiness", "informer-sync"}, hooks, []string{"shutdown"}),
		"livez":   append([]string{"ping", "log", "loopback-serving-certificate", "etcd"}, hooks...),
		"healthz": append([]string{"ping", "log", "loopback-serving-certificate", "etcd"}, hooks...),
	} {
		var got []string
		for line := range strings.Lines(read(t, client, "/"+endpoint+"?verbose")) {
			if name, ok := strings.CutPrefix(line, "[+]"); ok {
				name, _, _ = strings.Cut(name, " ")
				read(t, client, "/"+endpoint+"/"+name)
				got = append(got, strings.TrimPrefix(name, "poststarthook/"))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("/%s has\n%s\nnot\n%s", endpoint, strings.Join(got, " "), strings.Join(want, " "))
		}
	}
}

// TestIdentity: a server that may not be alone has a lease as long as it runs.
func TestIdentity(t *testing.T) {
	backend, client, stop := shared(t)
	var list coordinationv1.LeaseList
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); len(list.Items) == 0; <-tick.C {
		text := read(t, client, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("it has none")
		}
	}
	lease, name := list.Items[0], measure.ServerName()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if s := lease.Spec; len(list.Items) != 1 || lease.Name != name || lease.Labels[corev1.LabelHostname] != host || s.RenewTime == nil ||
		*s.LeaseDurationSeconds != 3600 || !strings.HasPrefix(*s.HolderIdentity, name+"_") {
		t.Errorf("%+v", list.Items)
	}
	stop()
	if _, err := backend.Get(t.Context(), storage.Root+"leases/kube-system/"+name); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("it is still there: %v", err)
	}
}

// sharedBackend is a store that says of itself that other servers use it.
type sharedBackend struct{ storage.Backend }

func (sharedBackend) Shared() bool { return true }
