package library

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/resource"
)

const patience = 30 * time.Second

// TestDelegate has another server say who users are, and what they may do, and
// whom to believe about it from one moment to the next.
func TestDelegate(t *testing.T) {
	parent := kelsontest.Start(t, kelsontest.NoControllers())
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, parent.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &kelson.Server{Name: "library", Addr: "127.0.0.1:0", Groups: []resource.Group{{Name: group, Resources: []resource.Definition{books()}}}}
	if err := s.DelegateTo(t.Context(), kubeconfig); err != nil {
		t.Fatal(err)
	}
	run(t, s)

	// get asks with a certificate, on a connection of its own.
	get := func(certificate *tls.Certificate) int {
		t.Helper()
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
			RootCAs:              s.PKI.Pool(),
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil },
		}}}
		resp, err := client.Get(s.URL() + "/apis/" + group + "/v2/books")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	certificate := func(authority *pki.Authority, user string, groups ...string) *tls.Certificate {
		t.Helper()
		bundle, err := authority.IssueClient(user, groups...)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(bundle, bundle)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	admin, err := tls.X509KeyPair(parent.Config().CertData, parent.Config().KeyData)
	if err != nil {
		t.Fatal(err)
	}
	if code := get(&admin); code != http.StatusOK {
		t.Errorf("the administrator of the parent: %d", code)
	}
	if code := get(&tls.Certificate{}); code != http.StatusForbidden {
		t.Errorf("nobody: %d", code)
	}

	next, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	someone := certificate(next, "ann", "system:masters")
	if code := get(someone); code != http.StatusUnauthorized && code != http.StatusForbidden {
		t.Errorf("someone with a certificate of somebody: %d", code)
	}
	clients, err := kubernetes.NewForConfig(parent.Config())
	if err != nil {
		t.Fatal(err)
	}
	maps := clients.CoreV1().ConfigMaps("kube-system")
	trust, err := maps.Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	trust.Data["client-ca-file"] += string(next.CertificatePEM())
	if _, err := maps.Update(t.Context(), trust, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); get(someone) != http.StatusOK; {
		select {
		case <-tick.C:
		case <-end:
			t.Fatal("the new authority does not count")
		}
	}
	if code := get(certificate(next, "bob")); code != http.StatusForbidden {
		t.Errorf("someone without a role: %d", code)
	}
}
