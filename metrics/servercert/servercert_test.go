package servercert_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/measuretest"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/metrics/servercert"
)

// serve starts a server whose certificate is made of a template, and returns a
// client that trusts who has signed it.
func serve(t *testing.T, key *rsa.PrivateKey, change func(*x509.Certificate)) (url string, config *tls.Config) {
	t.Helper()
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	change(leaf)
	sign := func(c *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, root, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		made, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	root = sign(root)
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{sign(leaf).Raw}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := x509.NewCertPool()
	pool.AddCert(root)
	return s.URL, &tls.Config{RootCAs: pool}
}

func TestCounter(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*x509.Certificate)
		trust  bool // whoever it is
		fails  bool
		want   map[string]int
	}{
		{"good", func(*x509.Certificate) {}, false, false, map[string]int{}},
		{"no names", func(c *x509.Certificate) { c.IPAddresses = nil }, false, true, map[string]int{measure.WebhookNoNames: 1}},
		{"no names, not verified", func(c *x509.Certificate) { c.IPAddresses = nil }, true, false, map[string]int{measure.WebhookNoNames: 1}},
		{"another name", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"other"} }, false, true, map[string]int{}},
		{"sha1", func(c *x509.Certificate) { c.SignatureAlgorithm = x509.SHA1WithRSA }, false, true, map[string]int{measure.WebhookSHA1: 1}},
		{"sha1, not verified", func(c *x509.Certificate) { c.SignatureAlgorithm = x509.SHA1WithRSA }, true, false, map[string]int{measure.WebhookSHA1: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, config := serve(t, key, c.change)
			config.InsecureSkipVerify = c.trust
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			sink := &measuretest.Sink{}
			client := http.Client{Transport: servercert.OfWebhooks(sink, nil).Wrap(transport)}
			resp, err := client.Get(url)
			if err == nil {
				_ = resp.Body.Close()
			}
			if (err != nil) != c.fails {
				t.Errorf("the answer: %v", err)
			}
			if got := sink.Names(); !maps.Equal(got, c.want) {
				t.Errorf("counted: %v, want %v (%v)", got, c.want, err)
			}
		})
	}
}
