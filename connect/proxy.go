package connect

import (
	"log/slog"
	"net"
	"net/http"
	"net/url"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
)

// Via configures Proxy.
type Via struct {
	// Transport to the backend. Upgrades use its dialer and TLS configuration.
	Transport *http.Transport
	// ForwardRedirects forwards redirects; otherwise they are errors.
	ForwardRedirects bool
	// Fail answers when the backend did not answer.
	Fail func(error)
	// Answered, if it is not nil, gets the status of the backend's response; not that of
	// an upgrade.
	Answered func(status int)
	// Logger gets failures; nil discards them.
	Logger *slog.Logger
}

// Proxy forwards a request to a URL of another API server, without the credentials of
// the client. Upgrades work as in Connect.
func Proxy(w http.ResponseWriter, r *http.Request, to *url.URL, via Via) {
	log := logr.Discard()
	if via.Logger != nil {
		log = logr.FromSlogHandler(via.Logger.Handler())
	}
	out := r.WithContext(logr.NewContext(r.Context(), log))
	out.Header = forwardedHeader(r.Header)
	out, w = guardUpgrade(out, w)
	transport := via.Transport
	if httpstream.IsUpgradeRequest(r) {
		// It dials a connection for itself.
		transport = transport.Clone()
		dial := transport.DialContext
		if dial == nil {
			dial = new(net.Dialer).DialContext
		}
		transport.DialContext = guarded(dial)
	}
	fail := func(err error) {
		if httpstream.IsUpgradeRequest(r) {
			// The client may already have sent data for the backend.
			w.Header().Set("Connection", "close")
		}
		via.Fail(err)
	}
	handler := proxy.NewUpgradeAwareHandler(to, ownHeaderTransport{transport, w.Header(), via.Answered}, false, false, proxy.NewErrorResponder(responder(fail)))
	handler.UpgradeTransport = proxy.NewUpgradeRequestRoundTripper(transport, proxy.MirrorRequest)
	handler.RejectForwardingRedirects = !via.ForwardRedirects
	handler.FlushInterval = -1 // flush every write: events of a watch must not wait
	handler.ServeHTTP(w, out)
}

// ownHeaderTransport removes the headers that this server has set if the backend sets them too,
// so that they are not sent twice.
type ownHeaderTransport struct {
	*http.Transport
	own      http.Header
	answered func(status int) // may be nil
}

// RoundTrip implements http.RoundTripper.
func (a ownHeaderTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.Transport.RoundTrip(r)
	if err == nil {
		for name := range resp.Header {
			delete(a.own, name)
		}
		if a.answered != nil {
			a.answered(resp.StatusCode)
		}
	}
	return resp, err
}
