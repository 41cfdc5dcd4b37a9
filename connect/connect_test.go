package connect_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/internal/measuretest"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// front is a server that connects everything to a location.
func front(t *testing.T, cfg connect.Config, to *resource.Location, text bool) *httptest.Server {
	t.Helper()
	c, err := connect.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := &request.Request{Info: request.Info{Resource: "pods", Subresource: "log", Name: "p"}}
		r = r.WithContext(request.With(r.Context(), asked))
		fail := func(err error) { http.Error(w, err.Error(), http.StatusInternalServerError) }
		if text {
			c.Read(w, r, to, fail)
		} else {
			c.Connect(w, r, to, fail)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func location(t *testing.T, k *kubelet, path string, change func(*resource.Location)) *resource.Location {
	t.Helper()
	u, err := url.Parse(k.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	to := &resource.Location{URL: u, Kubelet: true}
	if change != nil {
		change(to)
	}
	return to
}

func get(t *testing.T, url string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func upgrade(l *resource.Location) { l.Upgrade = true }

func TestRefusedUpgrades(t *testing.T) {
	k := newKubelet(t)
	spdy := []string{"Connection", "Upgrade", "Upgrade", "SPDY/3.1"}
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, test := range map[string]struct {
		path    string
		headers []string
		code    int
		body    string
	}{
		"none asked for": {"/exec/n/p/c", nil, 500, "Upgrade request required"},
		"refused":        {"/refuse/", spdy, 403, "not for you"},
		"redirected":     {"/move/", spdy, 500, "invalid upgrade response: status code 302"},
	} {
		t.Run(name, func(t *testing.T) {
			s := front(t, connect.Config{}, location(t, k, test.path, upgrade), false)
			if code, body := get(t, s.URL, test.headers...); code != test.code || body != test.body {
				t.Errorf("%d %q, want %d %q", code, body, test.code, test.body)
			}
		})
	}
	t.Run("unreachable", func(t *testing.T) {
		to := location(t, k, "/exec/n/p/c", upgrade)
		to.Translate = resource.ToTunnel
		to.URL.Host = strings.TrimPrefix(gone.URL, "http://")
		for _, headers := range [][]string{spdy, {
			"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==",
			"Sec-WebSocket-Protocol", "SPDY/3.1+portforward.k8s.io",
		}} {
			if code, body := get(t, front(t, connect.Config{}, to, false).URL, headers...); code != 500 || !strings.HasPrefix(body, "error dialing backend: dial tcp") {
				t.Errorf("%d %q", code, body)
			}
		}
	})
	// What a client sends after an upgrade that was refused must reach nobody.
	t.Run("nothing follows", func(t *testing.T) {
		s := front(t, connect.Config{}, location(t, k, "/refuse/", upgrade), false)
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusForbidden {
			t.Fatal(resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		before := k.asked()
		fmt.Fprintf(conn, "GET /secret HTTP/1.1\r\nHost: x\r\n\r\n")
		if _, err := r.ReadByte(); err == nil {
			t.Error("the connection is still open")
		}
		if k.asked() != before {
			t.Errorf("the kubelet got %v", k.last(t).URL)
		}
	})
}

func TestCertificates(t *testing.T) {
	k, stranger := newKubelet(t), newKubelet(t)
	ca, cert := k.files(t)
	strangerCA, _ := stranger.files(t)
	for name, test := range map[string]struct {
		config     connect.Config
		unverified bool
		user       string
		fails      bool
	}{
		"anonymous": {config: connect.Config{}},
		"known":     {config: connect.Config{KubeletCA: ca, KubeletCertificate: cert, KubeletKey: cert}, user: "kube-apiserver"},
		"stranger":  {config: connect.Config{KubeletCA: strangerCA, KubeletCertificate: cert, KubeletKey: cert}, fails: true},
		"unverified": {
			config: connect.Config{KubeletCA: strangerCA, KubeletCertificate: cert, KubeletKey: cert}, unverified: true, user: "kube-apiserver",
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := location(t, k, "/containerLogs/n/p/c", func(l *resource.Location) { l.Unverified = test.unverified })
			sink := &measuretest.Sink{}
			test.config.Metrics = sink
			code, body := get(t, front(t, test.config, to, true).URL)
			if test.fails {
				if code != 500 || !strings.Contains(body, "x509: certificate signed by unknown authority") {
					t.Errorf("%d %q", code, body)
				}
				if n := len(sink.Of(measure.PodLogTLSFailures)); n != 1 {
					t.Errorf("%d failures are counted", n)
				}
				return
			}
			user := ""
			if certs := k.last(t).TLS.PeerCertificates; len(certs) > 0 {
				user = certs[0].Subject.CommonName
			}
			if code != 200 || body != "first" || user != test.user {
				t.Errorf("%d %q as %q", code, body, user)
			}
		})
	}
	for _, cfg := range []connect.Config{{KubeletCA: "none"}, {KubeletCertificate: "none", KubeletKey: "none"}, {KubeletKey: cert}, {KubeletCA: "connect_test.go"}} {
		if _, err := connect.New(cfg); err == nil {
			t.Errorf("%+v is good", cfg)
		}
	}
}

func TestText(t *testing.T) {
	k := newKubelet(t)
	for path, want := range map[string]string{
		"c":       "200 first",
		"waiting": "500 container is waiting to start",
		"broken":  "500 Internal error occurred: out of order",
		"missing": "500 the server could not find the requested resource ( pods/log p)",
		"moved":   "500 Get \"/containerLogs/n/p/c\": redirects forbidden",
	} {
		code, body := get(t, front(t, connect.Config{}, location(t, k, "/containerLogs/n/p/"+path, nil), true).URL)
		if got := fmt.Sprint(code, " ", body); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}

	follow := location(t, k, "/containerLogs/n/p/c?follow=true", func(l *resource.Location) { l.Flush = true })
	s := front(t, connect.Config{}, follow, true)
	resp, err := http.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" {
		t.Fatal(line, err)
	}
	k.more <- struct{}{}
	if line, err := lines.ReadString('\n'); line != "second\n" {
		t.Fatal(line, err)
	}
	if kind := resp.Header.Get("Content-Type"); kind != "text/plain" {
		t.Error(kind)
	}

	// As a WebSocket, each piece is a message after an empty one.
	conn, _, err := websocket.DefaultDialer.Dial(strings.Replace(s.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got := ""
	for !strings.Contains(got, "first\n") {
		_, message, err := conn.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		got += string(message)
	}
}

func TestProxy(t *testing.T) {
	k := newKubelet(t)
	s := front(t, connect.Config{}, location(t, k, "/metrics/x", func(l *resource.Location) { l.Kubelet = false }), false)
	code, body := get(t, s.URL+"/api/v1/nodes/n/proxy/metrics/x?a=b", "Authorization", "Bearer secret", "Impersonate-User", "x", "X-Mine", "y")
	if code != 200 || body != "GET /metrics/x?a=b" {
		t.Errorf("%d %q", code, body)
	}
	h := k.last(t).Header
	if h.Get("Authorization") != "" || h.Get("Impersonate-User") != "" || h.Get("X-Mine") != "y" || h.Get("X-Forwarded-For") == "" {
		t.Errorf("passed on: %v", h)
	}
	// Links in pages are relative to where they are.
	root := front(t, connect.Config{}, location(t, k, "", nil), false)
	resp, err := http.DefaultTransport.RoundTrip(mustRequest(t, root.URL+"/api/v1/nodes/n/proxy?a=b"))
	if err != nil || resp.StatusCode != http.StatusMovedPermanently || resp.Header.Get("Location") != "/api/v1/nodes/n/proxy/?a=b" {
		t.Error(resp, err)
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestWebSocket passes a WebSocket on as it is, without the token of the
// client, until the request ends.
func TestWebSocket(t *testing.T) {
	k := newKubelet(t)
	to := location(t, k, "/exec/n/p/c", upgrade)
	c, err := connect.New(connect.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.Connect(w, r.WithContext(ctx), to, func(err error) { t.Error(err) })
	}))
	t.Cleanup(s.Close)
	dialer := websocket.Dialer{Subprotocols: []string{"base64url.bearer.authorization.k8s.io.c2VjcmV0", "v5.channel.k8s.io"}}
	conn, _, err := dialer.Dial(strings.Replace(s.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.Subprotocol() != "v5.channel.k8s.io" {
		t.Errorf("protocol %q", conn.Subprotocol())
	}
	if got := k.last(t).Header.Get("Sec-WebSocket-Protocol"); got != "v5.channel.k8s.io" {
		t.Errorf("the kubelet was offered %q", got)
	}
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	if _, message, err := conn.ReadMessage(); err != nil || string(message) != "\x00hello" {
		t.Fatal(message, err)
	}
	end()
	if _, _, err := conn.ReadMessage(); err == nil {
		t.Error("the connection goes on after its request")
	}
}

// TestProxiesDoNotReachLoopback is about names that resolve to an allowed address when
// they are checked, and to this machine when the connection is made.
func TestProxiesDoNotReachLoopback(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") }))
	defer backend.Close()
	_, port, err := net.SplitHostPort(strings.TrimPrefix(backend.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	to := &resource.Location{URL: &url.URL{Scheme: "http", Host: "localhost:" + port}}
	s := front(t, connect.Config{}, to, false)
	// The connection of the first stays open, and must not be used by the second.
	if code, body := get(t, s.URL); code != 200 || body != "secret" {
		t.Fatalf("got %d %q of a location that may be anywhere, want 200", code, body)
	}
	to.Routable = true
	for _, kubelet := range []bool{false, true} {
		to.Kubelet = kubelet
		for _, headers := range [][]string{nil, {"Connection", "Upgrade", "Upgrade", "SPDY/3.1"}} {
			if code, body := get(t, s.URL, headers...); code == 200 || !strings.Contains(body, "address not allowed") {
				t.Errorf("kubelet %v, headers %v: got %d %q, want address not allowed", kubelet, headers, code, body)
			}
		}
	}
}
