// Package network runs the programs and suites of others against the server's
// connections: h2spec, curl, h2load, Node, nginx and HAProxy. It is a module of
// its own, since nobody who uses the server needs h2spec.
//
// A test whose program is not installed is skipped, and says what to install.
package network

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
)

// patience is how long something may take to happen on a busy machine.
const patience = 2 * time.Minute

// packages says what to install on Debian for a program.
var packages = map[string]string{
	"curl": "curl", "h2load": "nghttp2-client", "node": "nodejs", "nginx": "nginx libnginx-mod-stream", "haproxy": "haproxy",
}

// program returns where a program is. Without it, the test is skipped.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if path = filepath.Join("/usr/sbin", name); exec.Command(path, "-v").Run() != nil {
			t.Skipf("%s is not installed: apt-get install %s", name, packages[name])
		}
	}
	return path
}

// run runs a program to its end and returns what it has printed. The error has
// what it has complained of.
func run(t *testing.T, stdin []byte, path string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &complaints
	err := cmd.Run()
	if text := strings.TrimSpace(complaints.String()); text != "" {
		t.Logf("%s: %s", filepath.Base(path), text)
	}
	return out.String(), err
}

// cluster is a server, files that clients need, and tokens of its users.
type cluster struct {
	*kelsontest.Server
	url    string // where clients go: the server, or a proxy in front of it
	caFile string
	dir    string
	admin  string
	tls    *tls.Config
}

func start(t *testing.T, opts ...kelsontest.Option) *cluster {
	t.Helper()
	// A request may hold its seat as long as the test lasts.
	opts = append(opts, kelsontest.Configure(func(c *controlplane.Config) { c.RequestTimeout = time.Hour }))
	server := kelsontest.Start(t, opts...)
	c := &cluster{Server: server, url: server.URL(), dir: t.TempDir(), admin: server.Token("admin", "system:masters").BearerToken}
	c.caFile = c.file(t, "ca.pem", server.Config().CAData)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(server.Config().CAData)
	c.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return c
}

// file writes a file and returns its path.
func (c *cluster) file(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// transport is a connection pool of Go's client, for one version of HTTP.
func (c *cluster) transport(t *testing.T, http2 bool) *http.Transport {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: c.tls.Clone(), ExpectContinueTimeout: patience, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetHTTP2(http2)
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// address is the host and the port of a URL.
func address(t *testing.T, url string) (host string, port int) {
	t.Helper()
	host, text, err := net.SplitHostPort(url[len("https://"):])
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}
