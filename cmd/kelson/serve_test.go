//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/http2test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// systemNamespaces are those that every server has, sorted.
var systemNamespaces = []string{"default", "kube-node-lease", "kube-public", "kube-system"}

// client talks to a server as its kubeconfig says.
type client struct {
	t      *testing.T
	config *rest.Config
	http   *http.Client
}

func newClient(t *testing.T, kubeconfig string) *client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return clientFor(t, config)
}

func clientFor(t *testing.T, config *rest.Config) *client {
	t.Helper()
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, config: config, http: h}
}

// open sends a request; the body of the answer is closed with the test.
func (c *client) open(method, path, body string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.config.Host+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// do sends a request and returns what came back.
func (c *client) do(method, path, body string) (int, string) {
	c.t.Helper()
	resp := c.open(method, path, body)
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, string(text)
}

// get returns an answer that is good.
func (c *client) get(path string) string {
	c.t.Helper()
	code, text := c.do(http.MethodGet, path, "")
	if code != http.StatusOK {
		c.t.Fatalf("GET %s: %d, %s", path, code, text)
	}
	return text
}

// ready waits until the server has done what it does when it starts.
func (c *client) ready() {
	c.t.Helper()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		if code, _ := c.do(http.MethodGet, "/readyz", ""); code == http.StatusOK {
			tick.Stop()
			return
		}
		<-tick.C
	}
}

// namespaces returns the names of all namespaces, sorted.
func (c *client) namespaces() (names []string) {
	c.t.Helper()
	var list corev1.NamespaceList
	if err := json.Unmarshal([]byte(c.get("/api/v1/namespaces")), &list); err != nil {
		c.t.Fatal(err)
	}
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	slices.Sort(names)
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// absent checks that nothing was made at a path.
func absent(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("%s should not be there: %v", path, err)
	}
}

// stop ends a server that has nothing to complain about.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if code := s.end(syscall.SIGTERM); code != exitOK || s.log.Len() > 0 {
		t.Errorf("after SIGTERM it ended with %d: %s", code, s.log.String())
	}
}

// TestServe starts on a folder that is not there, and then once more.
func TestServe(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	file := controlplane.KubeconfigFile(dir)
	s := serve(t, "serve", "--data-dir", dir)
	if fi, err := os.Stat(file); err != nil || fi.Mode() != 0o600 {
		t.Errorf("kubeconfig: %v, %v", fi, err)
	}
	first := read(t, file)
	if r := kelson(t, "kubeconfig", "--data-dir", dir); r != (result{out: first}) {
		t.Errorf("kelson kubeconfig: %+v", r)
	}
	c := newClient(t, file)
	if !strings.Contains(s.out, "the Kubernetes API at "+c.config.Host+"\n") || !strings.Contains(s.out, "kubectl --kubeconfig "+file+" get namespaces\n") {
		t.Errorf("server at %s says %q", c.config.Host, s.out)
	}
	c.ready()
	if names := c.namespaces(); !slices.Equal(names, systemNamespaces) {
		t.Errorf("namespaces %v", names)
	}
	if code, text := c.do(http.MethodPost, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"mine"}}`); code != http.StatusCreated {
		t.Errorf("create: %d, %s", code, text)
	}
	all := c.get("/api/v1/namespaces/mine")

	// Who does not say who he is learns nothing, not even what there is not.
	nobody := clientFor(t, rest.AnonymousClientConfig(c.config))
	for _, path := range []string{"/api/v1/namespaces", "/api/v1/namespaces/none", "/readyz/none", "/none"} {
		var status metav1.Status
		code, text := nobody.do(http.MethodGet, path, "")
		if err := json.Unmarshal([]byte(text), &status); err != nil || code != http.StatusForbidden || status.Reason != metav1.StatusReasonForbidden {
			t.Errorf("without a certificate, %s: %d, %s", path, code, text)
		}
	}
	s.stop(t)

	s = serve(t, "serve", "--data-dir", dir)
	again := newClient(t, file)
	if !bytes.Equal(again.config.CAData, c.config.CAData) || !bytes.Equal(again.config.CertData, c.config.CertData) {
		t.Error("the second start has other certificates")
	}
	// Another port may be free now, but the credentials are as good as before.
	old := rest.CopyConfig(c.config)
	old.Host = again.config.Host
	c = clientFor(t, old)
	c.ready()
	if got := c.get("/api/v1/namespaces/mine"); got != all {
		t.Errorf("after a second start:\n%s\nbefore:\n%s", got, all)
	}
	s.stop(t)
}

// TestHTTP2Server looks at what answers, in both forms of the command line.
func TestHTTP2Server(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flag, want string }{{"", "kelson"}, {"kelson", "kelson"}, {"net/http", "net/http"}} {
		dir := filepath.Join(t.TempDir(), "data")
		args := []string{"serve", "--data-dir", dir, "--secure-port", "0", "--storage", "memory"}
		if c.flag != "" {
			args = append(args, "--http2-server="+c.flag)
		}
		s := serveExactly(t, args...)
		host := strings.TrimPrefix(newClient(t, controlplane.KubeconfigFile(dir)).config.Host, "https://")
		if got := http2test.Greet(t, host).Implementation(); got != c.want {
			t.Errorf("%q: got the server of %s, want that of %s", c.flag, got, c.want)
		}
		s.stop(t)
	}
	certificate, private := selfSigned(t, "service accounts")
	file := files(t, map[string]string{"sa.crt": certificate, "sa.key": private})
	r := kelson(t, "kube-apiserver", "--http2-server=nghttp2", "--etcd-servers=http://127.0.0.1:1", "--service-account-issuer=https://a",
		"--service-account-key-file="+file("sa.crt"), "--service-account-signing-key-file="+file("sa.key"))
	if want := `--http2-server is "nghttp2", not one of kelson and net/http`; r.code != exitError || !strings.Contains(r.err, strconv.Quote(want)) {
		t.Errorf("kube-apiserver: got %d, %s; want %s", r.code, r.err, want)
	}
}

// TestFreePort runs servers beside each other.
func TestFreePort(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	hosts := map[string]bool{}
	for i := range 2 {
		dir := filepath.Join(temp, fmt.Sprint(i))
		serve(t, "serve", "--data-dir", dir, "--storage", "memory")
		c := newClient(t, controlplane.KubeconfigFile(dir))
		c.ready()
		hosts[c.config.Host] = true
		if strings.HasSuffix(c.config.Host, ":0") || !strings.HasPrefix(c.config.Host, "https://127.0.0.1:") {
			t.Errorf("it listens at %s", c.config.Host)
		}
	}
	if len(hosts) != 2 {
		t.Errorf("two servers listen at %v", hosts)
	}
}

// TestPortInUse wants a port that somebody else has. The folder is as good as
// before.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	dir := filepath.Join(t.TempDir(), "data")
	file := controlplane.KubeconfigFile(dir)
	refused := func() {
		t.Helper()
		r := kelson(t, "serve", "--data-dir", dir, "--secure-port", port)
		if r.code != exitError || !strings.HasPrefix(r.err, "kelson: port "+port+" is in use: something else listens on 127.0.0.1:"+port) ||
			!strings.Contains(r.err, "choose another port") || strings.Count(r.err, "\n") != 1 || r.out != "" {
			t.Errorf("port in use: %+v", r)
		}
		absent(t, filepath.Join(dir, "control", "socket"))
	}
	refused()
	absent(t, file)
	s := serve(t, "serve", "--data-dir", dir)
	newClient(t, file).ready()
	s.stop(t)

	config := read(t, file)
	values, revisions, _ := contents(t, dir)
	refused()
	if got := read(t, file); got != config {
		t.Errorf("a server that never listened wrote a kubeconfig: %s", got)
	}
	values2, revisions2, _ := contents(t, dir)
	if fmt.Sprint(values, revisions) != fmt.Sprint(values2, revisions2) {
		t.Error("a server that never listened changed the data")
	}
	s = serve(t, "serve", "--data-dir", dir)
	c := newClient(t, file)
	c.ready()
	if names := c.namespaces(); !slices.Equal(names, systemNamespaces) {
		t.Errorf("namespaces %v", names)
	}
	s.stop(t)
}

func TestWriteKubeconfig(t *testing.T) {
	t.Parallel()
	temp := t.TempDir()
	for _, storage := range []string{controlplane.StorageEngine, controlplane.StorageMemory} {
		t.Run(storage, func(t *testing.T) {
			dir, file := filepath.Join(temp, storage), filepath.Join(temp, storage+" config", "admin.yaml")
			s := serve(t, "serve", "--data-dir", dir, "--storage", storage, "--write-kubeconfig", file)
			if fi, err := os.Stat(file); err != nil || fi.Mode() != 0o600 {
				t.Errorf("kubeconfig: %v, %v", fi, err)
			}
			if !strings.Contains(s.out, file) {
				t.Errorf("server says %q", s.out)
			}
			c := newClient(t, file)
			c.ready()
			if names := c.namespaces(); !slices.Equal(names, systemNamespaces) {
				t.Errorf("namespaces %v", names)
			}
			absent(t, controlplane.KubeconfigFile(dir))
			if storage == controlplane.StorageMemory {
				absent(t, dir) // there is nothing to keep
			}
			switch r := kelson(t, "kubeconfig", "--data-dir", dir); {
			case storage == controlplane.StorageMemory:
				if r.code != exitError || !strings.Contains(r.err, dir+" has no kubeconfig") {
					t.Errorf("kelson kubeconfig: %+v", r)
				}
			case r.code != exitOK || r.out != read(t, file) || !strings.Contains(r.err, file):
				t.Errorf("kelson kubeconfig: %+v", r)
			}
			s.stop(t)
		})
	}
}

// TestStopWithWatch has a client that would watch forever.
func TestStopWithWatch(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "serve", "--data-dir", dir)
	c := newClient(t, controlplane.KubeconfigFile(dir))
	watch := c.open(http.MethodGet, "/api/v1/namespaces?watch=1", "")
	events := json.NewDecoder(watch.Body)
	var names []string
	for len(names) < len(systemNamespaces) {
		var event struct {
			Type   string
			Object corev1.Namespace
		}
		if err := events.Decode(&event); err != nil || event.Type != "ADDED" {
			t.Fatalf("event %+v, %v", event, err)
		}
		names = append(names, event.Object.Name)
	}
	slices.Sort(names)
	if !slices.Equal(names, systemNamespaces) {
		t.Errorf("namespaces %v", names)
	}
	c.ready()
	s.stop(t) // it logs nothing, so that it has not waited for its timeout
	if rest, err := io.ReadAll(io.MultiReader(events.Buffered(), watch.Body)); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("the watch ended with %q, %v", rest, err)
	}
}

// TestBindAddress listens elsewhere; the kubeconfig is for this machine, and
// the certificate is for what the kubeconfig says.
func TestBindAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"0.0.0.0": "https://127.0.0.1:", "127.0.0.2": "https://127.0.0.2:", "::1": "https://[::1]:"} {
		t.Run(address, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
			if err != nil {
				t.Skip("this machine has no such address")
			}
			l.Close()
			dir := filepath.Join(t.TempDir(), "data")
			s := serve(t, "serve", "--data-dir", dir, "--bind-address", address)
			c := newClient(t, controlplane.KubeconfigFile(dir))
			c.ready()
			if !strings.HasPrefix(c.config.Host, want) {
				t.Errorf("the kubeconfig says %s", c.config.Host)
			}
			s.stop(t)
		})
	}
}

// TestSecondSignal: who cannot wait says so by another signal.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := serve(t, "serve", "--storage", "memory", "--data-dir", dir, "--shutdown-delay-duration", "1h")
	c := newClient(t, controlplane.KubeconfigFile(dir))
	c.ready()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	for code := 0; code != http.StatusInternalServerError; {
		code, _ = c.do(http.MethodGet, "/readyz", "")
	}
	if names := c.namespaces(); !slices.Equal(names, systemNamespaces) {
		t.Errorf("it does not answer any longer: %v", names)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.cmd.Wait()
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); ; {
		select {
		case <-ended:
			if code := s.cmd.ProcessState.ExitCode(); code != exitError {
				t.Errorf("exit code %d", code)
			}
			return
		case <-tick.C:
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
		case <-deadline:
			t.Fatal("the server does not end")
		}
	}
}
