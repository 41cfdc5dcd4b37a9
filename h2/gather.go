package h2

import (
	"net"
	"sync"
)

// Listen returns a listener whose connections can be written to in large pieces.
func Listen(l net.Listener) net.Listener { return listener{l} }

type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gather{Conn: conn}, nil
}

// gather is a connection below TLS. TLS writes each record by itself; between
// hold and release they are put together.
type gather struct {
	net.Conn

	mu   sync.Mutex
	held *[]byte // nil while nothing is held back
}

func (g *gather) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return g.Conn.Write(p)
	}
	*g.held = append(*g.held, p...)
	return len(p), nil
}

func (g *gather) hold() {
	g.mu.Lock()
	g.held = largeBuffers.Get().(*[]byte)
	g.mu.Unlock()
}

func (g *gather) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	held := g.held
	g.held = nil
	_, err := g.Conn.Write(*held)
	*held = (*held)[:0]
	largeBuffers.Put(held)
	return err
}
