package rest

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// gzipFrom is the size from which answers are compressed for those who accept
// it.
const gzipFrom = 128 << 10

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// beginGzip writes the header of a compressed answer and returns where its
// body goes.
func beginGzip(w http.ResponseWriter, code int) *gzip.Writer {
	h := w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(code)
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
	return z
}

func writeGzip(w http.ResponseWriter, code int, body []byte) {
	z := beginGzip(w, code)
	_, _ = z.Write(body)
	_ = z.Close()
}

// chunked gathers small writes into pieces: over HTTP/2 and TLS many small ones
// cost several times as much.
type chunked struct {
	w   io.Writer
	buf []byte
	err error
}

const chunkSize = 256 << 10

func (c *chunked) write(parts ...[]byte) {
	for _, p := range parts {
		if len(c.buf)+len(p) > chunkSize && len(c.buf) > 0 {
			c.flush()
		}
		if len(p) >= chunkSize {
			if c.err == nil {
				_, c.err = c.w.Write(p)
			}
			continue
		}
		c.buf = append(c.buf, p...)
	}
}

func (c *chunked) flush() {
	if c.err == nil && len(c.buf) > 0 {
		_, c.err = c.w.Write(c.buf)
	}
	c.buf = c.buf[:0]
}
