package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/pki"
)

// proxy is one that takes connections over TCP, TLS or a Unix socket, and counts
// them.
type proxy struct {
	listener net.Listener
	asked    atomic.Int64
	refuse   bool
}

func start(t *testing.T, listener net.Listener) *proxy {
	t.Helper()
	p := &proxy{listener: listener}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *proxy) serve(conn net.Conn) {
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	p.asked.Add(1)
	if p.refuse {
		_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\n\r\n")
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		return
	}
	defer to.Close()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(to, conn); to.Close() }()
	_, _ = io.Copy(conn, to)
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const head = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"

func TestProxies(t *testing.T) {
	goal := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	defer goal.Close()
	authority, err := pki.New("proxy.example.com")
	if err != nil {
		t.Fatal(err)
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: authority.ServerCertificate, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "egress") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.IssueClient("kelson")
	if err != nil {
		t.Fatal(err)
	}
	overTCP, overTLS, overUnix := start(t, plain), start(t, secure), start(t, socket)
	file := write(t, "config", head+`
- name: ControlPlane
  connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: "http://`+plain.Addr().String()+`"}}}
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: "https://`+secure.Addr().String()+`", tlsConfig: {
    caBundle: `+write(t, "ca", string(authority.CertificatePEM()))+`, clientCert: `+write(t, "cert", string(pair))+`, clientKey: `+write(t, "key", string(pair))+`, tlsServerName: proxy.example.com}}}}
- name: etcd
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: `+socket.Addr().String()+`}}}
`)
	s, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, way := range map[string]struct {
		dial  Dial
		proxy *proxy
	}{"controlplane": {s.ControlPlane, overTCP}, "cluster": {s.Cluster, overTLS}, "etcd": {s.Etcd, overUnix}} {
		client := goal.Client()
		client.Transport.(*http.Transport).DialContext = way.dial
		client.CloseIdleConnections()
		resp, err := client.Get(goal.URL)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != "here" || way.proxy.asked.Load() != 1 {
			t.Errorf("%s: %q, the proxy was asked %d times", name, body, way.proxy.asked.Load())
		}
		client.CloseIdleConnections()
	}

	overTCP.refuse = true
	if _, err := s.ControlPlane(t.Context(), "tcp", "example.com:443"); err == nil || !strings.Contains(err.Error(), "while dialing example.com:443, code 403: 403 Forbidden") {
		t.Errorf("refused: %v", err)
	}
	// A proxy that says nothing is not waited for longer than wanted.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if conn, err := silent.Accept(); err == nil {
			defer conn.Close()
			cancel()
			_, _ = io.Copy(io.Discard, conn)
		}
	}()
	if _, err := new(Selector).through(new(net.Dialer).DialContext, "tcp", silent.Addr().String())(ctx, "tcp", "example.com:443"); err == nil {
		t.Error("connected to nobody")
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range [][2]string{
		{"- {name: cluster, connection: {proxyProtocol: Direct}}", ""},
		{"- {name: cluster, connection: {proxyProtocol: Direct, transport: {}}}", `service.connection.transport: Invalid value: "direct": config must be absent for direct connect`},
		{"- {name: cluster, connection: {proxyProtocol: Smoke}}", `service.connection.protocol: Unsupported value: "Smoke": supported values: "Direct", "HTTPConnect", "GRPC"`},
		{"- {name: moon, connection: {proxyProtocol: Direct}}", `service.connection: Unsupported value: "moon": supported values: "cluster", "controlplane", "etcd"`},
		{"- {name: etcd, connection: {proxyProtocol: Direct}}\n- {name: Etcd, connection: {proxyProtocol: Direct}}", `service.connection[1]: Duplicate value: "etcd"`},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect}}", "service.connection.transport: Required value: transport must be set for HTTPConnect"},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {}}}", "service.connection.tcp: Required value: One of TCP or UDS must be set"},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {}}}}", `service.connection.udsName: Invalid value: "nil": must be present for UDS connections`},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'ftp://x'}}}}", `service.connection.url: Invalid value: "ftp://x": supported connection protocols are http:// and https://`},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://x'}}}}", "service.connection.tlsConfig: Required value: TLSConfig must be present when using HTTPS"},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://x', tlsConfig: {}}}}}", `service.connection.tlsConfig: Invalid value: "nil": config must not be present when using HTTP`},
		{"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://x', tlsConfig: {clientCert: /none}}}}}",
			`[service.connection.tlsConfig.clientCert: Invalid value: "/none": TLS client cert does not exist, service.connection.tlsConfig.clientKey: Invalid value: "nil": Using TLS requires requires clientKey]`},
		{"- {name: etcd, connection: {proxyProtocol: GRPC, transport: {tcp: {url: 'http://x'}}}}", "service.connection.uds: Required value: UDS must be set with GRPC"},
		{"- {name: etcd, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: x}}}}", "tunnels over gRPC are not supported"},
		{"- {name: etcd, konnection: {}}", `failed to read egress selector config: strict decoding error: unknown field "egressSelections[0].konnection"`},
	} {
		_, err := Load(write(t, "config", head+tt[0]))
		if tt[1] == "" && err != nil || tt[1] != "" && (err == nil || !strings.Contains(err.Error(), tt[1])) {
			t.Errorf("%s:\n%v, want\n%s", tt[0], err, tt[1])
		}
	}
	if _, err := Load("/none"); err == nil || !strings.HasPrefix(err.Error(), "failed to read egress selector config: unable to read egress selector configuration from \"/none\" [open ") {
		t.Errorf("no file: %v", err)
	}
	if _, err := Load(write(t, "config", "apiVersion: v1\nkind: Pod\n")); err == nil || !strings.Contains(err.Error(), `no kind "Pod" is registered for version "v1"`) {
		t.Errorf("a pod: %v", err)
	}
}

// TestDirectIsNoProxy: who dials directly checks addresses, so a network that is reached directly
// has no way of its own, be it chosen or not.
func TestDirectIsNoProxy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egress")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- {name: cluster, connection: {proxyProtocol: Direct}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if s.Cluster != nil || s.For(cluster) != nil || !s.IsConfigured(cluster) || s.IsConfigured(etcd) || (*Selector)(nil).IsConfigured(cluster) {
		t.Errorf("got a way to the cluster: %v, configured: %v, %v, want no way of its own and the cluster configured", s.Cluster != nil, s.IsConfigured(cluster), s.IsConfigured(etcd))
	}
}
