package h2

import (
	"io"
	"net/http"
	"os"
)

// firstWindow is how many bytes of a body a client may send before a handler reads it: those
// that wait for their turn, or for memory, hold no more. From then on it is StreamWindow.
const firstWindow = 64 << 10

func (s *Server) firstWindow() int { return min(s.StreamWindow, firstWindow) }

// firstBody is how much memory a body gets before as much has arrived.
const firstBody = 16 << 10

// A bodyBuffer has the part of a request's body that has arrived and was not read. It
// never has more memory than a small multiple of what was unread at one time, which
// flow control bounds.
type bodyBuffer struct {
	data []byte
	read int // bytes of data that were read
}

func (b *bodyBuffer) len() int { return len(b.data) - b.read }

// add appends p, of a body whose declared length is not known if it is negative.
func (b *bodyBuffer) add(p []byte, declared int64) {
	switch {
	case cap(b.data) == 0 && declared > 0:
		b.data = make([]byte, 0, max(min(declared, firstBody), int64(len(p))))
	case len(b.data)+len(p) > cap(b.data) && b.read >= len(b.data)/2:
		// To move what is unread is cheaper than to grow, and at least as much was
		// read since the last time.
		b.data = b.data[:copy(b.data, b.data[b.read:])]
		b.read = 0
	}
	b.data = append(b.data, p...)
}

// take moves what fits into p.
func (b *bodyBuffer) take(p []byte) int {
	n := copy(p, b.data[b.read:])
	if b.read += n; b.read == len(b.data) {
		b.data, b.read = b.data[:0], 0
	}
	return n
}

// drop forgets everything, and returns how much was unread.
func (b *bodyBuffer) drop() int {
	n := b.len()
	*b = bodyBuffer{}
	return n
}

// bodyReader is the Body of a request.
type bodyReader struct{ st *stream }

func (b bodyReader) Read(p []byte) (int, error) {
	st := b.st
	c := st.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.expectsContinue && !st.response.begun && st.failed() == nil {
		st.expectsContinue = false
		st.response.addInformational(http.StatusContinue, nil)
		c.send()
	}
	// A body that is as long as the window needs more of it, too: there are clients that
	// cannot send its end without.
	if !st.wide && (st.declared < 0 || st.declared >= firstWindow) {
		st.wide = true
		c.giveStream(st, c.srv.StreamWindow-c.srv.firstWindow())
		c.send()
	}
	for {
		if n := st.body.take(p); n > 0 {
			c.give(n)
			c.giveStream(st, n)
			c.send()
			return n, nil
		}
		switch {
		case len(p) == 0:
			return 0, nil
		case st.abandoned && st.closed == nil:
			return 0, http.ErrBodyReadAfterClose
		case st.closed != nil:
			return 0, st.closed
		case st.received:
			st.showTrailers()
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		case isOver(st.readDeadline):
			return 0, os.ErrDeadlineExceeded
		}
		c.wait(&st.arrived, st.readDeadline)
	}
}

// showTrailers puts the trailers that have come into Request.Trailer, where the
// handler expects those that the request has announced once it has read the body.
// It must run on the handler's side: until then a handler may read the map.
func (st *stream) showTrailers() {
	for name, values := range st.trailer {
		if _, announced := st.requestTrailer[name]; announced {
			st.requestTrailer[name] = values
		}
	}
	st.trailer = nil
}

// giveStream lets the client send n bytes more on a stream, in steps that are worth
// a frame.
func (c *conn) giveStream(st *stream, n int) {
	window := c.srv.firstWindow()
	if st.wide {
		window = c.srv.StreamWindow
	}
	if st.credit += n; !st.received && st.closed == nil && st.credit >= window/2 {
		c.addWindow(st.id, st.credit)
		st.ahead += st.credit
		st.credit = 0
	}
}

func (b bodyReader) Close() error {
	st := b.st
	st.c.mu.Lock()
	defer st.c.mu.Unlock()
	if !st.abandoned {
		st.abandoned = true
		st.c.give(st.body.drop())
	}
	return nil
}
