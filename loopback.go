package kelson

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/apikeel/kelson/request"
)

// Loopback returns a transport for clients in the same process. Requests go through the whole
// pipeline as user, without authentication and without a network. The server must be
// prepared; it need not run.
//
//	cfg := &rest.Config{Host: "http://kelson", Transport: server.Loopback(user)}
func (s *Server) Loopback(user request.User) http.RoundTripper { return &loopback{s, user} }

type loopback struct {
	server *Server
	user   request.User
}

type loopbackKey struct{}

// loopbackUser returns the user of a loopback request. Requests from connections never have
// one.
func loopbackUser(ctx context.Context) (*request.User, bool) {
	user, ok := ctx.Value(loopbackKey{}).(*request.User)
	return user, ok
}

// loopbackHost is the host label of loopback requests in metrics.
const loopbackHost = "localhost"

// RoundTrip implements http.RoundTripper.
func (l *loopback) RoundTrip(out *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(context.WithValue(out.Context(), loopbackKey{}, &l.user))
	in := out.Clone(ctx)
	in.Host, in.RemoteAddr = out.URL.Host, "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	in.RequestURI = out.URL.RequestURI()
	in.URL = &url.URL{Path: out.URL.Path, RawPath: out.URL.RawPath, RawQuery: out.URL.RawQuery}
	if in.Body == nil {
		in.Body = http.NoBody
	}
	began := time.Now()
	body, pipe := io.Pipe()
	w := &loopbackWriter{header: http.Header{}, body: pipe, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer in.Body.Close()
		defer func() {
			if recover() != nil { // the pipeline has logged the panic
				w.WriteHeader(http.StatusInternalServerError)
				pipe.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		l.server.ServeHTTP(w, in)
		w.WriteHeader(http.StatusOK)
		pipe.Close()
		if m := l.server.Metrics; m != nil {
			m.Received(out.Method, loopbackHost, w.written)
		}
	}()
	select {
	case <-w.begun:
	case <-out.Context().Done():
		cancel()
		body.CloseWithError(out.Context().Err())
		return nil, out.Context().Err()
	}
	if m := l.server.Metrics; m != nil {
		m.Asked(out.Method, loopbackHost, w.status, time.Since(began), max(0, in.ContentLength), -1)
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status, Header: w.sent, Body: &loopbackBody{body, cancel},
		Proto: in.Proto, ProtoMajor: 2, ContentLength: -1, Request: out,
	}, nil
}

// loopbackBody cancels the request when the client closes the body.
type loopbackBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *loopbackBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// loopbackWriter pipes what a handler writes to the response body.
type loopbackWriter struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	begun  chan struct{} // closed when status and header are set
	status int
	sent   http.Header

	written int64
}

func (w *loopbackWriter) Header() http.Header { return w.header }

func (w *loopbackWriter) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

func (w *loopbackWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	n, err := w.body.Write(b)
	w.written += int64(n)
	return n, err
}

// Flush sends the header; the body is unbuffered.
func (w *loopbackWriter) Flush() { w.WriteHeader(http.StatusOK) }
