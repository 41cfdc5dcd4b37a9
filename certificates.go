package kelson

import (
	"crypto/x509"
	"net/http"
	"slices"
	"time"

	"github.com/apikeel/kelson/authn/certificate"
	"github.com/apikeel/kelson/request"
)

// groupAuthenticated is the group of all authenticated users.
const groupAuthenticated = "system:authenticated"

// byCertificate authenticates client certificates that roots have issued. The user is shared
// by the requests of a connection and must not be changed.
func byCertificate(roots *x509.CertPool) func(r *http.Request) (request.User, bool, error) {
	return func(r *http.Request) (request.User, bool, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return request.User{}, false, nil
		}
		var slot *certificate.Slot
		if conn := certificate.Of(r); conn != nil {
			slot = &conn.Client
		}
		user, err := certificate.Verify(slot, roots, time.Now(), r.TLS.PeerCertificates, identify)
		if user == nil || err != nil {
			return request.User{}, false, err
		}
		return *user, true, nil
	}
}

func identify(cert *x509.Certificate, _ time.Time) (*request.User, error) {
	user, err := certificate.User(cert, true)
	if user != nil && !slices.Contains(user.Groups, groupAuthenticated) {
		user.Groups = append(slices.Clip(user.Groups), groupAuthenticated)
	}
	return user, err
}
