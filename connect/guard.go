package connect

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/apikeel/kelson/egress"
)

// An answerGuard is for a connection that a request dials for itself, as upgrades do. It bounds what the
// backend sends before its answer has been read, and closes the connection with the request: who
// reads the answer does neither.
type answerGuard struct {
	left     atomic.Int64 // bytes that may be read before release
	released atomic.Bool
}

type guardKey struct{}

// withGuard returns a context in which guarded dials with a guard.
func withGuard(ctx context.Context) (context.Context, *answerGuard) {
	g := &answerGuard{}
	g.left.Store(maxAnswerHeader)
	return context.WithValue(ctx, guardKey{}, g), g
}

// release is called when the header of the answer has been read; nil does nothing.
func (g *answerGuard) release() {
	if g != nil {
		g.released.Store(true)
	}
}

// guarded returns a dialer that guards the connections of requests that have a guard.
func guarded(dial egress.Dial) egress.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		g, ok := ctx.Value(guardKey{}).(*answerGuard)
		if err != nil || !ok {
			return conn, err
		}
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		return guardedConn{conn, g}, nil
	}
}

type guardedConn struct {
	net.Conn
	guard *answerGuard
}

var errAnswerHeader = errors.New("the header of the response is too large")

// Read implements net.Conn.
func (c guardedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if !c.guard.released.Load() && c.guard.left.Add(-int64(n)) < 0 {
		return 0, errAnswerHeader
	}
	return n, err
}
