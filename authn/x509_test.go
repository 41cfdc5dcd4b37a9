package authn

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func TestCertificates(t *testing.T) {
	ca, other := newAuthority(t, "users"), newAuthority(t, "users")
	below := ca.intermediate(t)
	jane := pkix.Name{CommonName: "jane", Organization: []string{"dev", "ops"}}
	withIntermediate := below.issue(t, jane)
	withIntermediate.Certificate = append(withIntermediate.Certificate, below.cert.Raw)

	server := serve(t, newStage(t, Config{X509: X509{CAs: ca.pem()}}))
	tests := []struct {
		name string
		cert *tls.Certificate
		user request.User
		err  string
	}{
		{name: "good", cert: ca.issue(t, jane),
			user: request.User{Name: "jane", Groups: []string{"dev", "ops", "system:authenticated"}}},
		{name: "no certificate", user: request.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}},
		{name: "uid", cert: ca.issue(t, uidName("1234")),
			user: request.User{Name: "jane", UID: "1234", Groups: []string{"dev", "system:authenticated"}}},
		{name: "group that is added anyway", cert: ca.issue(t, pkix.Name{CommonName: "jane", Organization: []string{"system:authenticated"}}),
			user: request.User{Name: "jane", Groups: []string{"system:authenticated"}}},
		{name: "intermediate", cert: withIntermediate,
			user: request.User{Name: "jane", Groups: []string{"dev", "ops", "system:authenticated"}}},
		{name: "without its intermediate", cert: below.issue(t, jane), err: "certificate signed by unknown authority"},
		{name: "another authority of the same name", cert: other.issue(t, jane), err: "certificate signed by unknown authority"},
		{name: "expired", cert: ca.issue(t, jane, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			err: "certificate has expired or is not yet valid"},
		{name: "not yet valid", cert: ca.issue(t, jane, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }),
			err: "certificate has expired or is not yet valid"},
		{name: "for servers only", cert: ca.issue(t, jane, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
			err: "certificate specifies an incompatible key usage"},
		{name: "nobody", cert: ca.issue(t, pkix.Name{Organization: []string{"dev"}}),
			user: request.User{Name: "system:anonymous", Groups: []string{"system:unauthenticated"}}},
		{name: "two uids", cert: ca.issue(t, uidName("1", "2")), err: "expected 1 UID, but found multiple: [1 2]"},
		{name: "empty uid", cert: ca.issue(t, uidName("")), err: "UID cannot be an empty string"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := client(t, server, test.cert)
			// The second time it is known already.
			for range 2 {
				got := ask(t, c, server.URL, nil)
				if test.err != "" {
					if got.User != nil || !strings.Contains(got.Err, test.err) {
						t.Fatalf("got %+v, want error %q", got, test.err)
					}
					continue
				}
				if got.Err != "" {
					t.Fatal(got.Err)
				}
				id := got.User.Extra[extraCredentialID]
				if certified := test.cert != nil && got.User.Name == "jane"; certified != (len(id) == 1 && len(id[0]) == len("X509SHA256=")+64) {
					t.Errorf("credential ID %q", id)
				}
				got.User.Extra = nil
				if !reflect.DeepEqual(*got.User, test.user) {
					t.Errorf("got %+v, want %+v", *got.User, test.user)
				}
			}
		})
	}
}

func TestCertificateErrorText(t *testing.T) {
	ca, other := newAuthority(t, "users"), newAuthority(t, "others")
	server := serve(t, newStage(t, Config{X509: X509{CAs: ca.pem()}}))
	cert := other.issue(t, pkix.Name{CommonName: "jane"}, func(c *x509.Certificate) {
		c.SubjectKeyId, c.AuthorityKeyId = []byte{1, 0xab}, []byte{2}
	})
	got := ask(t, client(t, server, cert), server.URL, nil)
	if !strings.HasPrefix(got.Err, "verifying certificate SN=2, SKID=01:AB, AKID=") || !strings.HasSuffix(got.Err, " failed: x509: certificate signed by unknown authority") {
		t.Errorf("got %q", got.Err)
	}
}

// TestCertificateRemembered makes sure that what a connection has proved does
// not outlive the certificate or the authority.
func TestCertificateRemembered(t *testing.T) {
	ca, next := newAuthority(t, "users"), newAuthority(t, "users")
	file := writeFile(t, "ca.crt", ca.pem())
	now := time.Now()
	s := newStage(t, Config{X509: X509{CAFile: file}, Now: func() time.Time { return now }})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	cert := ca.issue(t, pkix.Name{CommonName: "jane"})
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert.Leaf}}
	r = r.WithContext(WithConnection(t.Context()))

	check := func(want bool) *Identity {
		t.Helper()
		id, err := s.Authenticate(r)
		if (id != nil && err == nil) != want {
			t.Fatalf("got %v, error %v", id, err)
		}
		return id
	}
	first := check(true)
	if check(true) != first {
		t.Error("the identity is not remembered")
	}
	if !first.Expires.Equal(cert.Leaf.NotAfter) {
		t.Errorf("expires %v", first.Expires)
	}
	now = now.Add(2 * time.Hour)
	check(false)
	now = time.Now()
	r = r.WithContext(WithConnection(t.Context()))
	check(true)

	before := s.ClientCAs()
	if s.Reload(); s.ClientCAs() != before {
		t.Error("authorities are replaced although they have not changed")
	}
	rewrite(t, file, next.pem())
	s.Reload()
	check(false)
	rewrite(t, file, []byte("no certificates"))
	s.Reload()
	check(false)
	rewrite(t, file, append(next.pem(), ca.pem()...))
	s.Reload()
	check(true)
	for _, a := range []*authority{ca, next} {
		if _, err := a.cert.Verify(x509.VerifyOptions{Roots: s.ClientCAs()}); err != nil {
			t.Errorf("the handshake does not name an authority: %v", err)
		}
	}
}

func BenchmarkCertificate(b *testing.B) {
	ca := newAuthority(b, "users")
	s := newStage(b, Config{X509: X509{CAs: ca.pem()}})
	cert := ca.issue(b, pkix.Name{CommonName: "jane", Organization: []string{"dev"}})
	request := func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert.Leaf}}
		return r
	}
	for name, r := range map[string]*http.Request{
		"connection": request().WithContext(WithConnection(b.Context())),
		"verify":     request(),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if id, err := s.Authenticate(r); id == nil || err != nil {
					b.Fatal(id, err)
				}
			}
		})
	}
}
