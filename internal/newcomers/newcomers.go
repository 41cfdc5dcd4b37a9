// Package newcomers bounds the connections of clients that are not known yet: those on
// which no request has been authenticated, whose handshake may not even have ended.
// Start at Listener and Introduce.
package newcomers

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
)

// DefaultMax is the default bound of Listener.
const DefaultMax = 4096

// ordinary is how many bytes a connection may receive that count, without being one that has
// received much: a handshake, and the header of a request.
const ordinary = 16 << 10

// Listener wraps a listener so that at most max of its connections, or DefaultMax if
// that is not positive, are of clients that are not known. A connection costs some
// tens of kilobytes, whoever opens it, and anybody can open as many as there are
// ports. If there are too many, the oldest is closed: a client with credentials uses
// them at once, one that only waits is the oldest before long.
//
// What they have received, and may hold as half a header or handshake, is at most bytes
// in all, beside a little for each; 0 is no bound. If it is more, the first of those that
// have received much is closed. Connections of HTTP/1.1 on which the next request has begun
// count too, whoever their client is (ConnState).
func Listener(l net.Listener, max int, bytes int64) net.Listener {
	if max <= 0 {
		max = DefaultMax
	}
	return listener{l, &newcomers{max: max, maxBytes: bytes}}
}

type listener struct {
	net.Listener
	all *newcomers
}

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.all.add(conn), nil
}

// newcomers is the list of the connections whose client is not known, and its bound.
type newcomers struct {
	max      int
	maxBytes int64

	mu     sync.Mutex
	oldest list.List // of *newcomer, the oldest first; guarded by mu
	large  list.List // those that have received more than ordinary; guarded by mu
	bytes  int64     // what is more than ordinary of all; guarded by mu
}

// newcomer is a connection. It is in the list until its client is known or it is
// closed.
type newcomer struct {
	net.Conn
	all     *newcomers
	element *list.Element // nil when it is not in the list; guarded by all.mu
	known   atomic.Bool   // it has left the list
	counts  atomic.Bool   // what it receives counts
	// received is how many bytes it has received that count; large is nil when it is not in
	// the list of that name. These are guarded by all.mu.
	received int64
	large    *list.Element
	closed   bool
	release  func() // what Introduce was given for the end; guarded by all.mu
}

// add puts a connection into the list, and closes the oldest if there are too many.
func (n *newcomers) add(conn net.Conn) *newcomer {
	c := &newcomer{Conn: conn, all: n}
	c.counts.Store(true)
	n.mu.Lock()
	c.element = n.oldest.PushBack(c)
	var surplus *newcomer
	if n.oldest.Len() > n.max {
		surplus = n.oldest.Front().Value.(*newcomer)
	}
	n.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close()
	}
	return c
}

// leave takes the connection out of the list, and reports whether it was in it. release is
// for its end.
func (c *newcomer) leave(release func()) bool {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.element == nil {
		return false
	}
	c.all.oldest.Remove(c.element)
	c.forget()
	c.counts.Store(false)
	c.element, c.release = nil, release
	c.known.Store(true)
	return true
}

// forget is called when what the connection has received is not held any longer, or is that of
// a known client. The caller holds all.mu.
func (c *newcomer) forget() {
	if c.large != nil {
		c.all.large.Remove(c.large)
		c.all.bytes -= c.received - ordinary
		c.large = nil
	}
	c.received = 0
}

// Read implements net.Conn.
func (c *newcomer) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && c.counts.Load() {
		c.all.receive(c, int64(n))
	}
	return n, err
}

// receive counts bytes that a connection has received. If there are too many, it closes the
// oldest of those that have received much, which may be this one.
func (n *newcomers) receive(c *newcomer, bytes int64) {
	n.mu.Lock()
	var surplus *newcomer
	if !c.closed && c.counts.Load() {
		c.received += bytes
		switch more := c.received - ordinary; {
		case more <= 0:
		case c.large == nil:
			c.large = n.large.PushBack(c)
			n.bytes += more
		default:
			n.bytes += bytes
		}
		if n.maxBytes > 0 && n.bytes > n.maxBytes {
			surplus = n.large.Front().Value.(*newcomer)
		}
	}
	n.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close()
	}
}

// Close implements net.Conn.
func (c *newcomer) Close() error {
	c.leave(nil)
	c.all.mu.Lock()
	c.closed = true
	c.forget()
	release := c.release
	c.release = nil
	c.all.mu.Unlock()
	if release != nil {
		release()
	}
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn, for setting socket options.
func (c *newcomer) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.EINVAL
}

type connKey struct{}

// WithConn puts a connection into the context of its requests, for Introduce.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	if c := below(conn); c != nil {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// below returns the newcomer below a connection, or nil.
func below(conn net.Conn) *newcomer {
	for {
		switch c := conn.(type) {
		case *newcomer:
			return c
		case interface{ NetConn() net.Conn }: // TLS, and what package h2 has below it
			conn = c.NetConn()
		default:
			return nil
		}
	}
}

// Introduce must be called when a request on the connection has been authenticated. For the
// first one it calls hold, and when the connection is closed the function that hold has
// returned. If hold returns nil, the connection stays one of a client that is not known, and
// Introduce returns false.
func Introduce(ctx context.Context, hold func() (release func())) bool {
	c, ok := ctx.Value(connKey{}).(*newcomer)
	if !ok || c.known.Load() {
		return true
	}
	release := hold()
	if release == nil {
		return false
	}
	if !c.leave(release) {
		release() // another request was quicker, or the connection is closed
	}
	return true
}

// ConnState is for http.Server, which calls it for connections of HTTP/1.1: what comes after a
// request is the header of the next one, until all of it is there.
func ConnState(conn net.Conn, state http.ConnState) {
	if state != http.StateActive && state != http.StateIdle {
		return
	}
	if c := below(conn); c != nil {
		c.all.mu.Lock()
		c.forget()
		c.counts.Store(state == http.StateIdle)
		c.all.mu.Unlock()
	}
}
