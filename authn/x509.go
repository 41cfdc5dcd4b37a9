package authn

import (
	"context"
	"crypto/x509"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/authn/certificate"
)

// WithConnection returns the context of a new connection. Servers set it as
// http.Server.ConnContext; without it, every request is verified.
func WithConnection(ctx context.Context) context.Context { return certificate.WithConnection(ctx) }

// pool holds CAs that may be replaced at any time.
type pool = atomic.Pointer[x509.CertPool]

// certificates authenticates with client certificates: the common name is the user
// name, the organizations are the groups.
type certificates struct {
	roots *pool
	now   func() time.Time
	noUID bool
}

// Authenticate implements Authenticator.
func (c *certificates) Authenticate(r *http.Request) (*Identity, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	var slot *certificate.Slot
	if conn := certificate.Of(r); conn != nil {
		slot = &conn.Client
	}
	return certificate.Verify(slot, c.roots.Load(), c.now(), r.TLS.PeerCertificates,
		func(cert *x509.Certificate, until time.Time) (*Identity, error) {
			user, err := certificate.User(cert, !c.noUID)
			if user == nil || err != nil {
				return nil, err
			}
			return authenticated(&Identity{User: *user, Expires: until}), nil
		})
}
