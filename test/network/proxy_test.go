package network

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// proxies are ways to put a proxy in front of the server, each a configuration of
// HAProxy or nginx.
var proxies = []struct {
	name, program string
	endToEnd      bool // TLS is the server's: the proxy passes bytes on
	config        string
}{
	{"haproxy-tcp", "haproxy", true, `
frontend front
	mode tcp
	bind 127.0.0.1:{port}
	default_backend back
backend back
	mode tcp
	server kelson {server}
`},
	{"haproxy-h2", "haproxy", false, `
frontend front
	mode http
	bind 127.0.0.1:{port} ssl crt {dir}/front.pem alpn h2,http/1.1
	default_backend back
backend back
	mode http
	server kelson {server} ssl verify required ca-file {ca} alpn h2
`},
	{"haproxy-http1.1", "haproxy", false, `
frontend front
	mode http
	bind 127.0.0.1:{port} ssl crt {dir}/front.pem alpn h2,http/1.1
	default_backend back
backend back
	mode http
	server kelson {server} ssl verify required ca-file {ca} alpn http/1.1
`},
	{"nginx-stream", "nginx", true, `
load_module /usr/lib/nginx/modules/ngx_stream_module.so;
stream {
	server {
		listen 127.0.0.1:{port};
		proxy_pass {server};
	}
}
`},
	{"nginx-http1.1", "nginx", false, `
http {
	client_body_temp_path {dir}/body;
	proxy_temp_path {dir}/proxy;
	fastcgi_temp_path {dir}/fastcgi;
	uwsgi_temp_path {dir}/uwsgi;
	scgi_temp_path {dir}/scgi;
	access_log off;
	client_max_body_size 0;
	map $http_upgrade $connection_upgrade { default upgrade; '' ''; }
	upstream back {
		server {server};
		keepalive 8;
	}
	server {
		listen 127.0.0.1:{port} ssl http2;
		ssl_certificate {dir}/front.pem;
		ssl_certificate_key {dir}/front.pem;
		location / {
			proxy_pass https://back;
			proxy_ssl_verify on;
			proxy_ssl_trusted_certificate {ca};
			proxy_ssl_name kubernetes; # it cannot verify addresses
			proxy_http_version 1.1;
			proxy_set_header Upgrade $http_upgrade;
			proxy_set_header Connection $connection_upgrade;
			proxy_buffering off;
			proxy_request_buffering off;
		}
	}
}
`},
}

// behind returns the same cluster for clients that go through a proxy.
func behind(t *testing.T, c *cluster, name, binary, config string, endToEnd bool) *cluster {
	t.Helper()
	path := program(t, binary)
	if strings.Contains(config, "load_module") {
		module := strings.Fields(config)[1]
		if _, err := os.Stat(strings.TrimSuffix(module, ";")); err != nil {
			t.Skipf("nginx has no stream module: apt-get install libnginx-mod-stream: %v", err)
		}
	}
	proxied := *c
	proxied.dir = t.TempDir()
	if !endToEnd {
		// httptest has a certificate for this address.
		front := httptest.NewTLSServer(nil)
		front.Close()
		certificate := front.TLS.Certificates[0]
		key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})
		proxied.caFile = proxied.file(t, "front-ca.pem", cert)
		proxied.file(t, "front.pem", append(cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...))
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(cert)
		proxied.tls = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	port := freePort(t)
	proxied.url = "https://127.0.0.1:" + port
	text := strings.NewReplacer("{port}", port, "{server}", strings.TrimPrefix(c.URL(), "https://"), "{dir}", proxied.dir, "{ca}", c.caFile).Replace(config)
	var args []string
	if binary == "haproxy" {
		text = "global\n\tmaxconn 100\ndefaults\n\ttimeout connect 10s\n\ttimeout client 60s\n\ttimeout server 60s\n\ttimeout tunnel 60s\n" + text
		args = []string{"-db", "-f", proxied.file(t, "proxy.conf", []byte(text))}
	} else {
		text = "daemon off;\nmaster_process off;\npid " + proxied.dir + "/pid;\nerror_log stderr warn;\nevents { worker_connections 256; }\n" + text
		if i := strings.Index(text, "load_module"); i >= 0 { // which must come first
			line, rest, _ := strings.Cut(text[i:], "\n")
			text = line + "\n" + text[:i] + rest
		}
		args = []string{"-p", proxied.dir, "-c", proxied.file(t, "proxy.conf", []byte(text)), "-e", "stderr"}
	}
	var complaints bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", name, complaints.String())
		}
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			conn.Close()
			return &proxied
		}
		select {
		case <-exited:
			t.Fatalf("%s has ended:\n%s", filepath.Base(path), complaints.String())
		case <-tick.C:
		}
	}
}

// freePort is a port of 127.0.0.1 on which nobody listens.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// TestProxies sends what clients send through proxies, with HTTP/2 and HTTP/1.1.
func TestProxies(t *testing.T) {
	c := start(t)
	all := exchanges(t, c, limitCrowd(t, c))
	for _, proxy := range proxies {
		t.Run(proxy.name, func(t *testing.T) {
			proxied := behind(t, c, proxy.name, proxy.program, proxy.config, proxy.endToEnd)
			for _, http2 := range []bool{true, false} {
				t.Run(fmt.Sprintf("http2=%t", http2), func(t *testing.T) {
					client := &http.Client{Transport: proxied.transport(t, http2)}
					t.Run("bodies", func(t *testing.T) { proxied.sendBodies(t, http2, proxy.endToEnd, all) })
					t.Run("watch", func(t *testing.T) { proxied.watch(t, client) })
					t.Run("gzip", func(t *testing.T) { proxied.compressedList(t, client) })
					if strings.HasPrefix(proxy.name, "nginx-http") && http2 {
						return // it takes trailers of a request for a mistake
					}
					t.Run("trailers", func(t *testing.T) { proxied.sendTrailers(t, client) })
				})
			}
		})
	}
}

// sendBodies sends bodies, wanted and unwanted ones.
func (c *cluster) sendBodies(t *testing.T, http2, endToEnd bool, all []exchange) {
	var some []exchange
	for _, e := range all {
		switch {
		case e.Expect || strings.Contains(e.name, "/1KB/") || strings.Contains(e.name, "/64KB/"):
		case !http2 && !endToEnd && e.isEarly():
			// HAProxy and nginx close the connection of such a client themselves.
		default:
			some = append(some, e)
		}
	}
	for i, a := range goClient(http2)(t, c, some) {
		if wrong := some[i].wrong(a); wrong != "" {
			t.Errorf("%s: %s", some[i].name, wrong)
		}
	}
}

func (c *cluster) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err == nil {
		req.Header.Set("Authorization", "Bearer "+c.admin)
		req.Header.Set("Content-Type", "application/json")
	}
	return req, err
}

// do sends a request and wants it to succeed.
func (c *cluster) do(t *testing.T, client *http.Client, method, path, body string) {
	t.Helper()
	req, err := c.request(t.Context(), method, path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		t.Fatalf("%s %s: got %s: %s", method, path, resp.Status, text)
	}
}

const (
	watched  = "/api/v1/namespaces/default/secrets"
	nEvents  = 20
	eventDue = 20 * time.Second
)

// event is one of a watch.
type event struct {
	Type   string
	Object struct {
		Metadata struct{ Name string }
	}
}

// watch wants every event before the next one is made: a proxy or a server that
// waits for more would wait forever.
func (c *cluster) watch(t *testing.T, client *http.Client) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, port := address(t, c.url)
	name := fmt.Sprintf("watched-%d-%d", port, time.Now().UnixNano()) // by nobody else
	req, err := c.request(ctx, http.MethodGet, watched+"?watch=true&labelSelector=of%3D"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	create := func(i int) (object string) {
		object = fmt.Sprintf("%s-%d", name, i)
		c.do(t, client, http.MethodPost, watched, fmt.Sprintf(`{"metadata":{"name":%q,"labels":{"of":%q}}}`, object, name))
		return object
	}
	object := create(0) // nginx keeps the header back until there is an event
	late := time.AfterFunc(eventDue, cancel)
	defer late.Stop()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatalf("watch: no answer before the first event: %v", err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for i := range nEvents {
		late.Reset(eventDue)
		if i > 0 {
			object = create(i)
		}
		line, err := lines.ReadBytes('\n')
		var got event
		if err == nil {
			err = json.Unmarshal(line, &got)
		}
		if err != nil || got.Type != "ADDED" || got.Object.Metadata.Name != object {
			t.Fatalf("event %d: got %q and %v, want ADDED %s", i, line, err, object)
		}
	}
}

// compressedList wants a large list compressed, and whole.
func (c *cluster) compressedList(t *testing.T, client *http.Client) {
	for range 4 {
		c.do(t, client, http.MethodPost, "/api/v1/namespaces/kube-public/configmaps", fmt.Sprintf(`{"metadata":{"generateName":"large-"},"data":{"text":%q}}`, strings.Repeat("text ", 20<<10)))
	}
	read := func(encoding string) []byte {
		req, err := c.request(t.Context(), http.MethodGet, "/api/v1/namespaces/kube-public/configmaps?resourceVersion=0", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", encoding)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var body io.Reader = resp.Body
		if got := resp.Header.Get("Content-Encoding"); got != strings.TrimPrefix(encoding, "identity") {
			t.Errorf("got Content-Encoding %q, want %q", got, encoding)
		} else if got == "gzip" {
			if body, err = gzip.NewReader(resp.Body); err != nil {
				t.Fatal(err)
			}
		}
		content, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	if plain, compressed := read("identity"), read("gzip"); !bytes.Equal(plain, compressed) || len(plain) < 400<<10 {
		t.Errorf("got %d bytes compressed and %d plain, want the same, and more than 400 KB", len(compressed), len(plain))
	}
}

// sendTrailers sends header fields after a body of unknown length.
func (c *cluster) sendTrailers(t *testing.T, client *http.Client) {
	req, err := c.request(t.Context(), http.MethodPost, collection, io.MultiReader(strings.NewReader(`{"metadata":{"generateName":"a-"}}`)))
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"X-Checksum": {"1234"}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusCreated {
		t.Errorf("got %s: %s, want 201", resp.Status, text)
	}
}
