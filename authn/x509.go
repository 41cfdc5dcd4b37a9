package authn

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
)

// Connection remembers what the client certificate of a connection has proved:
// verifying one costs more than most requests. A certificate cannot change
// while its connection lasts; the authorities that vouch for it can, and what
// was remembered under others does not count.
type Connection struct{ client, proxy atomic.Pointer[proof] }

// proof is what a certificate has proved to one set of authorities.
type proof struct {
	roots *x509.CertPool
	until time.Time
	id    *Identity
	err   error
}

type connectionKey struct{}

// WithConnection returns the context of a new connection. Servers set it as
// http.Server.ConnContext; without it, every request is verified.
func WithConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, connectionKey{}, &Connection{})
}

func connectionOf(r *http.Request) *Connection {
	c, _ := r.Context().Value(connectionKey{}).(*Connection)
	return c
}

// pool holds certificates of authorities that may be replaced at any time.
type pool = atomic.Pointer[x509.CertPool]

// certificates authenticates by client certificate: the common name is the
// user, the organizations are the groups.
type certificates struct {
	roots *pool
	now   func() time.Time
}

// Authenticate implements Authenticator.
func (c *certificates) Authenticate(r *http.Request) (*Identity, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	var slot *atomic.Pointer[proof]
	if conn := connectionOf(r); conn != nil {
		slot = &conn.client
	}
	return verified(slot, c.roots.Load(), c.now(), r.TLS.PeerCertificates, certificateIdentity)
}

// verified returns what a client certificate proves to the authorities, from
// the slot if it is known already. Whose it is, identify says.
func verified(slot *atomic.Pointer[proof], roots *x509.CertPool, now time.Time, sent []*x509.Certificate,
	identify func(*x509.Certificate) (*Identity, error)) (*Identity, error) {
	if slot != nil {
		if p := slot.Load(); p != nil && p.roots == roots && now.Before(p.until) {
			return p.id, p.err
		}
	}
	p := &proof{roots: roots}
	var until time.Time
	if until, p.err = verifyChain(roots, now, sent); p.err == nil {
		p.id, p.err = identify(sent[0])
	}
	p.until = until
	if p.err != nil {
		// A certificate does not become good, except by waiting for the day on
		// which it begins. Clients that hold one in vain should not cost much.
		p.until = now.Add(failedProofLasts)
	}
	if p.id != nil {
		p.id.Expires = until
	}
	if slot != nil {
		slot.Store(p)
	}
	return p.id, p.err
}

// failedProofLasts is how long a certificate that was found not to be good is
// not looked at again.
const failedProofLasts = 10 * time.Second

// verifyChain returns until when a chain is good.
func verifyChain(roots *x509.CertPool, now time.Time, sent []*x509.Certificate) (time.Time, error) {
	opts := x509.VerifyOptions{
		// Nil would stand for the authorities of the host.
		Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if roots == nil {
		opts.Roots = x509.NewCertPool()
	}
	if len(sent) > 1 {
		opts.Intermediates = x509.NewCertPool()
		for _, cert := range sent[1:] {
			opts.Intermediates.AddCert(cert)
		}
	}
	chains, err := sent[0].Verify(opts)
	if err != nil {
		return time.Time{}, fmt.Errorf("verifying certificate %s failed: %w", describeCertificate(sent[0]), err)
	}
	// The chain that lasts longest counts.
	var until time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, cert := range chain {
			if cert.NotAfter.Before(end) {
				end = cert.NotAfter
			}
		}
		if end.After(until) {
			until = end
		}
	}
	return until, nil
}

func describeCertificate(c *x509.Certificate) string {
	colons := func(b []byte) string {
		parts := make([]string, len(b))
		for i := range b {
			parts[i] = fmt.Sprintf("%02X", b[i])
		}
		return strings.Join(parts, ":")
	}
	return fmt.Sprintf("SN=%d, SKID=%s, AKID=%s", c.SerialNumber, colons(c.SubjectKeyId), colons(c.AuthorityKeyId))
}

// certificateIdentity returns who a certificate names, nil if nobody.
func certificateIdentity(cert *x509.Certificate) (*Identity, error) {
	if cert.Subject.CommonName == "" {
		return nil, nil
	}
	uid, err := certificateUID(cert)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(cert.Raw)
	return authenticated(&Identity{User: request.User{
		Name: cert.Subject.CommonName, UID: uid, Groups: cert.Subject.Organization,
		Extra: map[string][]string{extraCredentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}}), nil
}

// certificateUID reads the attribute in which Kubernetes puts the UID of a
// user.
func certificateUID(cert *x509.Certificate) (string, error) {
	oid := asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	var uids []string
	for _, name := range cert.Subject.Names {
		if !name.Type.Equal(oid) {
			continue
		}
		uid, ok := name.Value.(string)
		if !ok {
			return "", errors.New("unable to parse UID into a string")
		}
		uids = append(uids, uid)
	}
	switch {
	case len(uids) == 0:
		return "", nil
	case len(uids) > 1:
		return "", fmt.Errorf("expected 1 UID, but found multiple: %v", uids)
	case uids[0] == "":
		return "", errors.New("UID cannot be an empty string")
	}
	return uids[0], nil
}
