package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "pki")
	first := open(t, dir)
	second := open(t, dir)
	if !bytes.Equal(first.CertificatePEM(), second.CertificatePEM()) ||
		!bytes.Equal(first.server.Certificate[0], second.server.Certificate[0]) ||
		!bytes.Equal(first.admin.Certificate[0], second.admin.Certificate[0]) {
		t.Error("a second start has other certificates than the first")
	}

	for name, mode := range map[string]os.FileMode{
		".": 0o700, "ca.key": 0o600, "ca.crt": 0o644, "server.pem": 0o600, "admin.pem": 0o600,
	} {
		stat, err := os.Stat(filepath.Join(dir, name))
		if err != nil || stat.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v; want %v", name, stat.Mode(), err, mode)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*.*")); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
}

func TestServerCertificate(t *testing.T) {
	a := open(t, t.TempDir(), "192.0.2.7", "api.example.com", "0.0.0.0", "127.0.0.1")
	pair, err := a.ServerCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"127.0.0.1", "::1", "localhost", "10.0.0.1", "192.0.2.7", "api.example.com",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, ip := range pair.Leaf.IPAddresses {
		if ip.IsUnspecified() {
			t.Error("the certificate is for the unspecified address")
		}
	}
}

func TestAdminCertificate(t *testing.T) {
	a := open(t, t.TempDir())
	leaf := a.AdminCertificate().Leaf
	if leaf.Subject.CommonName != "kubernetes-admin" || !slices.Equal(leaf.Subject.Organization, []string{"system:masters"}) {
		t.Errorf("the administrator is %v", leaf.Subject)
	}
	opts := x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := leaf.Verify(opts); err != nil {
		t.Error(err)
	}
}

// A server certificate is replaced when it no longer does, and only then.
func TestRenew(t *testing.T) {
	ours := func(a *Authority, cert x509.Certificate) []byte {
		t.Helper()
		content, err := a.issueServer()
		if err != nil {
			t.Fatal(err)
		}
		pair, _ := tls.X509KeyPair(content, content)
		cert.SerialNumber = nil
		der, err := x509.CreateCertificate(rand.Reader, &cert, a.cert, pair.Leaf.PublicKey, a.key)
		if err != nil {
			t.Fatal(err)
		}
		rest := content[bytes.Index(content, []byte("-----BEGIN PRIVATE")):]
		return append(encodeCert(der), rest...)
	}
	tests := map[string]func(a *Authority, cert x509.Certificate) []byte{
		"ends soon": func(a *Authority, cert x509.Certificate) []byte {
			cert.NotAfter = time.Now().Add(renewBefore - time.Hour)
			return ours(a, cert)
		},
		"lacks a name": func(a *Authority, cert x509.Certificate) []byte {
			cert.DNSNames = cert.DNSNames[1:]
			return ours(a, cert)
		},
		"lacks an address": func(a *Authority, cert x509.Certificate) []byte {
			cert.IPAddresses = cert.IPAddresses[1:]
			return ours(a, cert)
		},
		"another authority": func(*Authority, x509.Certificate) []byte {
			other, err := New()
			if err != nil {
				t.Fatal(err)
			}
			content, _ := other.issueServer()
			return content
		},
		"torn":  func(*Authority, x509.Certificate) []byte { return []byte("-----BEGIN CERT") },
		"empty": func(*Authority, x509.Certificate) []byte { return nil },
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a := open(t, dir)
			path := filepath.Join(dir, "server.pem")
			bad := content(a, *a.server.Leaf)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			again := open(t, dir)
			if now, _ := os.ReadFile(path); bytes.Equal(now, bad) {
				t.Error("it was kept")
			}
			if !again.isFresh(again.server.Leaf) || !again.coversServerNames(again.server.Leaf) {
				t.Error("what replaced it does not do")
			}
			if !bytes.Equal(a.CertificatePEM(), again.CertificatePEM()) {
				t.Error("the authority changed")
			}
		})
	}
	t.Run("new address", func(t *testing.T) {
		dir := t.TempDir()
		open(t, dir)
		if a := open(t, dir, "192.0.2.7"); !a.coversServerNames(a.server.Leaf) {
			t.Error("the certificate lacks the new address")
		}
	})
	t.Run("while serving", func(t *testing.T) {
		a := open(t, t.TempDir())
		old := a.server
		old.Leaf.NotAfter = time.Now().Add(time.Hour)
		if err := os.Remove(filepath.Join(a.dir, "server.pem")); err != nil {
			t.Fatal(err)
		}
		if now, err := a.ServerCertificate(nil); err != nil || now == old {
			t.Errorf("the old one is still shown: %v", err)
		}
	})
}

// Processes that begin together in an empty folder have the same authority.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	found := make([]*Authority, 8)
	var wg sync.WaitGroup
	for i := range found {
		wg.Go(func() {
			a, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			found[i] = a
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, a := range found {
		if !bytes.Equal(a.CertificatePEM(), found[0].CertificatePEM()) {
			t.Error("there are several authorities")
		}
		if _, err := a.admin.Leaf.Verify(x509.VerifyOptions{Roots: found[0].Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Error(err)
		}
	}
	open(t, dir)
}

func TestBroughtAlong(t *testing.T) {
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("key only", func(t *testing.T) {
		dir := t.TempDir()
		a := open(t, dir)
		if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
			t.Fatal(err)
		}
		b := open(t, dir)
		if _, err := a.admin.Leaf.Verify(x509.VerifyOptions{Roots: b.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("a kubeconfig written before is no longer good: %v", err)
		}
	})
	refused := map[string]struct{ file, content, want string }{
		"key lost":     {"ca.key", "", "its key"},
		"other's cert": {"ca.crt", string(other.CertificatePEM()), "does not match"},
		"not a cert":   {"ca.crt", "x", "authority in"},
	}
	for name, tt := range refused {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			open(t, dir)
			path := filepath.Join(dir, tt.file)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if tt.content != "" {
				if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want something with %q", err, tt.want)
			}
		})
	}
}

func TestKubeconfig(t *testing.T) {
	a := open(t, t.TempDir())
	path := filepath.Join(t.TempDir(), "new", "admin.conf")
	for range 2 { // the second replaces the first
		if err := a.WriteKubeconfig(path, "https://127.0.0.1:6443"); err != nil {
			t.Fatal(err)
		}
	}
	if stat, err := os.Stat(path); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", stat.Mode(), err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" || !bytes.Equal(config.CAData, a.CertificatePEM()) {
		t.Errorf("host %q", config.Host)
	}
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil || !pair.Leaf.Equal(a.AdminCertificate().Leaf) {
		t.Errorf("the client certificate is another: %v", err)
	}
}

func TestIssueClient(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	content, err := a.IssueClient("jane", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(content, content)
	want := pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}}
	if err != nil || pair.Leaf.Subject.String() != want.String() {
		t.Errorf("got %v, %v", pair.Leaf.Subject, err)
	}
}

func open(t *testing.T, dir string, hosts ...string) *Authority {
	t.Helper()
	a, err := Open(dir, hosts...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The limits are 10 ms for a first start and 1 ms for others.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		if _, err := New(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, err := Open(dir); err != nil {
			b.Fatal(err)
		}
	}
}
