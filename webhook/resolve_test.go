package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apikeel/kelson/pki"
)

// hook starts a webhook that answers with its name, the protocol and the Host header.
func hook(t *testing.T, authority *pki.Authority, name string) *httptest.Server {
	t.Helper()
	certificate, err := authority.ServerCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, name, " ", r.Proto, " ", r.Host)
	}))
	server.EnableHTTP2, server.TLS = true, &tls.Config{Certificates: []tls.Certificate{*certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// TestProtocolOfWebhooks: a webhook at a URL of this machine is called with HTTP/2, as
// kube-apiserver does; others have several backends, over which HTTP/2 would not spread
// requests.
func TestProtocolOfWebhooks(t *testing.T) {
	authority, err := pki.New("127.0.0.1", "hook.example.com")
	if err != nil {
		t.Fatal(err)
	}
	server := hook(t, authority, "a")
	address := strings.TrimPrefix(server.URL, "https://")
	c := &Client{DialURL: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	defer c.Close()
	for url, want := range map[string]string{
		server.URL:                     "HTTP/2.0",
		"https://hook.example.com/ask": "HTTP/1.1",
	} {
		answer, err := c.Post(t.Context(), &Endpoint{URL: url, CABundle: authority.CertificatePEM()}, []byte("{}"), nil)
		if err != nil || !strings.Contains(string(answer), want) {
			t.Errorf("%s: got %q, %v, want %s", url, answer, err, want)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "LocalHost": true, "127.0.0.1": true, "127.8.8.8": true, "::1": true, "10.0.0.1": false, "localhost.example.com": false} {
		if got := isLoopback(host); got != want {
			t.Errorf("isLoopback(%q): got %v, want %v", host, got, want)
		}
	}
}

// TestServicesAreResolvedForEveryRequest: a request goes to where the service is then, not
// over a connection to where it was, unless the gate says so.
func TestServicesAreResolvedForEveryRequest(t *testing.T) {
	authority, err := pki.New("webhook.test.svc")
	if err != nil {
		t.Fatal(err)
	}
	first, second := hook(t, authority, "first"), hook(t, authority, "second")
	for onDial, want := range map[bool]string{false: "second", true: "first"} {
		var at atomic.Value
		at.Store(first.URL)
		c := &Client{ResolveOnDial: onDial, Resolve: func(context.Context, string, string, int32) (string, error) {
			return strings.TrimPrefix(at.Load().(string), "https://"), nil
		}}
		to := &Endpoint{Service: &Service{Namespace: "test", Name: "webhook", Port: 8443}, CABundle: authority.CertificatePEM()}
		ask := func() string {
			answer, err := c.Post(t.Context(), to, []byte("{}"), nil)
			if err != nil {
				t.Fatal(err)
			}
			return string(answer)
		}
		const rest = " HTTP/1.1 webhook.test.svc:8443"
		if got := ask(); got != "first"+rest {
			t.Errorf("on dial %v: got %q, want %q", onDial, got, "first"+rest)
		}
		at.Store(second.URL)
		if got := ask(); got != want+rest {
			t.Errorf("on dial %v, when the service has moved: got %q, want %q", onDial, got, want+rest)
		}
		c.Close()
	}
}
