package rest

import (
	"compress/gzip"
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
