package etcdtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TLSFiles are PEM files with which a client reaches a cluster started with
// the TLS option.
type TLSFiles struct {
	// CA is the authority that signed the certificates of the members.
	CA string
	// Cert and Key are a client certificate which the members accept.
	Cert, Key string

	serverCert, serverKey string
}

func (f TLSFiles) clientConfig(tb testing.TB) *tls.Config {
	tb.Helper()
	ca, err := os.ReadFile(f.CA)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
}

// makeTLSFiles makes an authority and, signed by it, a certificate for the
// members and one for clients.
func makeTLSFiles(tb testing.TB) TLSFiles {
	tb.Helper()
	dir := tb.TempDir()
	f := TLSFiles{
		CA:         filepath.Join(dir, "ca.crt"),
		Cert:       filepath.Join(dir, "client.crt"),
		Key:        filepath.Join(dir, "client.key"),
		serverCert: filepath.Join(dir, "server.crt"),
		serverKey:  filepath.Join(dir, "server.key"),
	}
	ca, caKey := newCertificate(tb, "etcdtest CA", nil, nil)
	writePEM(tb, f.CA, "CERTIFICATE", ca.Raw)
	for _, c := range []struct{ name, cert, key string }{
		{"etcdtest server", f.serverCert, f.serverKey},
		{"etcdtest client", f.Cert, f.Key},
	} {
		cert, key := newCertificate(tb, c.name, ca, caKey)
		writePEM(tb, c.cert, "CERTIFICATE", cert.Raw)
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			tb.Fatalf("etcdtest: %v", err)
		}
		writePEM(tb, c.key, "EC PRIVATE KEY", der)
	}
	return f
}

// newCertificate returns a certificate signed by parent; without one, an
// authority that signs itself.
func newCertificate(tb testing.TB, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:     []string{"localhost"},
	}
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	return cert, key
}

func writePEM(tb testing.TB, path, kind string, der []byte) {
	tb.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
}
