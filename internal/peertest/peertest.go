// Package peertest runs other programs (kube-apiserver, kube-controller-manager, Helm)
// in tests, to compare with this server or to use it. Start at Start and KubeAPIServer.
// The programs are not part of this repository: KELSON_PEERS names their folder, and
// tests whose program is missing are skipped.
package peertest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/pki"
)

const (
	// patience is how long a program may take to start.
	patience  = 60 * time.Second
	pollEvery = 100 * time.Millisecond
)

// Binary returns the path of a program, or skips the test.
func Binary(t testing.TB, name string) string {
	t.Helper()
	folder := os.Getenv("KELSON_PEERS")
	if folder == "" {
		t.Skipf("KELSON_PEERS names no folder with a %s", name)
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("KELSON_PEERS has no %s: %v", name, err)
	}
	return path
}

// Start runs a program until the test ends or stop is called. Its output is logged if
// the test fails.
func Start(t testing.TB, name string, args ...string) (stop func()) {
	t.Helper()
	stop, _ = StartLogged(t, name, args...)
	return stop
}

// StartLogged is Start, and returns the file with the program's output.
func StartLogged(t testing.TB, name string, args ...string) (stop func(), file string) {
	t.Helper()
	binary := Binary(t, name)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	t.Cleanup(func() {
		stop()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s says:\n%s", name, text[max(0, len(text)-4<<10):])
		}
	})
	return stop, log.Name()
}

// FreePort returns a free port.
func FreePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// KubeAPIServer starts kube-apiserver on an etcd, with aggregation enabled, and returns
// the client configuration of its administrator.
func KubeAPIServer(t testing.TB, etcd []string, args ...string) *rest.Config {
	t.Helper()
	Binary(t, "kube-apiserver")
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer := write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	token := rand.Text()
	proxies, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := proxies.IssueClient("front-proxy-client")
	if err != nil {
		t.Fatal(err)
	}
	proxy := write("proxy.pem", bundle)
	port := FreePort(t)
	Start(t, "kube-apiserver", append([]string{
		"--etcd-servers=" + strings.Join(etcd, ","), "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir=" + dir, "--token-auth-file=" + write("tokens", []byte(token+",admin,1,system:masters\n")), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + signer, "--service-account-signing-key-file=" + signer,
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
		"--proxy-client-cert-file=" + proxy, "--proxy-client-key-file=" + proxy,
		"--requestheader-client-ca-file=" + write("proxies.pem", proxies.CertificatePEM()), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}, args...)...)
	config := &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", port), BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	WaitReady(t, config)
	return config
}

// WaitReady waits until a server is ready.
func WaitReady(t testing.TB, config *rest.Config) {
	t.Helper()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: transport, Timeout: patience}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last := "no answer"
	for end := time.After(patience); ; {
		if resp, err := client.Get(config.Host + "/readyz"); err == nil {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if last = string(text); resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s is not ready: %s", config.Host, last)
		}
	}
}
