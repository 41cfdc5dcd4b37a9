package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed web
var web embed.FS

// page serves the files of web. Every address that is not a file is a place in the page,
// which its script finds.
type page struct {
	from fs.FS
	keep bool // the files do not change

	mu    sync.Mutex
	files map[string]*file
}

// file is a file as it is sent.
type file struct {
	contentType, etag string
	plain, gzipped    []byte
}

func newPage(from fs.FS) *page {
	p := &page{from: from, keep: from == nil, files: map[string]*file{}}
	if from == nil {
		p.from, _ = fs.Sub(web, "web") // fails only for an invalid name
	}
	return p
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "There is only a page here.", http.StatusMethodNotAllowed)
		return
	}
	name, asset := strings.CutPrefix(path.Clean(r.URL.Path), "/assets/")
	if !asset {
		name = "index.html"
	}
	f, err := p.file(name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "no-cache") // ask, and be told that it is the same
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if acceptsGzip(r.Header) {
		h.Set("Content-Encoding", "gzip")
		body = f.gzipped
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	_, _ = w.Write(body)
}

// file returns a file, and compresses it when it is first asked for.
func (p *page) file(name string) (*file, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.files[name]; f != nil {
		return f, nil
	}
	plain, err := fs.ReadFile(p.from, name)
	if err != nil {
		return nil, err
	}
	var small bytes.Buffer
	z, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(plain); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(plain)
	f := &file{contentType: mime.TypeByExtension(path.Ext(name)), etag: `"` + hex.EncodeToString(sum[:8]) + `"`, plain: plain, gzipped: small.Bytes()}
	switch path.Ext(name) { // whatever the machine's table says
	case ".js":
		f.contentType = "text/javascript; charset=utf-8"
	case ".css":
		f.contentType = "text/css; charset=utf-8"
	case ".html":
		f.contentType = "text/html; charset=utf-8"
	case ".svg":
		f.contentType = "image/svg+xml"
	}
	if p.keep {
		p.files[name] = f
	}
	return f, nil
}

// acceptsGzip reports whether an answer may be compressed by gzip.
func acceptsGzip(h http.Header) bool {
	var any, gzip, named bool
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, params, _ := strings.Cut(part, ";")
		wanted := true
		if name, value, ok := strings.Cut(params, "="); ok && strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			wanted = err == nil && q > 0
		}
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			gzip, named = wanted, true
		case "*":
			any = wanted
		}
	}
	return gzip || any && !named
}
