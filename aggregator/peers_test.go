package aggregator_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

// TestSampleServer puts the sample API server of Kubernetes behind Kelson, as it
// is. KELSON_PEERS names the folder that has it.
func TestSampleServer(t *testing.T) {
	folder := os.Getenv("KELSON_PEERS")
	if folder == "" {
		t.Skip("KELSON_PEERS names no folder with a sample-apiserver")
	}
	f := newFixture(t)
	cluster := etcdtest.Start(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, f.server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	stop := startSample(t, filepath.Join(folder, "sample-apiserver"), strings.Join(cluster.Endpoints(), ","), kubeconfig, port)
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
	startSample(t, filepath.Join(folder, "sample-apiserver"), strings.Join(cluster.Endpoints(), ","), kubeconfig, port)
	f.waitFor("v1beta1.wardle.example.com", "Passed")
	if a = f.do(http.MethodGet, flunders+"/one", ""); a.code != http.StatusOK {
		t.Errorf("%+v", a)
	}
}

func startSample(t *testing.T, binary, etcd, kubeconfig string, port int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "--etcd-servers="+etcd, fmt.Sprintf("--secure-port=%d", port), "--bind-address=127.0.0.1",
		"--cert-dir="+t.TempDir(), "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestMany has 200 APIServices, of which half have no server.
func TestMany(t *testing.T) {
	f := newFixture(t)
	live := f.backend("many", nil)
	dead := fmt.Sprintf("https://localhost:%d", freePort(t))
	for i := range 200 {
		address := dead
		if i%2 == 0 {
			address = live
		}
		f.register(fmt.Sprintf("g%d.example.com", i), address)
	}
	f.do(http.MethodGet, "/apis", "")
	begin := time.Now()
	const times = 20
	for range times {
		if a := f.do(http.MethodGet, "/apis", ""); a.code != http.StatusOK {
			t.Fatalf("%+v", a)
		}
	}
	took := time.Since(begin) / times
	t.Logf("/apis takes %v", took)
	if took > time.Second { // far more than it should, but machines may be busy
		t.Errorf("/apis takes %v", took)
	}
}
