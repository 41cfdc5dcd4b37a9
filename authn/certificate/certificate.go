// Package certificate authenticates client certificates. Start at Verify and User. It
// is a leaf: a server that authenticates by certificates alone needs no other package
// of authn.
package certificate

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

// failureTTL is how long a certificate that was not valid is not verified again.
const failureTTL = 10 * time.Second

// CredentialID is the key in User.Extra with the ID of the credential.
const CredentialID = "authentication.kubernetes.io/credential-id"

// Connection caches the verification of a connection's client certificate, which costs
// more than most requests. The certificate cannot change during a connection; the CAs
// can, and then the cached result is not used.
type Connection struct {
	// Client is the result for the CAs of users, Proxy for those of authenticating
	// proxies.
	Client, Proxy Slot
}

// Slot is the cached result for one set of CAs.
type Slot struct{ p atomic.Pointer[proof] }

type proof struct {
	roots *x509.CertPool
	until time.Time
	who   any
	err   error
}

type connectionKey struct{}

// WithConnection returns the context of a new connection. Servers set it as
// http.Server.ConnContext; without it, every request is verified.
func WithConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, connectionKey{}, &Connection{})
}

// Of returns the connection of a request, nil without WithConnection.
func Of(r *http.Request) *Connection {
	c, _ := r.Context().Value(connectionKey{}).(*Connection)
	return c
}

// Verify verifies the certificates that a client has sent, or returns the cached result
// of the slot. identify returns the user of the first certificate, nil for none, and is
// passed the time until which the chain is valid.
func Verify[T any](slot *Slot, roots *x509.CertPool, now time.Time, sent []*x509.Certificate,
	identify func(cert *x509.Certificate, until time.Time) (*T, error)) (*T, error) {
	if slot != nil {
		if p := slot.p.Load(); p != nil && p.roots == roots && now.Before(p.until) {
			who, _ := p.who.(*T)
			return who, p.err
		}
	}
	p := &proof{roots: roots}
	until, err := verifyChain(roots, now, sent)
	var who *T
	if err == nil {
		who, err = identify(sent[0], until)
	}
	p.until, p.who, p.err = until, who, err
	if err != nil {
		// A certificate does not become valid, except when its NotBefore is reached.
		// Repeated attempts should not cost much.
		p.until = now.Add(failureTTL)
	}
	if slot != nil {
		slot.p.Store(p)
	}
	return who, err
}

// verifyChain returns the time until which the chain is valid.
func verifyChain(roots *x509.CertPool, now time.Time, sent []*x509.Certificate) (time.Time, error) {
	opts := x509.VerifyOptions{
		// Nil would mean the CAs of the host.
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
		return time.Time{}, fmt.Errorf("verifying certificate %s failed: %w", describe(sent[0]), err)
	}
	// The chain that is valid longest counts.
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

func describe(c *x509.Certificate) string {
	colons := func(b []byte) string {
		parts := make([]string, len(b))
		for i := range b {
			parts[i] = fmt.Sprintf("%02X", b[i])
		}
		return strings.Join(parts, ":")
	}
	return fmt.Sprintf("SN=%d, SKID=%s, AKID=%s", c.SerialNumber, colons(c.SubjectKeyId), colons(c.AuthorityKeyId))
}

// User returns the user of a certificate, nil if it has no common name. The common name
// is the user name, the organizations are the groups.
func User(cert *x509.Certificate, withUID bool) (*request.User, error) {
	if cert.Subject.CommonName == "" {
		return nil, nil
	}
	uid := ""
	if withUID {
		var err error
		if uid, err = userID(cert); err != nil {
			return nil, err
		}
	}
	sum := sha256.Sum256(cert.Raw)
	return &request.User{
		Name: cert.Subject.CommonName, UID: uid, Groups: cert.Subject.Organization,
		Extra: map[string][]string{CredentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}},
	}, nil
}

// userID returns the UID of a user from the attribute that Kubernetes defines for it.
func userID(cert *x509.Certificate) (string, error) {
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
