package wire

import (
	"bytes"
	"io"
	"sync"

	"github.com/apikeel/kelson/internal/gzipped"
)

// MinGzip is the size in bytes from which answers are worth compressing.
const MinGzip = 128 << 10

// GzipWriter writes in the format of gzip. Unlike a gzip.Writer it compresses each write
// by itself, and takes chunks that were compressed before. Writes should be large.
type GzipWriter struct {
	w   io.Writer
	err error
	sum gzipped.Sum // of all that was written
}

// NewGzipWriter writes the header of gzip to w, and returns a writer that must be closed.
func NewGzipWriter(w io.Writer) *GzipWriter {
	z := &GzipWriter{w: w}
	z.raw([]byte(gzipped.Header))
	return z
}

func (z *GzipWriter) raw(p []byte) {
	if z.err == nil {
		_, z.err = z.w.Write(p)
	}
}

var gzipBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Write implements io.Writer.
func (z *GzipWriter) Write(p []byte) (int, error) {
	const tiny = 64
	if len(p) <= tiny {
		z.add(gzipped.Piece{Bytes: gzipped.AppendStored(nil, p), Sum: gzipped.SumOf(p)})
		return len(p), z.err
	}
	b := gzipBuffers.Get().(*bytes.Buffer)
	z.add(gzipped.Compress(b, p))
	gzipBuffers.Put(b)
	return len(p), z.err
}

// add writes what is compressed already.
func (z *GzipWriter) add(p gzipped.Piece) {
	z.raw(p.Bytes)
	z.sum = z.sum.Then(p.Sum)
}

// Close writes the end. It leaves the writer below open.
func (z *GzipWriter) Close() error {
	z.raw(gzipped.AppendEnd(nil, z.sum))
	return z.err
}
