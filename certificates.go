package kelson

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/request"
)

const (
	groupAuthenticated = "system:authenticated"
	credentialID       = "authentication.kubernetes.io/credential-id"
)

// certificates authenticates by client certificate: the common name is the
// user, the organizations are the groups.
type certificates struct {
	roots *x509.CertPool
	uid   asn1.ObjectIdentifier // of the attribute that holds a user's UID
}

func newCertificates(roots *x509.CertPool) *certificates {
	return &certificates{roots: roots, uid: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}}
}

// identity is what the certificate of a connection has proved, and until when.
type identity struct {
	user  request.User
	ok    bool
	err   error
	until time.Time
}

// connection remembers the identity of its client: verifying costs more than
// most requests.
type connection struct{ identity atomic.Pointer[identity] }

type connectionKey struct{}

func withConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

// authenticate returns the user. Groups and Extra are shared by the requests of
// a connection and must not be changed.
func (c *certificates) authenticate(r *http.Request) (request.User, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return request.User{}, false, nil
	}
	now := time.Now()
	conn, _ := r.Context().Value(connectionKey{}).(*connection)
	if conn != nil {
		if id := conn.identity.Load(); id != nil && now.Before(id.until) {
			return id.user, id.ok, id.err
		}
	}
	id := c.verify(r.TLS.PeerCertificates, now)
	if conn != nil {
		conn.identity.Store(id)
	}
	return id.user, id.ok, id.err
}

func (c *certificates) verify(sent []*x509.Certificate, now time.Time) *identity {
	id := &identity{}
	opts := x509.VerifyOptions{
		Roots: c.roots, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(sent) > 1 {
		opts.Intermediates = x509.NewCertPool()
		for _, cert := range sent[1:] {
			opts.Intermediates.AddCert(cert)
		}
	}
	leaf := sent[0]
	chains, err := leaf.Verify(opts)
	if err != nil {
		id.err = fmt.Errorf("verifying the client certificate of %q: %w", leaf.Subject, err)
		return id
	}
	if leaf.Subject.CommonName == "" {
		return id
	}
	if id.user.UID, id.err = c.userID(leaf); id.err != nil {
		return id
	}
	sum := sha256.Sum256(leaf.Raw)
	id.user.Name = leaf.Subject.CommonName
	id.user.Groups = slices.Clip(leaf.Subject.Organization)
	if !slices.Contains(id.user.Groups, groupAuthenticated) {
		id.user.Groups = append(id.user.Groups, groupAuthenticated)
	}
	id.user.Extra = map[string][]string{credentialID: {"X509SHA256=" + hex.EncodeToString(sum[:])}}
	id.ok = true
	id.until = leaf.NotAfter
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(id.until) {
			id.until = cert.NotAfter
		}
	}
	return id
}

func (c *certificates) userID(cert *x509.Certificate) (string, error) {
	uid, found := "", false
	for _, name := range cert.Subject.Names {
		if !name.Type.Equal(c.uid) {
			continue
		}
		value, isString := name.Value.(string)
		if !isString || value == "" || found {
			return "", errors.New("the client certificate must have one UID that is not empty, or none")
		}
		uid, found = value, true
	}
	return uid, nil
}
