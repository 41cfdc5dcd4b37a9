package aggregator

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

// This file forwards requests to backends.

const (
	// discoveryTimeout is the timeout of discovery requests.
	discoveryTimeout = 5 * time.Second
	// bufferSize is the size in bytes of the copy buffer for bodies.
	bufferSize = 32 << 10
	// watchMemory is what a watch takes here: a copy buffer, and a stream of the connection
	// to the backend.
	watchMemory = 48 << 10
	// retryHeld is after how many seconds a client may ask again that has too many watches.
	retryHeld = 5

	redirected = "the backend attempted to redirect this request, which is not permitted"
)

// proxy forwards a request to the backend.
//
// The X-Remote headers are set here, whatever the client sent. A connection is upgraded
// only if the backend answers 101; any other answer to an upgrade closes the
// connection. A redirect is an error: the client would follow it with its credentials.
func (b *backend) proxy(w http.ResponseWriter, r *http.Request) {
	b.proxyQuery(w, r, request.QueryOf(r))
}

// proxyQuery is proxy with another query.
func (b *backend) proxyQuery(w http.ResponseWriter, r *http.Request, query request.Query) {
	if !b.available.Load() {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if !request.IsPlainPath(r.URL.Path) {
		b.server.Fail(w, r, request.ErrNotPlain())
		return
	}
	if b.broken != nil {
		http.Error(w, b.broken.Error(), http.StatusInternalServerError)
		return
	}
	req := request.From(r.Context())
	user := b.user(req)
	if user == nil {
		b.server.Fail(w, r, apierrors.NewServiceUnavailable("the resource is served by another API server, to which a user of this name cannot be passed on"))
		return
	}
	target, err := b.resolve(r.Context())
	if err != nil {
		b.server.Logger.Warn("the address of an APIService is not known", "name", b.name, "error", err)
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if req.Verb == request.Watch {
		req.Started() // from here on the backend works: not counted as our latency
	}
	location := &url.URL{Scheme: "https", Host: target.Host, Path: r.URL.Path, RawQuery: query.Encode()}
	if hold := b.server.Hold; hold != nil && req.Verb == request.Watch {
		// In the name of the one who asks: whoever may impersonate others must not use up theirs.
		release := hold(req.Requestor(), watchMemory+int64(len(location.RawQuery)))
		if release == nil {
			b.server.Fail(w, r, apierrors.NewTooManyRequests("too many watches, end some of them first", retryHeld))
			return
		}
		defer release()
	}
	if httpstream.IsUpgradeRequest(r) {
		b.upgrade(w, r, req, user, location)
		return
	}
	if !req.IsResource && strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 2 {
		ctx, cancel := context.WithTimeout(r.Context(), discoveryTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	b.forward(w, r, req, user, location)
}

// upgrade forwards a request to upgrade the connection.
func (b *backend) upgrade(w http.ResponseWriter, r *http.Request, req *request.Request, user http.Header, to *url.URL) {
	out := r.WithContext(r.Context())
	out.Host, out.Header = to.Host, r.Header.Clone()
	// The Connection header is replaced: a proxy on the way drops the headers that it
	// names, and the client could name X-Remote headers.
	out.Header["Connection"] = []string{"Upgrade"}
	out.Trailer = nil
	setUser(out.Header, user)
	if req.AuditID != "" {
		out.Header.Set("Audit-Id", req.AuditID)
	}
	trace.Inject(r.Context(), out.Header)
	connect.Proxy(w, out, to, connect.Via{
		Transport: b.transport, ForwardRedirects: b.server.ForwardRedirects, Logger: b.server.Logger,
		Fail: func(err error) { b.fail(w, err) },
	})
}

// fail answers 503 because the backend did not answer, and triggers a check.
func (b *backend) fail(w http.ResponseWriter, err error) {
	b.checkSoon()
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// forward sends a request to the backend and copies the response. It does what
// httputil.ReverseProxy does with fewer allocations: requests and headers are not
// cloned.
func (b *backend) forward(w http.ResponseWriter, r *http.Request, req *request.Request, user http.Header, to *url.URL) {
	out := r.WithContext(r.Context())
	out.URL, out.Host, out.Header, out.Body, out.Close = to, to.Host, b.requestHeader(r, req, user, to), nil, false
	// Trailers have no meaning in the API, and they break a shared connection: a
	// backend on Go's HTTP/2 server that has answered before the end of the body treats
	// them as a protocol error.
	out.Trailer = nil
	if r.ContentLength != 0 && r.Body != nil {
		body := &borrowedBody{Reader: r.Body}
		defer body.taken.Store(true)
		out.Body = body
	}
	span := trace.Outgoing(r.Context(), out)
	resp, err := b.roundTrip(out, req)
	span.Answered(resp, err)
	if err != nil {
		b.fail(w, fmt.Errorf("error trying to reach service: %w", err))
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		b.fail(w, fmt.Errorf("error trying to reach service: it switched protocols without being asked"))
		return
	}
	if !b.server.ForwardRedirects && resp.StatusCode >= 300 && resp.StatusCode <= 399 && resp.Header.Get("Location") != "" {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, redirected)
		return
	}
	h := w.Header()
	removeHopHeaders(resp.Header)
	for name, values := range resp.Header {
		if !strings.HasPrefix(name, "Access-Control-Allow-") {
			// A header that both servers set has both values, as in kube-apiserver.
			h[name] = append(h[name], values...)
		}
	}
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	w.WriteHeader(resp.StatusCode)
	b.copyBody(w, resp, req.LongRunning())
	for name, values := range resp.Trailer { // complete after the body
		h[http.TrailerPrefix+name] = values
	}
}

// roundTrip sends a request over the connection pool (connpool.go) if it is a short read, else over the
// transport.
func (b *backend) roundTrip(out *http.Request, req *request.Request) (*http.Response, error) {
	if (out.Method == http.MethodGet || out.Method == http.MethodHead) && out.Body == nil && !req.LongRunning() {
		if resp := b.pool.roundTrip(out); resp != nil {
			b.server.Certificates.See(out.Context(), out.URL.Hostname(), resp.TLS, nil)
			return resp, nil
		}
	}
	return b.server.Certificates.Wrap(b.transport).RoundTrip(out)
}

// copyBody copies the response body. If its length is unknown, every piece is flushed;
// for long-running requests the header is flushed too.
func (b *backend) copyBody(w http.ResponseWriter, resp *http.Response, longRunning bool) {
	if resp.Body == http.NoBody {
		return
	}
	control, flush := http.NewResponseController(w), resp.ContentLength < 0
	if flush && longRunning {
		_ = control.Flush()
	}
	piece := b.server.buffer()
	defer b.server.buffers.Put(piece)
	for {
		n, err := resp.Body.Read(piece[:])
		if n > 0 {
			if _, failed := w.Write(piece[:n]); failed != nil {
				err = failed
			} else if flush {
				_ = control.Flush()
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			// An incomplete response must not look complete.
			panic(http.ErrAbortHandler)
		}
	}
}

// buffer returns a copy buffer from the pool.
func (s *Server) buffer() *[bufferSize]byte {
	if piece, ok := s.buffers.Get().(*[bufferSize]byte); ok {
		return piece
	}
	return new([bufferSize]byte)
}

// requestHeader returns the headers for the backend: those of the client, without
// credentials and hop-by-hop headers, and with the X-Remote headers of the user.
func (b *backend) requestHeader(r *http.Request, req *request.Request, user http.Header, to *url.URL) http.Header {
	h := make(http.Header, len(r.Header)+10)
	for name, values := range r.Header {
		switch {
		case request.IsCredential(name), request.IsUserHeader(name), name == "Sec-Websocket-Protocol": // which may have a token
		default:
			h[name] = values
		}
	}
	// The X-Remote headers are set after dropHops: the client can name any header in
	// Connection.
	removeHopHeaders(h)
	setUser(h, user)
	for _, te := range r.Header["Te"] {
		if strings.Contains(te, "trailers") {
			h["Te"] = []string{"trailers"}
		}
	}
	var values [6]string // one allocation for all
	set := func(i int, name, value string) {
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	if _, ok := h["User-Agent"]; !ok {
		set(0, "User-Agent", "") // empty: suppresses Go's default
	}
	if req.AuditID != "" {
		set(1, "Audit-Id", req.AuditID)
	}
	if client, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if before := r.Header["X-Forwarded-For"]; len(before) > 0 {
			client = strings.Join(before, ", ") + ", " + client
		}
		set(2, "X-Forwarded-For", client)
	}
	uri := path.Clean(to.EscapedPath())
	if strings.HasSuffix(to.Path, "/") {
		uri += "/"
	}
	set(3, "X-Forwarded-Uri", uri)
	set(4, "X-Forwarded-Host", to.Host)
	set(5, "X-Forwarded-Proto", to.Scheme)
	return h
}

// user returns the X-Remote headers that identify the user, nil if headers cannot.
func (b *backend) user(req *request.Request) http.Header {
	user := req.User
	if b.server.NoUID {
		user.UID = ""
	}
	h := make(http.Header, 3+len(user.Extra))
	if !user.SetHeaders(h) {
		return nil
	}
	return h
}

// setUser replaces the headers that identify the user, and removes those that ask for another
// request than the one that was authorized.
func setUser(h, user http.Header) {
	for name := range h {
		if request.IsUserHeader(name) || request.IsOverride(name) {
			delete(h, name)
		}
	}
	maps.Copy(h, user)
}

// removeHopHeaders removes hop-by-hop headers.
func removeHopHeaders(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(textproto.TrimString(name))
		}
	}
	for _, name := range [...]string{
		"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	} {
		delete(h, name)
	}
}

// borrowedBody is the request body while it is forwarded. The transport may read it after
// the request has ended and closes it; borrowedBody makes such reads fail and does not
// close the client's body.
type borrowedBody struct {
	io.Reader
	taken atomic.Bool
}

// Read implements io.Reader.
func (l *borrowedBody) Read(p []byte) (int, error) {
	if l.taken.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return l.Reader.Read(p)
}

// Close implements io.Closer.
func (l *borrowedBody) Close() error {
	l.taken.Store(true)
	return nil
}
