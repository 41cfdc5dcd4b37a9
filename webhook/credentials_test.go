package webhook

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/pki"
)

func credentials(t *testing.T, content string) *Credentials {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := LoadCredentials(file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCredentialsFor(t *testing.T) {
	users := func(current string, names ...string) *Credentials {
		text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {user: '" + current + "'}}]\nusers:\n"
		for _, name := range names {
			text += fmt.Sprintf("- {name: '%s', user: {token: '%[1]s'}}\n", name)
		}
		return credentials(t, text)
	}
	for _, tt := range []struct {
		current string
		names   []string
		target  string
		want    string
	}{
		{"", []string{"a.b.c:8443", "*"}, "a.b.c:8443", "a.b.c:8443"},
		{"", []string{"a.b.c", "*"}, "a.b.c:8443", "*"},
		{"", []string{"a.b.c", "*"}, "a.b.c:443", "a.b.c"},
		{"", []string{"*.b.c:8443", "*.c:8443"}, "a.b.c:8443", "*.b.c:8443"},
		{"", []string{"*.c:8443", "*"}, "a.b.c:8443", "*.c:8443"},
		{"", []string{"*.c:443", "a.b.c"}, "a.b.c:443", "*.c:443"},
		{"", []string{"*.b.c", "*.c"}, "a.b.c:443", "*.b.c"},
		{"", []string{"*.ns.svc", "*"}, "hook.ns.svc:443", "*.ns.svc"},
		{"me", []string{"me", "a.b.c"}, "x:443", "me"},
		{"me", []string{"me", "*"}, "x:443", "*"},
		{"", []string{"a.b.c"}, "x:443", ""},
	} {
		got := ""
		if user := users(tt.current, tt.names...).For(tt.target); user != nil {
			got = user.Token
		}
		if got != tt.want {
			t.Errorf("%v, %s of %v: %q, want %q", tt.target, tt.current, tt.names, got, tt.want)
		}
	}
	if new(Client).Credentials.For("x:443") != nil {
		t.Error("somebody, without credentials")
	}
}

func TestCredentialsShown(t *testing.T) {
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if certs := r.TLS.PeerCertificates; len(certs) > 0 {
			name = certs[0].Subject.CommonName
		}
		fmt.Fprint(w, r.Header.Get("Authorization"), "/", name)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	defer server.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	pair, err := authority.IssueClient("jane") // certificate and key
	if err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("fromfile"), 0o600); err != nil {
		t.Fatal(err)
	}
	encode := base64.StdEncoding.EncodeToString
	for user, want := range map[string]string{
		"{token: secret}":                "Bearer secret/",
		"{tokenFile: " + tokenFile + "}": "Bearer fromfile/",
		"{username: u, password: p}":     "Basic " + encode([]byte("u:p")) + "/",
		"{}":                             "/",
		"{client-certificate-data: " + encode(pair) + ", client-key-data: " + encode(pair) + "}": "/jane",
	} {
		c := &Client{Credentials: credentials(t, "apiVersion: v1\nkind: Config\nusers: [{name: '*', user: "+user+"}]\n")}
		answer, err := c.Post(context.Background(), &Endpoint{URL: server.URL, CABundle: ca}, []byte("{}"), nil)
		if err != nil || string(answer) != want {
			t.Errorf("%.40s: %s, %v, want %s", user, answer, err, want)
		}
		c.Close()
	}
}

// TestSelf checks that the service kubernetes is the server itself.
func TestSelf(t *testing.T) {
	self := roundTripper(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		fmt.Fprint(w, r.URL.Path)
		return w.Result(), nil
	})
	c := &Client{Self: self}
	for _, to := range []Endpoint{
		{Service: &Service{Namespace: "default", Name: "kubernetes", Path: "/apis/x"}},
		{URL: "https://kubernetes.default.svc/apis/x"},
		{URL: "https://kubernetes.default.svc:443/apis/x"},
	} {
		if answer, err := c.Post(context.Background(), &to, nil, nil); err != nil || !strings.HasPrefix(string(answer), "/apis/x") {
			t.Errorf("%v: %s, %v", to, answer, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
