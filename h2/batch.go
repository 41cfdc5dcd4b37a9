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
	return &batchConn{Conn: conn, lowWater: newLowWater(conn)}, nil
}

// batchConn is a connection below TLS. TLS writes each record by itself; between
// begin and end they are put together.
type batchConn struct {
	net.Conn
	// shouldPoll reports whether the connection is to be polled instead of being read
	// as soon as something arrives, and pause waits until the next poll; nil before
	// HTTP/2 is spoken. The goroutine that reads uses them, and the fields below.
	shouldPoll func() bool
	pause      func()
	lowWater   *lowWater // nil if the system has nothing like it
	drained    bool      // the last read has left nothing to read
	ahead      *[]byte   // what was read ahead, nil if nothing
	taken      int       // bytes of ahead that were returned

	mu   sync.Mutex
	held *[]byte // what was written since begin, nil after end
}

// Read reads ahead what comes in many small records: TLS asks for a few bytes at a
// time.
func (b *batchConn) Read(p []byte) (int, error) {
	for b.ahead == nil {
		if b.shouldPoll == nil || !b.shouldPoll() {
			b.lowWater.reset()
			n, err := b.Conn.Read(p)
			b.drained = n < len(p)
			return n, err
		}
		if b.drained {
			b.lowWater.raise()
			b.pause()
		}
		buffer := smallBuffers.Get().(*[]byte)
		n, err := b.lowWater.read(b.Conn, (*buffer)[:cap(*buffer)])
		b.drained = n < cap(*buffer)
		if n == 0 {
			recycle(buffer)
			if err != nil {
				return 0, err
			}
			continue
		}
		*buffer, b.ahead, b.taken = (*buffer)[:n], buffer, 0
	}
	n := copy(p, (*b.ahead)[b.taken:])
	if b.taken += n; b.taken == len(*b.ahead) {
		recycle(b.ahead)
		b.ahead = nil
	}
	return n, nil
}

// NetConn returns the connection below, as tls.Conn's does.
func (b *batchConn) NetConn() net.Conn { return b.Conn }

func (b *batchConn) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		return b.Conn.Write(p)
	}
	*b.held = append(*b.held, p...)
	return len(p), nil
}

func (b *batchConn) begin() {
	b.mu.Lock()
	b.held = largeBuffers.Get().(*[]byte)
	b.mu.Unlock()
}

func (b *batchConn) end() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held
	b.held = nil
	_, err := b.Conn.Write(*held)
	recycle(held)
	return err
}
