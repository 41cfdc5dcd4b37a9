package aggregator

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// This file is a small HTTP/1.1 client for short reads, cheaper than the transport.

const (
	// maxPooledConns is the largest number of pooled connections to a backend.
	maxPooledConns = 32
	// connIdle is how long an idle connection is kept.
	connIdle = 30 * time.Second
	// connBuffer is the size of the buffers for headers, in bytes.
	connBuffer = 4 << 10
	// maxAnswerHeader is the largest response header in bytes, including interim (1xx)
	// responses, of which there are at most maxInterim. A trailer is at most lineBuffer
	// bytes.
	maxAnswerHeader = 1 << 20
	maxInterim      = 5
)

var errInterim = errors.New("too many interim answers")

// connPool is a pool of HTTP/1.1 connections for read requests. The goroutine that serves
// a request writes it to the connection itself and reads the response: without the
// goroutines, frames and header compression of a shared HTTP/2 connection, which cost
// more than the rest of proxying a request.
//
// It is only for requests that are short and idempotent. Whatever fails here (no free
// connection, a broken one, no answer) is left to the transport.
type connPool struct {
	transport *http.Transport // its dialer and TLS configuration are used

	mu     sync.Mutex
	idle   []*pooledConn
	open   int
	closed bool // no new connections; those in use are closed on return
}

// pooledConn is a connection of the pool, used by one request at a time.
type pooledConn struct {
	conn  net.Conn
	state tls.ConnectionState
	host  string
	r     *bufio.Reader
	// limit is the reader below r. It limits headers; bodies are not limited.
	limit *io.LimitedReader
	w     *bufio.Writer
	used  time.Time
}

// roundTrip sends a request without a body. It returns nil if the transport has to send
// it.
func (l *connPool) roundTrip(out *http.Request) *http.Response {
	ctx := out.Context()
	c := l.take(ctx, out.URL.Host)
	if c == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	resp, err := c.exchange(out)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		stop()
		l.drop(c)
		return nil
	}
	body := &pooledBody{ReadCloser: resp.Body, pool: l, conn: c, stop: stop, closing: resp.Close}
	if resp.Body == http.NoBody {
		body.complete = true
		_ = body.Close()
		return resp
	}
	resp.Body = body
	return resp
}

// exchange writes a request and reads the response header.
func (c *pooledConn) exchange(out *http.Request) (*http.Response, error) {
	if err := out.Write(c.w); err != nil {
		return nil, err
	}
	if err := c.w.Flush(); err != nil {
		return nil, err
	}
	c.limit.N = maxAnswerHeader
	defer func() { c.limit.N = math.MaxInt64 }()
	for range 1 + maxInterim {
		resp, err := http.ReadResponse(c.r, out)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
			resp.TLS = &c.state
			return resp, nil
		}
	}
	return nil, errInterim
}

// take returns an idle or new connection to a host, nil if there is none.
func (l *connPool) take(ctx context.Context, host string) *pooledConn {
	l.mu.Lock()
	for i, c := range slices.Backward(l.idle) {
		if c.host == host && time.Since(c.used) < connIdle {
			l.idle = slices.Delete(l.idle, i, i+1)
			l.mu.Unlock()
			return c
		}
	}
	full := l.open >= maxPooledConns
	if !full {
		l.open++
	}
	l.mu.Unlock()
	if full {
		return nil
	}
	conn, err := l.dial(ctx, host)
	if err != nil {
		l.mu.Lock()
		l.open--
		l.mu.Unlock()
		return nil
	}
	limit := &io.LimitedReader{R: conn}
	return &pooledConn{
		conn: conn, state: conn.ConnectionState(), host: host, limit: limit,
		r: bufio.NewReaderSize(limit, connBuffer), w: bufio.NewWriterSize(conn, connBuffer),
	}
}

func (l *connPool) dial(ctx context.Context, host string) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	plain, err := l.transport.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	config := l.transport.TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	conn := tls.Client(plain, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	return conn, nil
}

// put returns a connection to the pool.
func (l *connPool) put(c *pooledConn) {
	c.used = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.conn.Close()
		return
	}
	l.idle = append(l.idle, c)
}

// close closes the pool: idle connections now, those in use when they are returned.
func (l *connPool) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.prune(0)
}

// drop closes a connection.
func (l *connPool) drop(c *pooledConn) {
	_ = c.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// prune closes connections that have been idle for longerThan.
func (l *connPool) prune(longerThan time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = slices.DeleteFunc(l.idle, func(c *pooledConn) bool {
		old := time.Since(c.used) >= longerThan
		if old {
			_ = c.conn.Close()
			l.open--
		}
		return old
	})
}

// pooledBody is a response body that returns its connection to the pool when it is
// closed.
type pooledBody struct {
	io.ReadCloser
	pool     *connPool
	conn     *pooledConn
	stop     func() bool
	closing  bool // the backend closes the connection after this response
	complete bool // the body was read to its end
	done     bool
}

// Read implements io.Reader.
func (b *pooledBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.complete = b.complete || err == io.EOF
	return n, err
}

// Close implements io.Closer.
func (b *pooledBody) Close() error {
	if b.done {
		return nil
	}
	b.done = true
	// Unexpected bytes after the body would be taken for the next response, so such a
	// connection is closed.
	if b.stop() && b.complete && !b.closing && b.conn.r.Buffered() == 0 {
		b.pool.put(b.conn)
	} else {
		b.pool.drop(b.conn)
	}
	return nil
}
