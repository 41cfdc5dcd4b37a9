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
	return &gather{Conn: conn, ears: newEars(conn)}, nil
}

// gather is a connection below TLS. TLS writes each record by itself; between
// hold and release they are put together.
type gather struct {
	net.Conn
	// busy tells whether to read now and then is enough, and pause waits until then;
	// nil before HTTP/2 is spoken. The reader has them, and what follows.
	busy    func() bool
	pause   func()
	ears    *ears   // nil if there is nothing like that
	drained bool    // there was nothing more to read
	ahead   *[]byte // what was read ahead, nil if nothing
	taken   int     // of it

	mu   sync.Mutex
	held *[]byte // nil while nothing is held back
}

// Read reads ahead what comes in many small records: TLS asks for a few at a time.
func (g *gather) Read(p []byte) (int, error) {
	for g.ahead == nil {
		if g.busy == nil || !g.busy() {
			g.ears.open()
			n, err := g.Conn.Read(p)
			g.drained = n < len(p)
			return n, err
		}
		if g.drained {
			g.ears.close()
			g.pause()
		}
		b := smallBuffers.Get().(*[]byte)
		n, err := g.ears.read(g.Conn, (*b)[:cap(*b)])
		g.drained = n < cap(*b)
		if n == 0 {
			recycle(b)
			if err != nil {
				return 0, err
			}
			continue
		}
		*b, g.ahead, g.taken = (*b)[:n], b, 0
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
