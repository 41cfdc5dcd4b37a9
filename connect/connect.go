// Package connect connects clients to kubelets, for exec, attach, port forwarding and
// logs, and to nodes, pods and services for proxying. Start at Connector. It never
// follows redirects, and never forwards the credentials of a client.
//
// If the client asks for an upgrade to SPDY or WebSocket, the request is forwarded with
// the same headers, and when the backend agrees bytes are copied in both directions
// until one side closes. If it does not agree, its answer is forwarded and the
// connection is closed, so that nothing that follows can be taken for another request.
package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Config configures connections to kubelets and others.
type Config struct {
	// KubeletCA is the file with the CA of the kubelets' certificates. Without it they
	// are not verified.
	KubeletCA string
	// KubeletCertificate and KubeletKey are the files with the client certificate for
	// kubelets.
	KubeletCertificate, KubeletKey string
	// Dial connects to nodes, pods and services; nil dials directly.
	Dial egress.Dial
	// MaxBytesPerSecond limits upgraded connections; 0 is no limit.
	MaxBytesPerSecond int64
	// Metrics counts kubelets whose certificate is not valid; nil does not.
	Metrics measure.Sink
	// Logger gets failures of WebSockets and proxied connections; nil discards them.
	Logger *slog.Logger
}

// Connector connects clients to backends. It implements rest.Connector.
type Connector struct {
	kubelets *kubelets
	// routablePlain is for locations that are Routable. It is apart from plain so that no
	// connection is used again that was made without the check.
	plain, routablePlain *http.Transport

	log         logr.Logger
	maxBytes    int64 // per second
	tlsFailures measure.Series
}

// New returns a connector.
func New(cfg Config) (*Connector, error) {
	if (cfg.KubeletCertificate == "") != (cfg.KubeletKey == "") {
		return nil, errors.New("a certificate for kubelets needs a key, and a key a certificate")
	}
	// Backends of a proxy are not verified: trust is between client and backend.
	plain := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	log := logr.Discard()
	if cfg.Logger != nil {
		log = logr.FromSlogHandler(cfg.Logger.Handler())
	}
	dial, routable := cfg.Dial, cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		routable = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: checkRoutable}).DialContext
	}
	dial, routable = guarded(dial), guarded(routable)
	kubelets, err := newKubelets(cfg, dial, routable)
	if err != nil {
		return nil, err
	}
	return &Connector{
		kubelets: kubelets, plain: transport(dial, plain), routablePlain: transport(routable, plain),
		log: log, maxBytes: cfg.MaxBytesPerSecond, tlsFailures: measure.SeriesOf(cfg.Metrics, measure.PodLogTLSFailures),
	}, nil
}

var errNotRoutable = errors.New("address not allowed")

// checkRoutable is a net.Dialer.Control that refuses to connect to this machine, to
// its neighbours by link-local addresses, and to groups. It sees the address that a
// name has been resolved to.
func checkRoutable(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if !at.Addr().Unmap().IsGlobalUnicast() {
		return errNotRoutable
	}
	return nil
}

// maxAnswerHeader is the largest response header in bytes.
const maxAnswerHeader = 1 << 20

func transport(dial egress.Dial, tls *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     tls,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		// Bodies are forwarded unchanged.
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

// transport returns the transport for a location.
func (c *Connector) transport(to *resource.Location) *http.Transport {
	if !to.Kubelet {
		if to.Routable {
			return c.routablePlain
		}
		return c.plain
	}
	k := c.kubelets.current()
	switch {
	case to.Routable:
		return k.routable
	case to.Unverified:
		return k.unverified
	}
	return k.verified
}

// Connect forwards a request to a location. fail answers with an error.
func (c *Connector) Connect(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error)) {
	r = r.WithContext(logr.NewContext(r.Context(), c.log))
	r.Header = forwardedHeader(r.Header)
	r, w = guardUpgrade(r, w)
	if c.tryTranslate(w, r, to, fail) {
		return
	}
	handler := proxy.NewUpgradeAwareHandler(to.URL, c.transport(to), !to.Upgrade, to.Upgrade, proxy.NewErrorResponder(responder(fail)))
	handler.MaxBytesPerSec = c.maxBytes
	handler.ServeHTTP(w, r)
}

type responder func(error)

func (r responder) Error(err error) { r(err) }

// tokenProtocol is the prefix of the WebSocket subprotocol in which browsers send a
// token, since they cannot set headers.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// forwardedHeader returns the headers without credentials.
func forwardedHeader(h http.Header) http.Header {
	h = h.Clone()
	for name := range h {
		if request.IsCredential(name) {
			delete(h, name)
		}
	}
	const name = "Sec-Websocket-Protocol"
	if values := h[name]; len(values) > 0 {
		var kept []string
		for protocol := range strings.SplitSeq(strings.Join(values, ","), ",") {
			if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, tokenProtocol) {
				kept = append(kept, protocol)
			}
		}
		h[name] = []string{strings.Join(kept, ",")}
	}
	return h
}

// closingWriter is a response writer whose hijacked connection is closed when the request's
// context ends, as it does when the server stops.
type closingWriter struct {
	http.ResponseWriter
	ctx   context.Context
	guard *answerGuard // of the connection to the backend; nil unless the request is an upgrade
}

// guardUpgrade guards the connections of an upgrade on both sides. Package proxy takes over that of the client
// when it has read the answer of the backend.
func guardUpgrade(r *http.Request, w http.ResponseWriter) (*http.Request, http.ResponseWriter) {
	var guard *answerGuard
	if httpstream.IsUpgradeRequest(r) {
		var ctx context.Context
		ctx, guard = withGuard(r.Context())
		r = r.WithContext(ctx)
	}
	if _, ok := w.(http.Hijacker); ok {
		w = &closingWriter{w, r.Context(), guard}
	}
	return r, w
}

// Hijack implements http.Hijacker.
func (w *closingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.guard.release()
	conn, buffer, err := w.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	}
	return conn, buffer, err
}

// Flush implements http.Flusher.
func (w *closingWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (w *closingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
