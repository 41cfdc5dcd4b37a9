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
)

// headers begins a stream, or ends the body of one.
func (c *conn) headers(f *http2.MetaHeadersFrame) error {
	id := f.StreamID
	if id%2 == 0 {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	if st := c.streams[id]; st != nil {
		return c.trailers(st, f)
	}
	switch {
	case id == c.last:
		return http2.ConnectionError(http2.ErrCodeStreamClosed)
	case id < c.last:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.last = id
	switch {
	case f.HasPriority() && f.Priority.StreamDep == id:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case len(c.streams) >= c.srv.MaxStreams && c.acknowledged:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	case len(c.streams) >= c.srv.MaxStreams:
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeRefusedStream}
	}
	st, err := c.newStream(f)
	if err != nil {
		return err
	}
	c.streams[id] = st
	return c.start(st)
}

// trailers are header fields after a body.
func (c *conn) trailers(st *stream, f *http2.MetaHeadersFrame) error {
	switch {
	case st.received:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeStreamClosed}
	case !f.StreamEnded() || len(f.PseudoFields()) > 0 || st.declared >= 0 && st.bodySize != st.declared:
		return http2.StreamError{StreamID: st.id, Code: http2.ErrCodeProtocol}
	}
	// The handler may be looking at the map; it may not before it has seen the end
	// of the body.
	for _, field := range f.RegularFields() {
		if st.req == nil {
			break // nobody will look
		}
		name := c.name(field.Name)
		if _, announced := st.req.Trailer[name]; announced {
			st.req.Trailer[name] = append(st.req.Trailer[name], field.Value)
		}
	}
	st.received = true
	st.arrived.Broadcast()
	return nil
}

// maxNames bounds the names of headers that a connection keeps.
const maxNames = 64

// name is the name of a header as net/http writes it.
func (c *conn) name(lower string) string {
	if name, ok := c.names[lower]; ok {
		return name
	}
	name := textproto.CanonicalMIMEHeaderKey(lower)
	if len(c.names) < maxNames {
		c.names[lower] = name
	}
	return name
}

func (c *conn) newStream(f *http2.MetaHeadersFrame) (*stream, error) {
	wrong := http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol}
	var method, path, scheme, authority string
	for _, field := range f.PseudoFields() {
		switch field.Name {
		case ":method":
			method = field.Value
		case ":path":
			path = field.Value
		case ":scheme":
			scheme = field.Value
		case ":authority":
			authority = field.Value
		default:
			return nil, wrong
		}
	}
	connect := method == http.MethodConnect
	if connect && (path != "" || scheme != "" || authority == "") ||
		!connect && (method == "" || path == "" || scheme != "https" && scheme != "http") {
		return nil, wrong
	}
	fields := f.RegularFields()
	header := make(http.Header, len(fields))
	values := make([]string, len(fields))
	for i, field := range fields {
		name := c.name(field.Name)
		switch before := header[name]; {
		case before == nil:
			values[i] = field.Value
			header[name] = values[i : i+1 : i+1]
		case name == "Cookie":
			before[0] += "; " + field.Value // clients may split it
		default:
			header[name] = append(before, field.Value)
		}
	}
	if authority == "" {
		authority = header.Get("Host")
	}
	delete(header, "Host")

	st := &stream{
		c: c, id: f.StreamID, handle: c.handler, window: c.initialWindow, ahead: c.srv.StreamWindow,
		received: f.StreamEnded(), declared: -1,
	}
	st.arrived.L = &c.mu
	st.response.st = st
	st.response.header = make(http.Header, 8)
	var target *url.URL
	var err error
	switch {
	case connect:
		target = &url.URL{Host: authority}
		path = authority
	case path == "*":
		target = &url.URL{Path: "*"}
	default:
		if target, err = url.ParseRequestURI(path); err != nil {
			return nil, wrong
		}
	}
	length, trailer, err := st.describe(header)
	if err != nil {
		return nil, wrong
	}
	var body = http.NoBody
	ctx, cancel := context.WithCancel(c.ctx)
	st.cancel = cancel
	req := &http.Request{
		Method: method, URL: target, Proto: "HTTP/2.0", ProtoMajor: 2, Header: header, Host: authority,
		RemoteAddr: c.remote, RequestURI: path, TLS: c.state, ContentLength: length, Trailer: trailer, Body: body,
	}
	if !st.received {
		req.Body = bodyReader{st}
	}
	st.req = req.WithContext(ctx)
	st.response.head = method == http.MethodHead
	if f.Truncated {
		st.handle = answer(http.StatusRequestHeaderFieldsTooLarge, "HTTP Error 431: Request Header Field(s) Too Large")
	} else if err := validate(header); err != nil {
		st.handle = answer(http.StatusBadRequest, err.Error())
	}
	return st, nil
}

// describe takes from the header what it says of the body.
func (st *stream) describe(header http.Header) (length int64, trailer http.Header, err error) {
	if lengths := header["Content-Length"]; len(lengths) > 0 {
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil || st.received && n != 0 {
			return 0, nil, errors.New("content length")
		}
		for _, other := range lengths[1:] {
			if other != lengths[0] {
				return 0, nil, errors.New("content length")
			}
		}
		st.declared = int64(n)
	}
	if length = st.declared; st.received {
		length = 0
	}
	if header.Get("Expect") == "100-continue" {
		st.wantsGoAhead = true
		delete(header, "Expect")
	}
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if httpguts.ValidTrailerHeader(name) {
				if trailer == nil {
					trailer = http.Header{}
				}
				trailer[name] = nil
			}
		}
	}
	delete(header, "Trailer")
	return length, trailer, nil
}

// validate looks for headers that make no sense in HTTP/2.
func validate(header http.Header) error {
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

// answer is who answers what no handler should see.
func answer(code int, text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) })
}
