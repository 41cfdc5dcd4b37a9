package rest

import (
	"io"
	"sync"
)

// pieceSize is how much is written at a time: over HTTP/2 and TLS many small
// writes cost several times as much.
const pieceSize = 256 << 10

// pieces gathers what is written into large pieces. Who writes appends to buf,
// and calls spill now and then.
type pieces struct {
	w   io.Writer
	zip *zipper // w, if that is one
	buf []byte
	// draft gets what is written, too, if there is one.
	draft *draft
	err   error // of the first write that failed
	// wrote is how much of the piece is written.
	wrote int
	// next is called before another piece is begun; nil for what is not large.
	next func()
}

// piecePool keeps buffers between answers. A list of any size needs one.
var piecePool = sync.Pool{New: func() any { return &pieces{buf: make([]byte, 0, pieceSize+pieceSize/8)} }}

func newPieces(w io.Writer) *pieces {
	c := piecePool.Get().(*pieces)
	c.w = w
	return c
}

// free gives the buffer back, unless an object made it large.
func (c *pieces) free() {
	if c.draft != nil {
		c.draft.end(false)
		c.draft = nil
	}
	if cap(c.buf) <= 2*pieceSize {
		*c = pieces{buf: c.buf[:0]}
		piecePool.Put(c)
	}
}

// spill writes what there is if it is enough for a piece.
func (c *pieces) spill() {
	if len(c.buf) >= pieceSize {
		c.flush()
		c.paced()
	}
}

// whole writes a run.
func (c *pieces) whole(r *run) {
	c.flush()
	if c.zip != nil {
		if c.err == nil {
			c.zip.add(r.zip)
			c.err = c.zip.err
		}
		c.count(len(r.zip.Bytes))
		return
	}
	for _, b := range r.blocks {
		if c.err == nil {
			_, c.err = c.w.Write(b)
		}
		c.count(len(b))
	}
}

// count counts what is written.
func (c *pieces) count(n int) {
	if c.wrote += n; c.wrote >= pieceSize {
		c.paced()
	}
}

// paced lets others have their turn after a piece.
func (c *pieces) paced() {
	c.wrote = 0
	if c.next != nil {
		c.next()
	}
}

// flush writes what there is.
func (c *pieces) flush() {
	if c.err == nil && len(c.buf) > 0 {
		_, c.err = c.w.Write(c.buf)
	}
	if c.draft != nil {
		c.draft.add(c.buf)
	}
	c.buf = c.buf[:0]
}
