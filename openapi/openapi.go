// Package openapi describes what a server serves: /openapi/v3, a document a
// group version behind an index, and /openapi/v2, everything in one document.
//
// Documents are computed from a catalog when somebody first asks, and kept
// compressed until the catalog changes; then only those of the groups that
// changed are made again. What they say of the Go types of the Kubernetes API is
// generated ahead of time (see internal/generate) and embedded; a kind that has
// no generated definitions brings its schema itself (resource.Version.Schema).
package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"

	"github.com/apikeel/kelson/resource"
)

// kubernetesVersion is that of the API types that definitions are made from.
const kubernetesVersion = "1.37"

const (
	subtypeV2    = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	subtypeV2Old = "com.github.proto-openapi.spec.v2@v1.0+protobuf"
	subtypeV3    = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
	subtypeV3Old = "com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// Config says what documents cannot know from a catalog.
type Config struct {
	// Title of documents; Kubernetes unless told.
	Title string
	// Version of the API, that of Kubernetes unless told.
	Version string
	// Routes besides resources and discovery; /version unless told.
	Routes []Route
	// Remote returns the documents about what other servers serve, the same
	// value until they change; nil if there are none.
	Remote func() *Remotes
	// Log gets the errors of building documents.
	Log *slog.Logger
}

// Handler serves /openapi. It is safe for concurrent use.
type Handler struct {
	catalog func() *resource.Catalog
	config  Config

	mu sync.Mutex
	// current is what the documents describe. A request takes it once, so that
	// its answer is about one catalog.
	current *state
}

// state is the documents of one catalog.
type state struct {
	catalog   *resource.Catalog
	remotes   *Remotes
	order     []string
	documents map[string]*document
	index     lazy
	whole     document
}

// New returns a handler for what catalog returns at the time of a request.
func New(catalog func() *resource.Catalog, config Config) *Handler {
	if config.Title == "" {
		config.Title = "Kubernetes"
	}
	if config.Version == "" {
		config.Version = kubernetesVersion
	}
	if config.Routes == nil {
		config.Routes = []Route{{Path: "/version", Operation: "getCodeVersion", Description: "get the version information for this server",
			Consumes: []string{mediaJSON}, Produces: []string{mediaJSON}, Definition: "io.k8s.apimachinery.pkg.version.Info"}}
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Handler{catalog: catalog, config: config}
}

// Serve answers a request below /openapi. It reports false, and does nothing,
// if the path is not one of its own.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request) bool {
	switch p := r.URL.Path; {
	case p == "/openapi/v2":
		h.serveV2(w, r)
	case p == "/openapi/v3":
		h.serveIndex(w, r)
	case strings.HasPrefix(p, "/openapi/v3/"):
		h.serveV3(w, r, strings.TrimPrefix(p, "/openapi/v3/"))
	default:
		return false
	}
	return true
}

// Paths are those of Serve, for the list of paths that a server gives.
func (h *Handler) Paths() []string { return []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/"} }

// state returns the documents of the catalog of now. Those that describe the
// same as before are kept.
func (h *Handler) state() *state {
	catalog := h.catalog()
	var remotes *Remotes
	if h.config.Remote != nil {
		remotes = h.config.Remote()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current != nil && h.current.catalog == catalog && h.current.remotes == remotes {
		return h.current
	}
	s := &state{catalog: catalog, remotes: remotes, documents: map[string]*document{}}
	for _, p := range parts(catalog, h.config.Routes) {
		d := &document{part: p}
		if h.current != nil {
			if old := h.current.documents[p.name]; old != nil && old.part.group == p.group {
				d = old
			}
		}
		s.order = append(s.order, p.name)
		s.documents[p.name] = d
	}
	h.current = s
	return s
}

func (h *Handler) serveIndex(w http.ResponseWriter, r *http.Request) {
	s := h.state()
	index, err := s.index.get(func() (answer, error) { return h.buildIndex(s) })
	if err != nil {
		h.failed(w, err)
		return
	}
	// Without a type of its own the index is taken for text, and always was.
	http.ServeContent(w, r, "", index.made, bytes.NewReader(index.data))
}

// buildIndex makes every document, since the index has their hashes.
func (h *Handler) buildIndex(s *state) (answer, error) {
	l := newLibrary()
	b := []byte(`{"paths":{`)
	for i, name := range s.names() {
		at := ""
		if remote := s.remotes.find(name); remote != nil {
			at = remote.Address
		} else {
			d := s.documents[name]
			a, err := d.json.get(func() (answer, error) { return h.build3(d, l) })
			if err != nil {
				return answer{}, err
			}
			at = address(name, a.hash)
		}
		b = append(appendText(separator(b, i), name), `:{"serverRelativeURL":`...)
		b = append(appendText(b, at), '}')
	}
	return answer{data: append(b, "}}"...), made: time.Now()}, nil
}

// names returns the names of all documents of version 3, sorted.
func (s *state) names() []string {
	names := slices.Clone(s.order)
	if s.remotes != nil {
		for _, d := range s.remotes.Documents {
			if d.Address != "" {
				names = append(names, d.Name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (h *Handler) serveV3(w http.ResponseWriter, r *http.Request, name string) {
	s := h.state()
	if remote := s.remotes.find(name); remote != nil {
		remote.Serve(w, r)
		return
	}
	d := s.documents[name]
	if d == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Vary", "Accept")
	subtype, ok := negotiate(r, "json", subtypeV3, subtypeV3Old)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	a, err := d.json.get(func() (answer, error) { return h.build3(d, newLibrary()) })
	if err == nil && subtype != "json" {
		subtype = subtypeV3
		a, err = d.proto.get(func() (answer, error) { return h.buildProto3(d, a) })
	}
	if err != nil {
		h.failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/"+subtype)
	w.Header().Set("Etag", strconv.Quote(a.hash))
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != a.hash {
			http.Redirect(w, r, address(name, a.hash), http.StatusMovedPermanently)
			return
		}
		// What has this hash will never change.
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().UTC().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	h.send(w, r, a)
}

func (h *Handler) serveV2(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept-Encoding")
	w.Header().Add("Vary", "Accept")
	subtype, ok := negotiate(r, "json", subtypeV2Old, subtypeV2)
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	s := h.state()
	a, err := s.whole.json.get(func() (answer, error) { return h.build2(s) })
	if err == nil && subtype != "json" {
		subtype = subtypeV2
		a, err = s.whole.proto.get(func() (answer, error) { return h.buildProto2(s, a) })
	}
	if err != nil {
		h.config.Log.Error("building an OpenAPI document", "err", err)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/"+subtype)
	w.Header().Set("Etag", strconv.Quote(a.hash))
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		http.ServeContent(w, r, "", a.made, bytes.NewReader(a.data))
		return
	}
	h.send(w, r, a)
}

// send answers with a document that is kept compressed.
func (h *Handler) send(w http.ResponseWriter, r *http.Request, a answer) {
	data, err := a.plain()
	if err != nil {
		h.failed(w, err)
		return
	}
	http.ServeContent(w, r, "", a.made, bytes.NewReader(data))
}

func (h *Handler) failed(w http.ResponseWriter, err error) {
	h.config.Log.Error("building an OpenAPI document", "err", err)
	w.WriteHeader(http.StatusInternalServerError)
}

// negotiate returns the first of the offered subtypes of application that the
// request accepts, by the order of its wishes.
func negotiate(r *http.Request, offers ...string) (string, bool) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		accept = anyMedia
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, offer := range offers {
			if (clause.Type == "application" || clause.Type == "*") && (clause.SubType == offer || clause.SubType == "*") {
				return offer, true
			}
		}
	}
	return "", false
}

func acceptsGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.EqualFold(name, "gzip") && strings.ReplaceAll(params, " ", "") != "q=0" {
			return true
		}
	}
	return false
}

// address is where a document is found as long as it does not change.
func address(name, hash string) string {
	u := url.URL{Path: "/openapi/v3/" + name, RawQuery: url.Values{"hash": {hash}}.Encode()}
	return u.String()
}

// answer is a document in one format.
type answer struct {
	data []byte // compressed, except for the index
	size int    // of the document
	hash string
	made time.Time
}

// newAnswer compresses a document.
func (l *library) newAnswer(document []byte, hash string) (answer, error) {
	var buf bytes.Buffer
	if l.compressor == nil {
		w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
		if err != nil {
			return answer{}, err
		}
		l.compressor = w
	}
	l.compressor.Reset(&buf)
	if _, err := l.compressor.Write(document); err != nil {
		return answer{}, err
	}
	if err := l.compressor.Close(); err != nil {
		return answer{}, err
	}
	return answer{data: bytes.Clone(buf.Bytes()), size: len(document), hash: hash, made: time.Now()}, nil
}

func (a answer) plain() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(a.data))
	if err != nil {
		return nil, err
	}
	data := make([]byte, a.size)
	_, err = io.ReadFull(r, data)
	return data, err
}

// lazy is an answer that is made when it is first wanted. An error is not kept.
type lazy struct {
	mu   sync.Mutex
	done bool
	answer
}

func (l *lazy) get(build func() (answer, error)) (answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		a, err := build()
		if err != nil {
			return answer{}, err
		}
		l.answer, l.done = a, true
	}
	return l.answer, nil
}

// document is a document in its formats.
type document struct {
	part        part
	json, proto lazy
}

func (h *Handler) build3(d *document, l *library) (answer, error) {
	paths, err := d.part.paths(newParameters(), l)
	if err != nil {
		return answer{}, err
	}
	definitions, err := l.closure(paths)
	if err != nil {
		return answer{}, err
	}
	b := h.document3(paths, d.part.scoped(definitions))
	return l.newAnswer(b, fmt.Sprintf("%X", sha512.Sum512(b)))
}

func (h *Handler) build2(s *state) (answer, error) {
	paths, l, err := s.allPaths()
	if err != nil {
		return answer{}, err
	}
	definitions, err := l.closure(paths)
	if err != nil {
		return answer{}, err
	}
	b := h.document2(paths, definitions)
	if s.remotes.hasV2() {
		if b, err = merge2(b, s.remotes); err != nil {
			return answer{}, err
		}
	}
	return l.newAnswer(b, fmt.Sprintf("%X", sha512.Sum512(b)))
}

func (s *state) allPaths() ([]path, *library, error) {
	l, options := newLibrary(), newParameters()
	var all []path
	for _, name := range s.order {
		paths, err := s.documents[name].part.paths(options, l)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, paths...)
	}
	sortPaths(all)
	return all, l, nil
}
