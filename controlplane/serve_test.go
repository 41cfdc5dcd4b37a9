package controlplane

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/storage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// client talks to a server as its kubeconfig says.
type client struct {
	t    *testing.T
	url  string
	http *http.Client
}

func newClient(t *testing.T, kubeconfig string) *client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	h, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, url: config.Host, http: h}
}

func (c *client) do(method, path, body string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
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

func (c *client) namespaces() (list corev1.NamespaceList) {
	c.t.Helper()
	code, text := c.do(http.MethodGet, "/api/v1/namespaces", "")
	if err := json.Unmarshal([]byte(text), &list); err != nil || code != http.StatusOK {
		c.t.Fatalf("namespaces: %d, %s", code, text)
	}
	return list
}

// keysOf returns where namespaces are stored, sorted.
func keysOf(list corev1.NamespaceList) (keys []string) {
	for _, ns := range list.Items {
		keys = append(keys, storage.Root+"namespaces/"+ns.Name)
	}
	slices.Sort(keys)
	return keys
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestFailedStart has servers that open the store and then cannot serve. They
// close it, in a process that goes on: the next one has it.
func TestFailedStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, used := 0, taken.Addr().(*net.TCPAddr).Port
	broken := errors.New("broken pipe")

	dir := t.TempDir()
	for _, c := range []struct {
		name   string
		config Config
		want   string
	}{
		{"port in use", Config{SecurePort: &used}, "is in use: something else listens on " + taken.Addr().String()},
		{"address of another machine", Config{SecurePort: &free, BindAddress: "192.0.2.1"}, "this machine has no address 192.0.2.1"},
		{"folder for a kubeconfig", Config{SecurePort: &free, Kubeconfig: dir}, dir},
		{"file for a folder", Config{SecurePort: &free, Kubeconfig: filepath.Join("config.go", "x")}, "folder for the kubeconfig"},
		{"nobody listens", Config{SecurePort: &free, Out: brokenWriter{broken}}, broken.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.DataDir = dir
			if err := c.config.Run(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, context.Canceled) {
				t.Errorf("%v; want %s", err, c.want)
			}
			e, err := OpenFolder(dir)
			if err != nil {
				t.Fatalf("the store is not closed: %v", err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if names := namesIn(t, filepath.Dir(controlSocket(dir))); len(names) > 0 {
				t.Errorf("left behind: %v", names)
			}
		})
	}

	s := start(t, Config{DataDir: dir})
	client := newClient(t, KubeconfigFile(dir))
	client.ready()
	if keys := keysOf(client.namespaces()); !slices.Equal(keys, namespaceKeys()) {
		t.Errorf("namespaces %v", keys)
	}
	s.end(t)

	// Keys that cannot be read are not replaced by others behind one's back.
	for _, name := range namesIn(t, filepath.Join(dir, "pki")) {
		if err := os.WriteFile(filepath.Join(dir, "pki", name), []byte("?"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Config{DataDir: dir, SecurePort: &free}).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "pki") {
		t.Errorf("with certificates that are damaged: %v", err)
	}
	e, err := OpenFolder(dir)
	if err != nil {
		t.Fatalf("the store is not closed: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestAnnouncedAuthorities: a server without a folder and a kubeconfig, such as one with
// kube-apiserver's command line, announces the authorities that it was given, and not
// its own, of which nobody has a certificate.
func TestAnnouncedAuthorities(t *testing.T) {
	given, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	for _, noFolder := range []bool{false, true} {
		config := Config{Storage: StorageMemory, DataDir: t.TempDir(), Controllers: []string{"-*"}, NoFolder: noFolder}
		config.Authentication.X509.CAs = given.CertificatePEM()
		if err := config.complete(); err != nil {
			t.Fatal(err)
		}
		backend, err := config.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer backend.Close()
		a, err := config.assemble(t.Context(), backend, own)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(given.CertificatePEM())
		if !noFolder {
			pool.AppendCertsFromPEM(own.CertificatePEM())
		}
		if !a.authn.ClientCAs().Equal(pool) {
			t.Errorf("without a folder %v: got other authorities", noFolder)
		}
		_ = a.close()
	}
}
