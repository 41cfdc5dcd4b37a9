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
