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
	// calm is called before a read when there was nothing more to read in the last
	// one, and reports whether there will be much; nil before HTTP/2 is spoken. The
	// reader has it, and what follows.
	calm    func() bool
	drained bool
	ahead   *[]byte // what was read ahead, nil if nothing
	taken   int     // of it

	mu   sync.Mutex
	held *[]byte // nil while nothing is held back
}

// Read reads ahead what comes in many small records: TLS asks for a few at a time.
func (g *gather) Read(p []byte) (int, error) {
	if g.ahead == nil {
		if g.calm == nil || !g.drained || !g.calm() {
			n, err := g.Conn.Read(p)
			g.drained = n < len(p)
			return n, err
		}
		b := smallBuffers.Get().(*[]byte)
		n, err := g.Conn.Read((*b)[:cap(*b)])
		if err != nil {
			recycle(b)
			return 0, err
		}
		*b, g.ahead, g.taken, g.drained = (*b)[:n], b, 0, n < cap(*b)
	}
	n := copy(p, (*g.ahead)[g.taken:])
	if g.taken += n; g.taken == len(*g.ahead) {
		recycle(g.ahead)
		g.ahead = nil
	}
	return n, nil
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
