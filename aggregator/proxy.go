package aggregator

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/transport"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

const (
	// discoveryTimeout is how long a backend may take to say what it has.
	discoveryTimeout = 5 * time.Second
	// pieceSize is how much of a body is passed on at a time.
	pieceSize = 32 << 10

	redirected = "the backend attempted to redirect this request, which is not permitted"
)

// proxy passes a request on.
//
// The headers that say who asks are set here, whatever came with the request.
// Those who ask for an upgrade get the connection only if the other side answers
// that it has switched; any other answer ends the connection. A redirect is no
// answer: the client would follow it with its credentials.
func (b *backend) proxy(w http.ResponseWriter, r *http.Request) {
	if !b.available.Load() {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	if b.broken != nil {
		http.Error(w, b.broken.Error(), http.StatusInternalServerError)
		return
	}
	target, err := b.resolve(r.Context())
	if err != nil {
		b.server.Logger.Warn("the address of an APIService is not known", "name", b.name, "error", err)
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	req := request.From(r.Context())
	req.Started() // the work is the other server's
	location := &url.URL{Scheme: "https", Host: target.Host, Path: r.URL.Path}
	if r.URL.RawQuery != "" {
		location.RawQuery = r.URL.Query().Encode()
	}
	if httpstream.IsUpgradeRequest(r) {
		b.upgrade(w, r, req, location)
		return
	}
	if !req.IsResource && strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 2 {
		ctx, cancel := context.WithTimeout(r.Context(), discoveryTimeout)
		defer cancel()
		r = r.WithContext(ctx)
	}
	b.pass(w, r, req, location)
}

// upgrade passes on a request to make something else of the connection.
func (b *backend) upgrade(w http.ResponseWriter, r *http.Request, req *request.Request, to *url.URL) {
	out := r.WithContext(r.Context())
	out.Host, out.Header = to.Host, r.Header.Clone()
	// A proxy on the way would drop what else the client names here, as it might the
	// headers that say who asks.
	out.Header["Connection"] = []string{"Upgrade"}
	out.Trailer = nil
	transport.SetAuthProxyHeaders(out, req.User.Name, req.User.UID, req.User.Groups, req.User.Extra)
	if req.AuditID != "" {
		out.Header.Set("Audit-Id", req.AuditID)
	}
	trace.Inject(r.Context(), out.Header)
	connect.Proxy(w, out, to, connect.Via{
		Transport: b.transport, ForwardRedirects: b.server.ForwardRedirects, Logger: b.server.Logger,
		Fail: func(err error) { b.fail(w, err) },
	})
}

// fail answers when there is no answer.
func (b *backend) fail(w http.ResponseWriter, err error) {
	b.doubt()
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// pass sends a request to the other server, and its answer back. It is what
// httputil.ReverseProxy does, with less in between: what is passed on is not
// copied.
func (b *backend) pass(w http.ResponseWriter, r *http.Request, req *request.Request, to *url.URL) {
	out := r.WithContext(r.Context())
	out.URL, out.Host, out.Header, out.Body, out.Close = to, to.Host, requestHeader(r, req, to), nil, false
	// Trailers mean nothing to the API, and end a connection that all clients share:
	// a backend on Go's HTTP/2 server that has answered before the end of the body
	// takes them for a protocol error.
	out.Trailer = nil
	if r.ContentLength != 0 && r.Body != nil {
		body := &lentBody{Reader: r.Body}
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
	dropHops(resp.Header)
	for name, values := range resp.Header {
		if !strings.HasPrefix(name, "Access-Control-Allow-") {
			// What both servers say is said twice, as by kube-apiserver.
			h[name] = append(h[name], values...)
		}
	}
	for name := range resp.Trailer {
		h.Add("Trailer", name)
	}
	w.WriteHeader(resp.StatusCode)
	b.copyBody(w, resp, req.LongRunning())
	for name, values := range resp.Trailer { // complete now
		h[http.TrailerPrefix+name] = values
	}
}

// roundTrip sends a request the cheapest way.
func (b *backend) roundTrip(out *http.Request, req *request.Request) (*http.Response, error) {
	if (out.Method == http.MethodGet || out.Method == http.MethodHead) && out.Body == nil && !req.LongRunning() {
		if resp := b.lines.roundTrip(out); resp != nil {
			b.server.Certificates.See(out.Context(), out.URL.Hostname(), resp.TLS, nil)
			return resp, nil
		}
	}
	return b.server.Certificates.Wrap(b.transport).RoundTrip(out)
}

// copyBody passes the body of an answer on. Pieces of one whose length is not
// known go out as they come; if it can take as long as the client wants, so does
// the header.
func (b *backend) copyBody(w http.ResponseWriter, resp *http.Response, longRunning bool) {
	if resp.Body == http.NoBody {
		return
	}
	control, flush := http.NewResponseController(w), resp.ContentLength < 0
	if flush && longRunning {
		_ = control.Flush()
	}
	piece := b.server.piece()
	defer b.server.pieces.Put(piece)
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
			// Half an answer must not look like a whole one.
			panic(http.ErrAbortHandler)
		}
	}
}

// piece returns a buffer.
func (s *Server) piece() *[pieceSize]byte {
	if piece, ok := s.pieces.Get().(*[pieceSize]byte); ok {
		return piece
	}
	return new([pieceSize]byte)
}

// requestHeader returns what the other server gets to see: everything but
// credentials and what was meant for this connection, and who asks.
func requestHeader(r *http.Request, req *request.Request, to *url.URL) http.Header {
	h := make(http.Header, len(r.Header)+10)
	for name, values := range r.Header {
		switch {
		case name == "Authorization", strings.HasPrefix(name, "X-Remote-") && isRemoteHeader(name), strings.HasPrefix(name, "Impersonate-"):
		default:
			h[name] = values
		}
	}
	// Who asks comes after dropHops, in which the client has a say: it can name any
	// header in Connection.
	dropHops(h)
	transport.SetAuthProxyHeaders(&http.Request{Header: h}, req.User.Name, req.User.UID, req.User.Groups, req.User.Extra)
	for _, te := range r.Header["Te"] {
		if strings.Contains(te, "trailers") {
			h["Te"] = []string{"trailers"}
		}
	}
	var values [6]string // in one piece of memory
	set := func(i int, name, value string) {
		values[i] = value
		h[name] = values[i : i+1 : i+1]
	}
	if _, ok := h["User-Agent"]; !ok {
		set(0, "User-Agent", "") // and not Go's
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

// isRemoteHeader reports whether a header says who asks.
func isRemoteHeader(name string) bool {
	return name == "X-Remote-User" || name == "X-Remote-Uid" || name == "X-Remote-Group" || strings.HasPrefix(name, "X-Remote-Extra-")
}

// dropHops removes the headers that are about one connection.
func dropHops(h http.Header) {
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

// lentBody is the body of a request while it is passed on. The transport may hold
// on to it for longer than the request lasts, and closes what it does not own.
type lentBody struct {
	io.Reader
	taken atomic.Bool
}

// Read implements io.Reader.
func (l *lentBody) Read(p []byte) (int, error) {
	if l.taken.Load() {
		return 0, http.ErrBodyReadAfterClose
	}
	return l.Reader.Read(p)
}

// Close implements io.Closer.
func (l *lentBody) Close() error {
	l.taken.Store(true)
	return nil
}
