// Package servercert counts servers that this one asks, and that have certificates
// of a kind that is no longer taken.
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

// Counter counts certificates without names, and those signed by way of SHA-1.
// Requests to their servers fail, or do not if nobody verifies them. Nil counts
// nothing.
type Counter struct {
	noNames, sha1 measure.Series
	log           *slog.Logger
}

// New returns what counts by two metrics, and tells the log, which may be nil.
func New(to measure.Sink, noNames, sha1 string, log *slog.Logger) *Counter {
	if to == nil {
		return nil
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Counter{noNames: to.Series(noNames), sha1: to.Series(sha1), log: log}
}

// OfWebhooks returns what counts those of webhooks of all kinds.
func OfWebhooks(to measure.Sink, log *slog.Logger) *Counter {
	return New(to, measure.WebhookNoNames, measure.WebhookSHA1, log)
}

// See looks at what came of a request: a connection with certificates, or an
// error.
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

// Wrap returns a round tripper whose requests are looked at.
func (c *Counter) Wrap(next http.RoundTripper) http.RoundTripper {
	if c == nil {
		return next
	}
	return seen{next, c}
}

type seen struct {
	next http.RoundTripper
	by   *Counter
}

// RoundTrip implements http.RoundTripper.
func (s seen) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	var state *tls.ConnectionState
	if resp != nil {
		state = resp.TLS
	}
	s.by.See(r.Context(), r.URL.Hostname(), state, err)
	return resp, err
}

// WrappedRoundTripper lets others find what is wrapped.
func (s seen) WrappedRoundTripper() http.RoundTripper { return s.next }

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

// signedBySHA1 looks into the text: the cause is not to be had otherwise.
func signedBySHA1(err error) bool {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return false
	}
	_, cause, _ := strings.Cut(err.Error(), "x509: cannot verify signature: insecure algorithm")
	return strings.Contains(cause, "SHA1")
}

// isSHA1 reports a certificate signed that way, unless it has signed itself, which
// nobody verifies.
func isSHA1(c *x509.Certificate) bool {
	return (c.SignatureAlgorithm == x509.SHA1WithRSA || c.SignatureAlgorithm == x509.ECDSAWithSHA1) && c.Issuer.String() != c.Subject.String()
}
