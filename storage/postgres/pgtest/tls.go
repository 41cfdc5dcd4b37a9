//go:build unix

package pgtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ServerTLS is what a database with TLS has, in PEM: its certificate and key, and the
// authority of the certificates of its clients.
type ServerTLS struct{ Cert, Key, ClientCA []byte }

// TLS makes the database refuse connections without TLS, other than those by way of the
// Unix socket. They come by way of the proxy, from 127.0.0.1. Access says what they need
// beside TLS, nothing by default.
func TLS(files ServerTLS) Option { return func(s *settings) { s.tls = &files } }

// requireTLS sets up TLS, and returns lines for pg_hba.conf. TLS needs TCP: the database
// has no TLS on Unix sockets.
func (db *DB) requireTLS(files ServerTLS) (access []string) {
	db.tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		db.tb.Fatalf("pgtest: %v", err)
	}
	db.port = l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	db.target.Store(&target{"tcp", l.Addr().String()})
	db.writeTLS(files)
	db.configure([]string{
		"listen_addresses = '127.0.0.1'", fmt.Sprintf("port = %d", db.port),
		"ssl = on", "ssl_cert_file = 'tls.crt'", "ssl_key_file = 'tls.key'", "ssl_ca_file = 'clients.crt'",
	})
	return []string{"hostnossl all all all reject"}
}

func (db *DB) writeTLS(files ServerTLS) {
	db.tb.Helper()
	for name, content := range map[string][]byte{"tls.crt": files.Cert, "tls.key": files.Key, "clients.crt": files.ClientCA} {
		path := filepath.Join(db.data(), name)
		err := os.WriteFile(path, content, 0o600)
		if err == nil && db.runAs != nil {
			err = os.Chown(path, int(db.runAs.Uid), int(db.runAs.Gid))
		}
		if err != nil {
			db.tb.Fatalf("pgtest: %v", err)
		}
	}
}

// RenewTLS gives a database with TLS other files, which count for new connections.
func (db *DB) RenewTLS(files ServerTLS) {
	db.tb.Helper()
	db.writeTLS(files)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	conn, err := pgconn.Connect(ctx, db.SocketDSN())
	if err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_reload_conf()").ReadAll()
		_ = conn.Close(ctx)
	}
	if err != nil {
		db.tb.Fatalf("pgtest: %v", err)
	}
}

// Authority signs certificates.
type Authority struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority returns a new authority with a key of its own.
func NewAuthority(tb testing.TB) *Authority {
	tb.Helper()
	a := &Authority{tb: tb}
	template := newTemplate(tb, "authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert, a.key = a.sign(template)
	return a
}

func newTemplate(tb testing.TB, commonName string) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: commonName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

// sign signs a certificate, that of the authority with the key of the certificate.
func (a *Authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.tb.Fatalf("pgtest: %v", err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		a.tb.Fatalf("pgtest: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.tb.Fatalf("pgtest: %v", err)
	}
	return cert, key
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Issue returns a certificate and its key in PEM: with DNS names one of a server, without
// one of a client, whose user is the common name.
func (a *Authority) Issue(commonName string, names ...string) (cert, key []byte) {
	a.tb.Helper()
	return a.IssueUntil(time.Now().Add(time.Hour), commonName, names...)
}

// IssueUntil is Issue with a time when the certificate expires.
func (a *Authority) IssueUntil(end time.Time, commonName string, names ...string) (cert, key []byte) {
	a.tb.Helper()
	template := newTemplate(a.tb, commonName)
	template.NotAfter, template.DNSNames = end, names
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(names) > 0 {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	signed, private := a.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.tb.Fatalf("pgtest: %v", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed.Raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
