// Package servercert counts connections to servers with deprecated certificates. Start
// at Counter.
package servercert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

// Counter counts server certificates without subject alternative names, and those
// signed with SHA-1. Requests to such servers fail, unless the certificate is not
// verified. A nil Counter counts nothing.
type Counter struct {
	noNames, sha1 measure.Series
	log           *slog.Logger
}

// New returns a counter with two metrics; log may be nil.
func New(to measure.Sink, noNames, sha1 string, log *slog.Logger) *Counter {
	if to == nil {
		return nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Counter{noNames: to.Series(noNames), sha1: to.Series(sha1), log: log}
}

// OfWebhooks returns the counter for webhooks of all kinds.
func OfWebhooks(to measure.Sink, log *slog.Logger) *Counter {
	return New(to, measure.WebhookNoNames, measure.WebhookSHA1, log)
}

// See inspects the result of a request: the TLS state, or the error.
func (c *Counter) See(ctx context.Context, host string, state *tls.ConnectionState, err error) {
	if c == nil || err == nil && (state == nil || len(state.PeerCertificates) == 0) {
		return
	}
	if err != nil && withoutNames(err) || err == nil && !hasNames(state.PeerCertificates[0]) {
		c.count(ctx, c.noNames, "missing-san", host, "relies on a legacy Common Name field instead of the SAN extension for subject validation")
	}
	if err != nil && signedBySHA1(err) || err == nil && slices.ContainsFunc(state.PeerCertificates, isSHA1) {
		c.count(ctx, c.sha1, "insecure-sha1", host, "uses an insecure SHA-1 signature")
	}
}

func (c *Counter) count(ctx context.Context, to measure.Series, id, host, why string) {
	if host != "" {
		prefix := id + ".invalid-cert.kubernetes.io"
		c.log.Info("invalid certificate detected", "id", prefix, "host", host, "reason", why)
		request.From(ctx).Annotate(prefix+"/"+host, why)
	}
	to.Observe(1)
}

// Wrap returns a round tripper that inspects the results of requests.
func (c *Counter) Wrap(next http.RoundTripper) http.RoundTripper {
	if c == nil {
		return next
	}
	return inspectedTransport{next, c}
}

type inspectedTransport struct {
	next http.RoundTripper
	by   *Counter
}

// RoundTrip implements http.RoundTripper.
func (s inspectedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	var state *tls.ConnectionState
	if resp != nil {
		state = resp.TLS
	}
	s.by.See(r.Context(), r.URL.Hostname(), state, err)
	return resp, err
}

// WrappedRoundTripper returns the wrapped round tripper.
func (s inspectedTransport) WrappedRoundTripper() http.RoundTripper { return s.next }

func withoutNames(err error) bool {
	var name x509.HostnameError
	return errors.As(err, &name) && strings.Contains(err.Error(), "x509: certificate relies on legacy Common Name field")
}

func hasNames(c *x509.Certificate) bool {
	for _, e := range c.Extensions {
		if e.Id.Equal([]int{2, 5, 29, 17}) { // subject alternative names
			return true
		}
	}
	return false
}

// signedBySHA1 matches the error text: the cause has no type.
func signedBySHA1(err error) bool {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return false
	}
	_, cause, _ := strings.Cut(err.Error(), "x509: cannot verify signature: insecure algorithm")
	return strings.Contains(cause, "SHA1")
}

// isSHA1 reports whether a certificate is signed with SHA-1. Self-signed ones are
// ignored, since their signature is not verified.
func isSHA1(c *x509.Certificate) bool {
	return (c.SignatureAlgorithm == x509.SHA1WithRSA || c.SignatureAlgorithm == x509.ECDSAWithSHA1) && c.Issuer.String() != c.Subject.String()
}
