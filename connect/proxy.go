package connect

import (
	"log/slog"
	"net/http"
	"net/url"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"
)

// Via says how Proxy reaches another server.
type Via struct {
	// Transport to it. Upgrades use its dialer and TLS configuration.
	Transport *http.Transport
	// ForwardRedirects passes redirects on; otherwise they are errors.
	ForwardRedirects bool
	// Fail answers when there is no answer.
	Fail func(error)
	// Logger gets what goes wrong on connections; nil discards it.
	Logger *slog.Logger
}

// Proxy passes a request on to a URL of another API server, with its headers but
// without the credentials of the client. Upgrades are made as for connections of
// subresources.
func Proxy(w http.ResponseWriter, r *http.Request, to *url.URL, via Via) {
	log := logr.Discard()
	if via.Logger != nil {
		log = logr.FromSlogHandler(via.Logger.Handler())
	}
	out := r.WithContext(logr.NewContext(r.Context(), log))
	out.Header = forwarded(r.Header)
	if _, ok := w.(http.Hijacker); ok {
		w = &ending{w, r.Context()}
	}
	fail := func(err error) {
		if httpstream.IsUpgradeRequest(r) {
			// The client may already send what is meant for the other side.
			w.Header().Set("Connection", "close")
		}
		via.Fail(err)
	}
	handler := proxy.NewUpgradeAwareHandler(to, answering{via.Transport, w.Header()}, false, false, proxy.NewErrorResponder(responder(fail)))
	handler.UpgradeTransport = proxy.NewUpgradeRequestRoundTripper(via.Transport, proxy.MirrorRequest)
	handler.RejectForwardingRedirects = !via.ForwardRedirects
	handler.FlushInterval = -1 // events of a watch are for now
	handler.ServeHTTP(w, out)
}

// answering removes the headers that this server has set from its answer if the
// other server sets them too: they are to be there once.
type answering struct {
	*http.Transport
	own http.Header
}

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.Transport.RoundTrip(r)
	if err == nil {
		for name := range resp.Header {
			delete(a.own, name)
		}
	}
	return resp, err
}
