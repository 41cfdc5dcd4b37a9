package controlplane

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/pki"
)

// TestChangedAuthoritiesArePublished: servers behind this one read in a ConfigMap whom it
// trusts, and learn of a new authority when this server has read its file, not when it
// next looks whether the ConfigMap is there.
func TestChangedAuthoritiesArePublished(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "clients.crt")
	renew := func() (pem string) {
		authority, err := pki.New()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, authority.CertificatePEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(authority.CertificatePEM()))
	}
	first := renew()
	start(t, Config{DataDir: dir, Authentication: authn.Config{X509: authn.X509{CAFile: file}}})
	c := newClient(t, KubeconfigFile(dir))
	c.ready()
	published := func(pem string) func() bool {
		return func() bool {
			var m corev1.ConfigMap
			code, text := c.do(http.MethodGet, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "")
			return code == http.StatusOK && json.Unmarshal([]byte(text), &m) == nil && strings.Contains(m.Data["client-ca-file"], pem)
		}
	}
	polltest.Until(t, "the first authority is published", published(first))
	begin := time.Now()
	polltest.Until(t, "the second authority is published", published(renew()))
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the second authority was published after %v, want that within seconds", took)
	}
}

// TestUIDHeadersArePublished: a server behind this one believes the UID that a proxy tells
// only if this server does, or is the proxy.
func TestUIDHeadersArePublished(t *testing.T) {
	proxies, err := pki.NewIssuer()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := proxies.IssueClient("front-proxy-client")
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	ca, pair := filepath.Join(files, "ca.crt"), filepath.Join(files, "client.pem")
	for file, content := range map[string][]byte{ca: proxies.CertificatePEM(), pair: bundle} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	given := Config{Aggregation: Aggregation{ProxyCertificate: pair, ProxyKey: pair}, Authentication: authn.Config{RequestHeader: authn.RequestHeader{
		CAFile: ca, AllowedNames: []string{"front-proxy-client"}, UsernameHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}, ExtraHeaderPrefixes: []string{"X-Remote-Extra-"},
	}}}
	named := given
	named.Authentication.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	for _, test := range []struct {
		name, want string
		config     Config
	}{
		{"its own proxies", `["X-Remote-Uid"]`, Config{}},
		{"proxies of flags, without the header", "", given},
		{"proxies of flags, with the header", `["X-Remote-Uid"]`, named},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.DataDir = t.TempDir()
			start(t, test.config)
			c := newClient(t, KubeconfigFile(test.config.DataDir))
			c.ready()
			var m corev1.ConfigMap
			polltest.Until(t, "the authorities are published", func() bool {
				code, text := c.do(http.MethodGet, "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication", "")
				return code == http.StatusOK && json.Unmarshal([]byte(text), &m) == nil
			})
			if got := m.Data["requestheader-uid-headers"]; got != test.want {
				t.Errorf("got %q for the headers with a UID, want %q", got, test.want)
			}
			if got := m.Data["requestheader-username-headers"]; got != `["X-Remote-User"]` {
				t.Errorf("got %q for the headers with a name, want X-Remote-User", got)
			}
		})
	}
}
