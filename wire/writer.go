package wire

import (
	"io"
	"sync"
)

// writeSize is how many bytes a Writer writes at a time: over HTTP/2 and TLS many small
// writes cost several times as much.
const writeSize = 256 << 10

// WriterSize is what the buffer of a Writer takes, unless an object is larger.
const WriterSize = writeSize + writeSize/8

// Writer gathers what is encoded into large writes. Encoders append to Buf; whoever
// appends calls Spill after each item.
type Writer struct {
	Buf []byte
	// Yield is called between two large writes, so that other requests get their turn;
	// nil for answers that are not large.
	Yield func()

	w       io.Writer
	gzip    *GzipWriter   // w, if that is one
	builder *chunkBuilder // gets what is written, too; nil most of the time
	err     error         // of the first write that failed
	wrote   int           // bytes since Yield was called
}

// writers keeps buffers between answers. A list of any size needs one.
var writers = sync.Pool{New: func() any { return &Writer{Buf: make([]byte, 0, WriterSize)} }}

// NewWriter returns a Writer with an empty buffer, which must be freed. If w is a
// GzipWriter, chunks that are compressed already are passed on as they are.
func NewWriter(w io.Writer) *Writer {
	out := writers.Get().(*Writer)
	out.w = w
	out.gzip, _ = w.(*GzipWriter)
	return out
}

// Free gives the buffer back, unless an object made it large.
func (w *Writer) Free() {
	if w.builder != nil {
		w.builder.finish(false)
		w.builder = nil
	}
	if cap(w.Buf) <= 2*writeSize {
		*w = Writer{Buf: w.Buf[:0]}
		writers.Put(w)
	}
}

// Err is the error of the first write that failed.
func (w *Writer) Err() error { return w.err }

// Spill writes what is in the buffer if it is enough for a large write.
func (w *Writer) Spill() {
	if len(w.Buf) >= writeSize {
		w.Flush()
		w.yield()
	}
}

// Flush writes what is in the buffer.
func (w *Writer) Flush() {
	if w.err == nil && len(w.Buf) > 0 {
		_, w.err = w.w.Write(w.Buf)
	}
	if w.builder != nil {
		w.builder.add(w.Buf)
	}
	w.Buf = w.Buf[:0]
}

// writeChunk writes a chunk, after what is in the buffer.
func (w *Writer) writeChunk(c *chunk) {
	w.Flush()
	if w.gzip != nil {
		if w.err == nil {
			w.gzip.add(c.gzip)
			w.err = w.gzip.err
		}
		w.count(len(c.gzip.Bytes))
		return
	}
	for _, b := range c.blocks {
		if w.err == nil {
			_, w.err = w.w.Write(b)
		}
		w.count(len(b))
	}
}

func (w *Writer) count(n int) {
	if w.wrote += n; w.wrote >= writeSize {
		w.yield()
	}
}

func (w *Writer) yield() {
	w.wrote = 0
	if w.Yield != nil {
		w.Yield()
	}
}
