package h2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// headers begins a stream with the header fields in c.fields, or ends the body of
// one with them.
func (c *conn) headers(h frameHeader, dependency uint32) error {
	id := h.stream
	st := c.streams[id]
	switch {
	case st != nil:
		return c.trailers(st, h)
	case id%2 == 0:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case id <= c.last && c.reset.take(id, 0):
		return nil // trailers that were sent before the client knew of the reset
	case id == c.last:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	case id < c.last:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.last = id
	switch {
	case dependency == id || c.fields.malformed:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case len(c.streams) >= c.srv.MaxStreams && c.acknowledged:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case len(c.streams) >= c.srv.MaxStreams, c.headerBytes+c.fields.size > maxHeldHeaders*c.srv.MaxHeaderBytes:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	case c.running >= fewHandlers && c.srv.isCrowded(c.privileged.Load()):
		// The client has made no mistake: it costs no tokens, as a request that is served.
		c.resetUnserved(id, http2.ErrCodeRefusedStream)
		return nil
	}
	st, err := c.newStream(h)
	if err != nil {
		return err
	}
	c.streams[id] = st
	return c.start(st)
}

// trailers ends the body of a stream with the header fields in c.fields.
func (c *conn) trailers(st *stream, h frameHeader) error {
	switch {
	case st.received:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !h.flags.Has(http2.FlagHeadersEndStream) || !c.areTrailers(c.fields.regular) || c.fields.pseudo != 0 || c.fields.malformed || c.fields.tooLarge || st.declared >= 0 && st.bodySize != st.declared:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	if !st.abandoned && st.requestTrailer != nil {
		st.trailer = make(http.Header, len(c.fields.regular))
		for _, field := range c.fields.regular {
			name := c.canonicalName(field.Name)
			st.trailer[name] = append(st.trailer[name], field.Value)
		}
	}
	c.endBody(st)
	return nil
}

// areTrailers reports whether fields may come after a body: not those that say how it is read.
func (c *conn) areTrailers(fields []hpack.HeaderField) bool {
	for _, field := range fields {
		if !httpguts.ValidTrailerHeader(c.canonicalName(field.Name)) {
			return false
		}
	}
	return true
}

// maxNames and maxName bound the names of header fields that a connection keeps.
const (
	maxNames = 64
	maxName  = 64
)

// canonicalName returns the name of a header field as net/http writes it.
func (c *conn) canonicalName(wire string) string {
	if name, ok := c.names[wire]; ok {
		return name
	}
	name := textproto.CanonicalMIMEHeaderKey(wire)
	if len(c.names) < maxNames && len(wire) <= maxName {
		c.names[wire] = name
	}
	return name
}

// newStream makes a stream from the header fields in c.fields.
func (c *conn) newStream(h frameHeader) (*stream, error) {
	f := &c.fields
	malformed := http2.StreamError{StreamID: h.stream, Code: http2.ErrCodeProtocol}
	connect := f.method == http.MethodConnect
	if connect && (f.path != "" || f.scheme != "" || f.authority == "") ||
		!connect && (f.method == "" || f.path == "" || f.scheme != "https" && f.scheme != "http") {
		if !f.tooLarge { // which may have hidden the rest
			return nil, malformed
		}
	}
	header := c.requestHeader()
	authority := f.authority
	if authority == "" {
		authority = header.Get("Host")
	}
	delete(header, "Host")

	st := &stream{
		c: c, id: h.stream, handle: c.handler, window: c.initialWindow, ahead: c.srv.firstWindow(),
		received: h.flags.Has(http2.FlagHeadersEndStream), declared: -1, headerBytes: f.size,
	}
	st.arrived.L = &c.mu
	st.response.st = st
	st.response.header = make(http.Header, 8)
	if f.tooLarge {
		st.handle = respondWith(http.StatusRequestHeaderFieldsTooLarge, "HTTP Error 431: Request Header Field(s) Too Large")
		header, f.path, connect, st.headerBytes = http.Header{}, "/", false, 0
	}
	if !connect && strings.Contains(authority, "@") { // RFC 9113, 8.3.1: no user in it
		return nil, malformed
	}
	target, path, err := requestURL(f.path, authority, connect)
	if err != nil {
		return nil, malformed
	}
	length, err := st.describeBody(header)
	if err != nil {
		return nil, malformed
	}
	ctx, cancel := context.WithCancel(c.ctx)
	st.cancel = cancel
	req := &http.Request{
		Method: f.method, URL: target, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: authority,
		RemoteAddr: c.remote, RequestURI: path, TLS: c.state, ContentLength: length, Trailer: st.requestTrailer, Body: http.NoBody,
	}
	if !st.received {
		req.Body = bodyReader{st}
	}
	st.req = req.WithContext(ctx)
	st.response.head = f.method == http.MethodHead
	if err := checkHeader(header); err != nil {
		st.handle = respondWith(http.StatusBadRequest, err.Error())
	}
	return st, nil
}

// requestHeader makes the Header of a request from the fields in c.fields.
func (c *conn) requestHeader() http.Header {
	fields := c.fields.regular
	header := make(http.Header, len(fields))
	values := make([]string, len(fields)) // one allocation for most headers
	var cookies []string
	for i, field := range fields {
		name := c.canonicalName(field.Name)
		switch before := header[name]; {
		case before == nil:
			values[i] = field.Value
			header[name] = values[i : i+1 : i+1]
		case name == "Cookie": // clients may split it
			if cookies == nil {
				cookies = append(cookies, before[0])
			}
			cookies = append(cookies, field.Value)
		default:
			header[name] = append(before, field.Value)
		}
	}
	if cookies != nil {
		header["Cookie"][0] = strings.Join(cookies, "; ")
	}
	return header
}

// requestURL returns the URL and the RequestURI of a request.
func requestURL(path, authority string, connect bool) (*url.URL, string, error) {
	switch {
	case connect:
		return &url.URL{Host: authority}, authority, nil
	case path == "*":
		return &url.URL{Path: "*"}, path, nil
	}
	target, err := url.ParseRequestURI(path)
	return target, path, err
}

// describeBody takes from a header what it says of the body, and returns its length,
// -1 if that is not known.
func (st *stream) describeBody(header http.Header) (length int64, err error) {
	if lengths := header["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || st.received && n != 0 {
			return 0, errors.New("content length")
		}
		for _, other := range lengths[1:] {
			if other != lengths[0] {
				return 0, errors.New("content length")
			}
		}
		st.declared = int64(n)
	}
	if length = st.declared; st.received {
		length = 0
	}
	if httpguts.HeaderValuesContainsToken(header["Expect"], "100-continue") {
		st.expectsContinue = true
		delete(header, "Expect")
	}
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				if st.requestTrailer == nil {
					st.requestTrailer = http.Header{}
				}
				st.requestTrailer[name] = nil
			}
		}
	}
	delete(header, "Trailer")
	return length, nil
}

// checkHeader looks for headers that HTTP/2 does not have.
func checkHeader(header http.Header) error {
	for _, name := range []string{"Connection", "Proxy-Connection", "Transfer-Encoding", "Upgrade", "Keep-Alive"} {
		if _, ok := header[name]; ok {
			return fmt.Errorf("request header %q is not valid in HTTP/2", name)
		}
	}
	if te := header["Te"]; len(te) > 1 || len(te) == 1 && te[0] != "trailers" && te[0] != "" {
		return errors.New(`request header "TE" may only be "trailers" in HTTP/2`)
	}
	return nil
}

// respondWith is the handler of requests that the server's handler does not get.
func respondWith(code int, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) })
}
