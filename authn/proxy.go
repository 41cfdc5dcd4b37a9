package authn

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/authn/certificate"
	"github.com/apikeel/kelson/request"
)

// proxy authenticates with the headers that an authenticating proxy sets. The proxy
// authenticates itself with a client certificate; from others the headers are ignored.
type proxy struct {
	roots *pool
	now   func() time.Time
	// names are the allowed common names of the certificate; any if empty.
	names []string
	// Header names in canonical form; those of extra are prefixes.
	user, uid, groups, extra []string
}

func newProxy(roots *pool, now func() time.Time, c RequestHeader) *proxy {
	return &proxy{
		roots: roots, now: now, names: c.AllowedNames, extra: c.ExtraHeaderPrefixes,
		user: canonicalHeaders(c.UsernameHeaders), uid: canonicalHeaders(c.UIDHeaders), groups: canonicalHeaders(c.GroupHeaders),
	}
}

func canonicalHeaders(names []string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = http.CanonicalHeaderKey(name)
	}
	return out
}

// Authenticate implements Authenticator.
func (p *proxy) Authenticate(r *http.Request) (*Identity, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	var slot *certificate.Slot
	if conn := certificate.Of(r); conn != nil {
		slot = &conn.Proxy
	}
	if _, err := certificate.Verify(slot, p.roots.Load(), p.now(), r.TLS.PeerCertificates, p.allowed); err != nil {
		return nil, err
	}
	u := p.userOf(r.Header)
	if u.Name == "" {
		return nil, nil
	}
	return authenticated(&Identity{User: u}), nil
}

// userOf returns the user that headers name; one without a name if they name none.
func (p *proxy) userOf(h http.Header) request.User {
	u := request.User{Name: first(h, p.user), UID: first(h, p.uid), Extra: p.extraOf(h)}
	for _, header := range p.groups {
		for _, group := range h[header] {
			if group != "" {
				u.Groups = append(u.Groups, group)
			}
		}
	}
	return u
}

// allowed checks the common name of a certificate.
func (p *proxy) allowed(cert *x509.Certificate, _ time.Time) (*Identity, error) {
	if name := cert.Subject.CommonName; len(p.names) > 0 && !slices.Contains(p.names, name) {
		return nil, fmt.Errorf("x509: subject with cn=%s is not in the allowed list", name)
	}
	return nil, nil
}

// first returns the first value of the first header that is set.
func first(h http.Header, names []string) string {
	for _, name := range names {
		if values := h[name]; len(values) > 0 && values[0] != "" {
			return values[0]
		}
	}
	return ""
}

func (p *proxy) extraOf(h http.Header) map[string][]string {
	var extra map[string][]string
	for _, prefix := range p.extra {
		for name, values := range h {
			if !hasFoldedPrefix(name, prefix) {
				continue
			}
			key := strings.ToLower(name[len(prefix):])
			if plain, err := url.PathUnescape(key); err == nil {
				key = plain
			}
			if extra == nil {
				extra = map[string][]string{}
			}
			extra[key] = append(extra[key], values...)
		}
	}
	return extra
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// strip removes the headers that only a proxy may set.
func (p *proxy) strip(h http.Header) {
	for _, names := range [][]string{p.user, p.uid, p.groups} {
		for _, name := range names {
			delete(h, name)
		}
	}
	for _, prefix := range p.extra {
		for name := range h {
			if hasFoldedPrefix(name, prefix) {
				delete(h, name)
			}
		}
	}
}
