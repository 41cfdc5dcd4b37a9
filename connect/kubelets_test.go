package connect

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/resource"
)

// TestFilesForKubeletsCanBeReplaced: after the client certificate or the CA of kubelets was
// replaced, no request goes over a connection that was made before.
func TestFilesForKubeletsCanBeReplaced(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, content []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	show := func(user string) string { // writes the client certificate with its key
		t.Helper()
		pair, err := authority.IssueClient(user)
		if err != nil {
			t.Fatal(err)
		}
		return file("client.pem", pair)
	}
	certificate, err := authority.ServerCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	node := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	node.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{*certificate}}
	node.StartTLS()
	defer node.Close()
	at, err := url.Parse(node.URL)
	if err != nil {
		t.Fatal(err)
	}

	client, ca := show("first"), file("ca.pem", authority.CertificatePEM())
	c, err := New(Config{KubeletCA: ca, KubeletCertificate: client, KubeletKey: client})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (string, error) {
		c.kubelets.lastLooked = time.Time{}
		resp, err := (&http.Client{Transport: c.transport(&resource.Location{URL: at, Kubelet: true})}).Get(node.URL)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return string(text), err
	}
	if got, err := ask(); err != nil || got != "first" {
		t.Fatalf("got %q, %v, want first", got, err)
	}
	show("second")
	if got, err := ask(); err != nil || got != "second" {
		t.Errorf("after the certificate was replaced: got %q, %v, want second", got, err)
	}
	file("client.pem", []byte("half a certificate"))
	if got, err := ask(); err != nil || got != "second" {
		t.Errorf("after the certificate was damaged: got %q, %v, want second still", got, err)
	}
	other, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	file("ca.pem", other.CertificatePEM())
	if got, err := ask(); err == nil {
		t.Errorf("after the CA was replaced: got %q, want that the kubelet is not trusted", got)
	}
}
