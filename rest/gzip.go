package rest

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/apikeel/kelson/internal/gzipped"
)

// gzipFrom is the size from which answers are compressed for those who accept
// it.
const gzipFrom = 128 << 10

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// beginGzip writes the header of a compressed answer and returns where its
// body goes.
func beginGzip(w http.ResponseWriter, code int) *zipper {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(code)
	return newZipper(w)
}

func writeGzip(w http.ResponseWriter, code int, body []byte) {
	z := beginGzip(w, code)
	_, _ = z.Write(body)
	_ = z.Close()
}

// zipper writes in the format of gzip. Unlike a gzip.Writer it compresses each write
// by itself, and takes pieces that were compressed before. Writes should be large.
type zipper struct {
	w   io.Writer
	err error
	sum gzipped.Sum // of all that was written
}

func newZipper(w io.Writer) *zipper {
	z := &zipper{w: w}
	z.raw([]byte(gzipped.Header))
	return z
}

func (z *zipper) raw(p []byte) {
	if z.err == nil {
		_, z.err = z.w.Write(p)
	}
}

var zipBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Write implements io.Writer.
func (z *zipper) Write(p []byte) (int, error) {
	const tiny = 64
	if len(p) <= tiny {
		z.add(gzipped.Piece{Bytes: gzipped.AppendStored(nil, p), Sum: gzipped.SumOf(p)})
		return len(p), z.err
	}
	b := zipBuffers.Get().(*bytes.Buffer)
	z.add(gzipped.Compress(b, p))
	zipBuffers.Put(b)
	return len(p), z.err
}

// add writes a piece that is compressed.
func (z *zipper) add(p gzipped.Piece) {
	z.raw(p.Bytes)
	z.sum = z.sum.Then(p.Sum)
}

// Close ends what is written.
func (z *zipper) Close() error {
	z.raw(gzipped.AppendEnd(nil, z.sum))
	return z.err
}
