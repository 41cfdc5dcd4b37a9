// Package connect opens the connections that subresources stand for: to
// kubelets, for exec, attach, port forwarding and logs, and to nodes, pods and
// services for proxying.
//
// A connection is passed on as it is. If the client asks for an upgrade, to
// SPDY or WebSocket, the other side is asked for it with the same headers, and
// when it agrees bytes go back and forth until one side ends. If it does not
// agree, its answer is the client's, and the connection ends with it: nothing
// that follows can be taken for a request of its own. Redirects are never
// followed.
//
// What was this server's business alone, such as the credentials of the client,
// goes no further.
package connect

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/apikeel/kelson/egress"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/resource"
)

// Config says how kubelets are spoken to.
type Config struct {
	// KubeletCA is the file with the authority that has signed the certificates
	// of kubelets. Without one they are not verified.
	KubeletCA string
	// KubeletCertificate and KubeletKey are the files with the certificate that
	// kubelets know this server by. They are read whenever a connection is
	// made, so that they can be replaced.
	KubeletCertificate, KubeletKey string
	// Dial is how nodes, pods and services are reached; nil is directly.
	Dial egress.Dial
	// MaxBytesPerSecond bounds what a connection carries that is not HTTP any longer;
	// 0 is no bound.
	MaxBytesPerSecond int64
	// Metrics counts kubelets that are not who they should be; nil does not.
	Metrics measure.Sink
	// Logger gets what goes wrong on connections; nil discards it.
	Logger *slog.Logger
}

// Connector opens connections. It implements rest.Connector.
type Connector struct {
	kubelet, unverified, plain *http.Transport
	// For locations that are Routable. They are apart from the others so that no
	// connection is used again that was made without the check.
	routableKubelet, routablePlain *http.Transport

	log      logr.Logger
	maxBytes int64 // a second
	unknown  measure.Series
}

// New returns a connector.
func New(cfg Config) (*Connector, error) {
	if (cfg.KubeletCertificate == "") != (cfg.KubeletKey == "") {
		return nil, errors.New("a certificate for kubelets needs a key, and a key a certificate")
	}
	// Who is at the other end of a proxy is between it and the client.
	plain := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}
	unverified := plain.Clone()
	if cfg.KubeletCertificate != "" {
		unverified.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(cfg.KubeletCertificate, cfg.KubeletKey)
			return &pair, err
		}
		if _, err := unverified.GetClientCertificate(nil); err != nil {
			return nil, fmt.Errorf("certificate for kubelets: %w", err)
		}
	}
	kubelet := unverified.Clone()
	if cfg.KubeletCA != "" {
		pem, err := os.ReadFile(cfg.KubeletCA)
		if err != nil {
			return nil, fmt.Errorf("authority of kubelets: %w", err)
		}
		kubelet.InsecureSkipVerify, kubelet.RootCAs = false, x509.NewCertPool()
		if !kubelet.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("authority of kubelets: %s has no certificate", cfg.KubeletCA)
		}
	}
	log := logr.Discard()
	if cfg.Logger != nil {
		log = logr.FromSlogHandler(cfg.Logger.Handler())
	}
	dial, routable := cfg.Dial, cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		routable = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: checkRoutable}).DialContext
	}
	return &Connector{
		kubelet: transport(dial, kubelet), unverified: transport(dial, unverified), plain: transport(dial, plain),
		routableKubelet: transport(routable, kubelet), routablePlain: transport(routable, plain),
		log: log, maxBytes: cfg.MaxBytesPerSecond, unknown: measure.SeriesOf(cfg.Metrics, measure.PodLogTLSFailures),
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

// maxAnswerHeader is how many bytes the header of an answer has at most.
const maxAnswerHeader = 1 << 20

func transport(dial egress.Dial, tls *tls.Config) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     tls,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 2,
		IdleConnTimeout:     90 * time.Second,
		// Bodies pass as they are.
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxAnswerHeader,
	}
}

// transport returns the way to a location.
func (c *Connector) transport(to *resource.Location) *http.Transport {
	switch {
	case to.Routable && to.Kubelet:
		return c.routableKubelet
	case to.Routable:
		return c.routablePlain
	case !to.Kubelet:
		return c.plain
	case to.Unverified:
		return c.unverified
	}
	return c.kubelet
}

// Connect passes a request on to a location. fail answers with an error.
func (c *Connector) Connect(w http.ResponseWriter, r *http.Request, to *resource.Location, fail func(error)) {
	r = r.WithContext(logr.NewContext(r.Context(), c.log))
	r.Header = forwarded(r.Header)
	if _, ok := w.(http.Hijacker); ok {
		w = &ending{w, r.Context()}
	}
	if c.translates(w, r, to, fail) {
		return
	}
	handler := proxy.NewUpgradeAwareHandler(to.URL, c.transport(to), !to.Upgrade, to.Upgrade, proxy.NewErrorResponder(responder(fail)))
	handler.MaxBytesPerSec = c.maxBytes
	handler.ServeHTTP(w, r)
}

type responder func(error)

func (r responder) Error(err error) { r(err) }

// tokenProtocol begins the subprotocol of WebSocket in which browsers, which
// cannot set headers, send a token.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// forwarded returns the headers that may be passed on.
func forwarded(h http.Header) http.Header {
	h = h.Clone()
	for name := range h {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") {
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

// ending is a writer whose connection, once somebody has taken it over, ends
// with the request: when the server stops, nobody else would end it.
type ending struct {
	http.ResponseWriter
	ctx context.Context
}

// Hijack implements http.Hijacker.
func (w *ending) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := w.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		context.AfterFunc(w.ctx, func() { _ = conn.Close() })
	}
	return conn, buffer, err
}

// Flush implements http.Flusher.
func (w *ending) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Unwrap lets http.ResponseController find what is not here.
func (w *ending) Unwrap() http.ResponseWriter { return w.ResponseWriter }
