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

const (
	// maxLines is how many lines a backend can have.
	maxLines = 32
	// lineIdle is how long a line waits for its next request.
	lineIdle = 30 * time.Second
	// lineBuffer is for the header of a request, and that of an answer.
	lineBuffer = 4 << 10
	// maxAnswerHeader is how many bytes a backend sends at most before the body of an
	// answer, with the answers that are only on the way (1xx), of which there are at
	// most maxInterim. A trailer is no longer than lineBuffer.
	maxAnswerHeader = 1 << 20
	maxInterim      = 5
)

var errInterim = errors.New("too many interim answers")

// lines are connections over which a request that only reads is sent by the
// goroutine that has it, which then waits for the answer: HTTP/1.1, without the
// goroutines, frames and compressed headers between a request and a shared
// connection of HTTP/2, which cost more than all the rest of passing a request on.
//
// They are for requests that are short and can be sent again. Whatever does not
// work here is left to the transport: that no line is free, that one is broken,
// that there is nobody.
type lines struct {
	transport *http.Transport // whose dialer and TLS configuration are used

	mu     sync.Mutex
	idle   []*line
	open   int
	closed bool // nobody will ask again
}

// A line is one of them. One request at a time has it.
type line struct {
	conn  net.Conn
	state tls.ConnectionState
	host  string
	r     *bufio.Reader
	// limit is what r reads from. It bounds headers, not bodies, which are passed on
	// as they come.
	limit *io.LimitedReader
	w     *bufio.Writer
	used  time.Time
}

// roundTrip sends a request without a body. It returns nil if somebody else has to.
func (l *lines) roundTrip(out *http.Request) *http.Response {
	ctx := out.Context()
	c := l.take(ctx, out.URL.Host)
	if c == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	resp, err := c.ask(out)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		stop()
		l.drop(c)
		return nil
	}
	body := &lineBody{ReadCloser: resp.Body, lines: l, line: c, stop: stop, last: resp.Close}
	if resp.Body == http.NoBody {
		body.whole = true
		_ = body.Close()
		return resp
	}
	resp.Body = body
	return resp
}

// ask sends a request and reads the header of the answer.
func (c *line) ask(out *http.Request) (*http.Response, error) {
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

// take returns a line to a host, nil if there is none to be had.
func (l *lines) take(ctx context.Context, host string) *line {
	l.mu.Lock()
	for i, c := range slices.Backward(l.idle) {
		if c.host == host && time.Since(c.used) < lineIdle {
			l.idle = slices.Delete(l.idle, i, i+1)
			l.mu.Unlock()
			return c
		}
	}
	full := l.open >= maxLines
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
	return &line{
		conn: conn, state: conn.ConnectionState(), host: host, limit: limit,
		r: bufio.NewReaderSize(limit, lineBuffer), w: bufio.NewWriterSize(conn, lineBuffer),
	}
}

func (l *lines) dial(ctx context.Context, host string) (*tls.Conn, error) {
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

// give takes a line back.
func (l *lines) give(c *line) {
	c.used = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = c.conn.Close()
		return
	}
	l.idle = append(l.idle, c)
}

// close ends all lines, those in use when they are given back.
func (l *lines) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.prune(0)
}

// drop ends a line.
func (l *lines) drop(c *line) {
	_ = c.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// prune ends lines that have waited for some time.
func (l *lines) prune(longerThan time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = slices.DeleteFunc(l.idle, func(c *line) bool {
		old := time.Since(c.used) >= longerThan
		if old {
			_ = c.conn.Close()
			l.open--
		}
		return old
	})
}

// lineBody is the body of an answer, at whose end the line is free.
type lineBody struct {
	io.ReadCloser
	lines *lines
	line  *line
	stop  func() bool
	last  bool // the other side ends the line with this answer
	whole bool // there is nothing left to read
	done  bool
}

// Read implements io.Reader.
func (b *lineBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.whole = b.whole || err == io.EOF
	return n, err
}

// Close implements io.Closer.
func (b *lineBody) Close() error {
	if b.done {
		return nil
	}
	b.done = true
	// Bytes that nobody asked for would be taken for the next answer.
	if b.stop() && b.whole && !b.last && b.line.r.Buffered() == 0 {
		b.lines.give(b.line)
	} else {
		b.lines.drop(b.line)
	}
	return nil
}
