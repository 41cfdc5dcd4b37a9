// Package pki holds the certificates of a server: its own CA, its serving certificate,
// and the client certificate of the administrator. Start at Authority. It never changes
// a CA that exists.
//
// # The folder
//
//	ca.crt, ca.key   the CA; created once, never changed
//	server.pem       certificate and key of the server
//	admin.pem        certificate and key of the administrator
//
// The CA may also be provided, for example by kubeadm's two files. The other files are
// created again when they are missing, expire soon, lack a name or come from another
// CA; each is one file, so that a certificate and its key are always replaced together.
// Files appear whole or not at all, and two processes that start in the same empty
// folder agree on one CA.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	caLifetime   = 10 * 365 * 24 * time.Hour
	leafLifetime = 365 * 24 * time.Hour
	// renewBefore is the remaining lifetime below which a certificate is renewed.
	renewBefore = 90 * 24 * time.Hour
	// clockSkew is how far the clocks of clients may be behind.
	clockSkew = time.Hour

	// AdminUser and AdminGroup are the subject of the administrator's certificate.
	AdminUser  = "kubernetes-admin"
	AdminGroup = "system:masters"
)

// Authority is a CA with the certificates of the server.
type Authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	pem   []byte
	dir   string // "" if nothing is stored
	names names

	mu            sync.Mutex       // guards server and admin
	server, admin *tls.Certificate // nil until they are needed, if nothing is stored
}

// names are the subject alternative names of the serving certificate.
type names struct {
	dns []string
	ips []net.IP
}

// New creates a CA in memory, which issues its certificates when they are first needed.
// hosts are names and addresses of the server besides the usual ones.
func New(hosts ...string) (*Authority, error) {
	a, err := NewIssuer()
	if err != nil {
		return nil, err
	}
	a.names = serverNames(hosts)
	return a, nil
}

// NewIssuer creates a CA in memory that only signs for others: it has no certificates
// for a server or an administrator.
func NewIssuer() (*Authority, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	certPEM, err := newCA(key)
	if err != nil {
		return nil, err
	}
	a := &Authority{}
	return a, a.setCA(certPEM, keyPEM)
}

// Open reads the certificates in a folder, and creates what is missing.
func Open(dir string, hosts ...string) (*Authority, error) {
	a, err := OpenIssuer(dir)
	if err != nil {
		return nil, err
	}
	a.names = serverNames(hosts)
	return a, a.loadLeaves()
}

// OpenIssuer is NewIssuer with a CA that is stored in a folder.
func OpenIssuer(dir string) (*Authority, error) {
	a := &Authority{dir: dir}
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	return a, a.loadCA()
}

// serverNames are the names of a server from its own host, from outside and from within
// a cluster.
func serverNames(hosts []string) names {
	all := []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"127.0.0.1", "::1", "10.0.0.1",
	}
	if hostname, err := os.Hostname(); err == nil {
		all = append(all, hostname)
	}
	var n names
	for _, host := range append(all, hosts...) {
		switch ip := net.ParseIP(host); {
		case host == "" || ip != nil && ip.IsUnspecified():
		case ip == nil:
			if !slices.Contains(n.dns, host) {
				n.dns = append(n.dns, host)
			}
		case !slices.ContainsFunc(n.ips, ip.Equal):
			n.ips = append(n.ips, ip)
		}
	}
	return n
}

// loadCA reads the CA. The key is created first and decides: a process that finds a key
// uses it, and CA certificates that two processes create from the same key are
// interchangeable.
func (a *Authority) loadCA() error {
	certFile, keyFile := filepath.Join(a.dir, "ca.crt"), filepath.Join(a.dir, "ca.key")
	certPEM, err := os.ReadFile(certFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		if certPEM != nil {
			return fmt.Errorf("%s is there, but its key %s is not: restore it, or remove the folder to begin with a new authority", certFile, keyFile)
		}
		var fresh []byte
		if _, fresh, err = newKey(); err == nil {
			keyPEM, err = createOnce(keyFile, fresh, 0o600)
		}
	}
	if err != nil {
		return err
	}
	if certPEM == nil {
		key, err := parseKey(keyPEM)
		if err != nil {
			return fmt.Errorf("%s: %w", keyFile, err)
		}
		fresh, err := newCA(key)
		if err != nil {
			return err
		}
		if certPEM, err = createOnce(certFile, fresh, 0o644); err != nil {
			return err
		}
	}
	if err := a.setCA(certPEM, keyPEM); err != nil {
		return fmt.Errorf("authority in %s: %w", a.dir, err)
	}
	return nil
}

func (a *Authority) setCA(certPEM, keyPEM []byte) error {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return err
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	switch {
	case !ok || !pair.Leaf.IsCA:
		return errors.New("the certificate is not one of an authority")
	case time.Now().After(pair.Leaf.NotAfter):
		return fmt.Errorf("it ended on %s: remove the folder to make a new one, and give every client a new kubeconfig",
			pair.Leaf.NotAfter.Format(time.DateOnly))
	}
	a.cert, a.key, a.pem = pair.Leaf, signer, certPEM
	return nil
}

func (a *Authority) loadLeaves() (err error) {
	if _, err = a.ServerCertificate(nil); err == nil {
		_, err = a.adminCertificate()
	}
	return err
}

func (a *Authority) adminCertificate() (_ *tls.Certificate, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.admin == nil {
		a.admin, err = a.loadLeaf("admin.pem", func(*x509.Certificate) bool { return true }, func() ([]byte, error) {
			return a.IssueClient(AdminUser, AdminGroup)
		})
	}
	return a.admin, err
}

// loadLeaf reads a certificate from its file, or issues it if the file does not have a
// valid one.
func (a *Authority) loadLeaf(file string, good func(*x509.Certificate) bool, issue func() ([]byte, error)) (*tls.Certificate, error) {
	if a.dir != "" {
		content, err := os.ReadFile(filepath.Join(a.dir, file))
		if err == nil {
			// A broken file is replaced like a missing one.
			if pair, err := tls.X509KeyPair(content, content); err == nil && a.isFresh(pair.Leaf) && good(pair.Leaf) {
				return &pair, nil
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	content, err := issue()
	if err != nil {
		return nil, err
	}
	if a.dir != "" {
		if err := writeFile(filepath.Join(a.dir, file), content, 0o600); err != nil {
			return nil, err
		}
	}
	pair, err := tls.X509KeyPair(content, content)
	return &pair, err
}

// isFresh reports whether a certificate is signed by this CA and does not expire soon.
func (a *Authority) isFresh(cert *x509.Certificate) bool {
	return !a.endsSoon(cert) && cert.CheckSignatureFrom(a.cert) == nil
}

func (a *Authority) endsSoon(cert *x509.Certificate) bool {
	// A certificate that expires with the CA cannot be extended.
	return time.Now().Add(renewBefore).After(cert.NotAfter) && cert.NotAfter.Before(a.cert.NotAfter)
}

func (a *Authority) coversServerNames(cert *x509.Certificate) bool {
	for _, name := range a.names.dns {
		if !slices.Contains(cert.DNSNames, name) {
			return false
		}
	}
	for _, ip := range a.names.ips {
		if !slices.ContainsFunc(cert.IPAddresses, ip.Equal) {
			return false
		}
	}
	return true
}

func (a *Authority) issueServer() ([]byte, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    a.names.dns,
		IPAddresses: a.names.ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// IssueClient issues a client certificate for a user, and returns it with its key in
// PEM.
func (a *Authority) IssueClient(user string, groups ...string) ([]byte, error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (a *Authority) issue(cert *x509.Certificate) ([]byte, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	cert.NotBefore, cert.NotAfter = now.Add(-clockSkew), now.Add(leafLifetime)
	if cert.NotAfter.After(a.cert.NotAfter) {
		cert.NotAfter = a.cert.NotAfter
	}
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return append(encodeCert(der), keyPEM...), nil
}

// ServerCertificate is a GetCertificate for tls.Config. It renews the certificate
// before it expires.
func (a *Authority) ServerCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.server == nil || a.endsSoon(a.server.Leaf) {
		fresh, err := a.loadLeaf("server.pem", a.coversServerNames, a.issueServer)
		if err == nil {
			a.server = fresh
		} else if a.server == nil {
			return nil, err
		}
	}
	return a.server, nil
}

// ServerCertificateValid reports whether the certificate of the server has not expired.
// One that is not issued yet will be valid as long as the CA is.
func (a *Authority) ServerCertificateValid() bool {
	a.mu.Lock()
	end := a.cert.NotAfter
	issued := a.server != nil
	a.mu.Unlock()
	if issued {
		own, err := a.ServerCertificate(nil) // renewed, if need be
		if err != nil {
			return false
		}
		end = own.Leaf.NotAfter
	}
	return !time.Now().After(end)
}

// ServerPair returns the files apiserver.crt and apiserver.key in a folder. Existing
// files are used as they are; otherwise they are created, with the CA appended to the
// certificate, so that a client that trusts the file trusts the server.
func (a *Authority) ServerPair(dir string) (Pair, error) {
	pair := Pair{CertFile: filepath.Join(dir, "apiserver.crt"), KeyFile: filepath.Join(dir, "apiserver.key")}
	cert, certErr := os.ReadFile(pair.CertFile)
	key, keyErr := os.ReadFile(pair.KeyFile)
	switch {
	case certErr == nil && keyErr == nil:
		old, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return pair, fmt.Errorf("%s: %w", pair.CertFile, err)
		}
		if old.Leaf.CheckSignatureFrom(a.cert) != nil || a.isFresh(old.Leaf) && a.coversServerNames(old.Leaf) {
			return pair, nil
		}
	case errors.Is(certErr, os.ErrNotExist) && errors.Is(keyErr, os.ErrNotExist):
	case certErr != nil:
		return pair, fmt.Errorf("error reading %s, certificate and key must be supplied as a pair: %w", pair.CertFile, certErr)
	default:
		return pair, fmt.Errorf("error reading %s, certificate and key must be supplied as a pair: %w", pair.KeyFile, keyErr)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return pair, fmt.Errorf("folder for certificates: %w", err)
	}
	content, err := a.issueServer()
	if err != nil {
		return pair, err
	}
	split := bytes.Index(content, []byte("-----BEGIN PRIVATE KEY"))
	if err := writeFile(pair.KeyFile, content[split:], 0o600); err != nil {
		return pair, err
	}
	return pair, writeFile(pair.CertFile, append(slices.Clone(content[:split]), a.pem...), 0o644)
}

// AdminCertificate returns the client certificate of the administrator, nil if it cannot
// be issued.
func (a *Authority) AdminCertificate() *tls.Certificate {
	admin, err := a.adminCertificate()
	if err != nil {
		return nil
	}
	return admin
}

// ValidFrom is when the certificate of the CA begins to be valid.
func (a *Authority) ValidFrom() time.Time { return a.cert.NotBefore }

// CertificatePEM returns the certificate of the CA.
func (a *Authority) CertificatePEM() []byte { return a.pem }

// Pool returns a pool with the CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func newCA(key crypto.Signer) ([]byte, error) {
	now := time.Now()
	cert := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "kelson-ca"},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return encodeCert(der), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// parseKey parses a key as newKey writes it. It is only used for keys without a
// certificate, which this package has created.
func parseKey(keyPEM []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, errors.New("no private key in it")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("its key cannot sign")
	}
	return signer, nil
}
