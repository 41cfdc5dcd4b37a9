package aggregator_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestSampleServer puts the sample API server of Kubernetes behind Kelson, as it
// is. KELSON_PEERS names the folder that has it.
func TestSampleServer(t *testing.T) {
	peertest.Binary(t, "sample-apiserver")
	server := kelsontest.Start(t, kelsontest.NoControllers())
	f := newFixtureOf(t, server.Config())
	cluster := etcdtest.Start(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	port := peertest.FreePort(t)
	start := func() (stop func()) {
		return peertest.Start(t, "sample-apiserver", "--etcd-servers="+strings.Join(cluster.Endpoints(), ","), fmt.Sprintf("--secure-port=%d", port),
			"--bind-address=127.0.0.1", "--cert-dir="+t.TempDir(), "--kubeconfig="+kubeconfig,
			"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	}
	stop := start()
	address := fmt.Sprintf("https://localhost:%d", port)
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		f.registerVersion("wardle.example.com", version, address)
	}
	const flunders = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders"
	f.waitFor("v1alpha1.wardle.example.com", "Passed")
	f.waitFor("v1beta1.wardle.example.com", "Passed")
	a := f.do(http.MethodPost, "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders",
		`{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":"one"},"spec":{"reference":"x"}}`, "Content-Type", "application/json")
	if a.code != http.StatusCreated {
		t.Fatalf("%+v", a)
	}
	if a = f.do(http.MethodGet, flunders+"/one", ""); a.code != http.StatusOK || !strings.Contains(a.body, `"flunderReference":"x"`) {
		t.Errorf("%+v", a)
	}
	if a = f.do(http.MethodGet, flunders, "", "Impersonate-User", "jane"); a.code != http.StatusForbidden {
		t.Errorf("%+v", a)
	}
	if v := f.versions("wardle.example.com"); len(v) != 2 || len(v[0].Resources) == 0 || v[0].Freshness != "Current" {
		t.Errorf("%+v", v)
	}
	f.until(func() bool {
		return strings.Contains(f.do(http.MethodGet, "/openapi/v3", "").body, "apis/wardle.example.com/v1beta1") &&
			strings.Contains(f.do(http.MethodGet, "/openapi/v2", "").body, "wardle.v1beta1.Flunder")
	}, func() any { return "OpenAPI is not merged" })
	if a = f.do(http.MethodGet, "/openapi/v3/apis/wardle.example.com/v1beta1", ""); a.code != http.StatusOK || !strings.Contains(a.body, "flunderReference") {
		t.Errorf("%d %.200s", a.code, a.body)
	}

	stop()
	f.until(func() bool { return f.do(http.MethodGet, flunders, "").code == http.StatusServiceUnavailable }, func() any { return "still there" })
	f.waitFor("v1beta1.wardle.example.com", "FailedDiscoveryCheck")
	if a = f.do(http.MethodGet, "/api/v1/namespaces", ""); a.code != http.StatusOK {
		t.Errorf("%+v", a)
	}
	start()
	f.waitFor("v1beta1.wardle.example.com", "Passed")
	if a = f.do(http.MethodGet, flunders+"/one", ""); a.code != http.StatusOK {
		t.Errorf("%+v", a)
	}
}
