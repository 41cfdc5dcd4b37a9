// Package openapi serves the OpenAPI documents of a server: /openapi/v3, a document for
// each group and version behind an index, and /openapi/v2, everything in one document.
// Start at Handler. It never builds a document before somebody asks for it.
//
// Documents are computed from a catalog, in pieces, of which those that take long to
// build are kept compressed; when the catalog changes, only the pieces that the change
// is part of are built again (piece.go). The definitions of the Go types of the
// Kubernetes API are generated ahead of time (see internal/generate) and embedded; a
// kind without generated definitions brings its schema (resource.Version.Schema).
package openapi

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/munnerz/goautoneg"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

const (
	subtypeV2    = "com.github.proto-openapi.spec.v2.v1.0+protobuf"
	subtypeV2Old = "com.github.proto-openapi.spec.v2@v1.0+protobuf"
	subtypeV3    = "com.github.proto-openapi.spec.v3.v1.0+protobuf"
	subtypeV3Old = "com.github.proto-openapi.spec.v3@v1.0+protobuf"
)

// Config is what documents need besides the catalog.
type Config struct {
	// Title of documents; the default is Kubernetes.
	Title string
	// Version of the API; the default is that of Kubernetes.
	Version string
	// CBOR names the media types of CBOR for built-in kinds and discovery.
	CBOR bool
	// Routes besides resources, discovery and /version.
	Routes []Route
	// Remote returns the documents of other servers, the same value until they change;
	// nil if there are none.
	Remote func() *Remotes
	// NoEnums leaves out the values that fields of the Kubernetes API can have: the
	// feature gate OpenAPIEnums is disabled.
	NoEnums bool
	// Log gets the errors of building documents.
	Log *slog.Logger
}

// Handler serves /openapi. It is safe for concurrent use.
type Handler struct {
	catalog func() *resource.Catalog
	config  Config
	media   mediaTypes
	options func() *parameters
	// pack has the generated definitions.
	pack func() *pack.Pack

	mu sync.Mutex
	// current are the documents of the current catalog. A request reads it once, so
	// that its answer is about one catalog.
	current *state

	// building is held while a document is built: one at a time, which also limits
	// memory. It guards the fields below.
	building sync.Mutex
	sources  uint64 // number of sources created so far
	// shared are the parameters of version 2 by their names.
	shared map[string][]byte
}

// state is the documents of one catalog.
type state struct {
	catalog   *resource.Catalog
	remotes   *Remotes
	order     []string
	documents map[string]*document
	whole     document

	indexing sync.Mutex
	index    []byte
	indexed  time.Time
}

// New returns a handler for what catalog returns at the time of a request.
func New(catalog func() *resource.Catalog, config Config) *Handler {
	if config.Title == "" {
		config.Title = "Kubernetes"
	}
	if config.Version == "" {
		config.Version = strconv.Itoa(features.KubernetesMajor) + "." + strconv.Itoa(features.KubernetesMinor)
	}
	config.Routes = append([]Route{{Path: "/version", Operation: "getCodeVersion", Description: "get the version information for this server",
		Consumes: []string{mediaJSON}, Produces: []string{mediaJSON}, Definition: "io.k8s.apimachinery.pkg.version.Info"}}, config.Routes...)
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	media := newMediaTypes(config.CBOR)
	return &Handler{
		catalog: catalog, config: config, media: media, options: sync.OnceValue(func() *parameters { return newParameters(media) }),
		pack: sync.OnceValue(openPack), shared: map[string][]byte{},
	}
}

func (h *Handler) newLibrary() *library {
	l := newLibrary(h.pack())
	l.noEnums = h.config.NoEnums
	return l
}

// newLibrary2 is newLibrary for documents of version 2.
func (h *Handler) newLibrary2() *library {
	l := newLibrary2(h.pack())
	l.noEnums = h.config.NoEnums
	return l
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

// Paths returns the paths that Serve answers, for the list of paths at the root of a server.
func (h *Handler) Paths() []string { return []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/"} }

// state returns the documents of the current catalog. Unchanged documents are kept.
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
	for _, p := range parts(catalog, h.media.objects, h.config.Routes) {
		d := &document{part: p}
		if h.current != nil {
			if old := h.current.documents[p.name]; old != nil && old.part.same(&p) {
				d = old
			} else if old != nil {
				d.succeed(old)
			}
		}
		s.order = append(s.order, p.name)
		s.documents[p.name] = d
	}
	if h.current != nil {
		s.whole.succeed(&h.current.whole)
	}
	h.current = s
	return s
}

func (h *Handler) serveIndex(w http.ResponseWriter, r *http.Request) {
	index, made, err := h.index(h.state())
	if err != nil {
		h.failed(w, err)
		return
	}
	// In kube-apiserver the index has no type of its own and is sniffed as text. Without a
	// type, ServeContent would read all types that the system has, for the first client.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	http.ServeContent(w, r, "", made, bytes.NewReader(index))
}

// Prepare makes the index of documents, so that the first client who asks for it does not have
// to wait for that. It is for a server that has come to rest after its start.
func (h *Handler) Prepare() error {
	_, _, err := h.index(h.state())
	return err
}

// index returns the index of documents, and when it was made.
func (h *Handler) index(s *state) ([]byte, time.Time, error) {
	s.indexing.Lock()
	defer s.indexing.Unlock()
	if s.index == nil {
		index, err := h.buildIndex(s)
		if err != nil {
			return nil, time.Time{}, err
		}
		s.index, s.indexed = index, time.Now()
	}
	return s.index, s.indexed, nil
}

// indexEntry is about how many bytes a document takes in the index.
const indexEntry = 256

// buildIndex builds every document whose hash is not known: the index has the hashes of
// all.
func (h *Handler) buildIndex(s *state) ([]byte, error) {
	open := sync.OnceValue(h.newLibrary)
	names := s.names()
	b := append(make([]byte, 0, len(names)*indexEntry), `{"paths":{`...)
	for i, name := range names {
		at := ""
		if remote := s.remotes.find(name); remote != nil {
			at = remote.Address
		} else {
			hash, err := h.hash3(s.documents[name], open)
			if err != nil {
				return nil, err
			}
			at = address(name, hash)
		}
		b = append(appendText(separator(b, i), name), `:{"serverRelativeURL":`...)
		b = append(appendText(b, at), '}')
	}
	return append(b, "}}"...), nil
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
	var a *body
	var err error
	if subtype == "json" {
		a, err = h.json3(d, h.newLibrary)
	} else {
		subtype = subtypeV3
		a, err = h.proto3(d)
	}
	if err != nil {
		h.failed(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/"+subtype)
	w.Header().Set("Etag", strconv.Quote(a.hash))
	if hash := request.QueryOf(r).Get("hash"); hash != "" {
		if hash != a.hash {
			http.Redirect(w, r, address(name, a.hash), http.StatusMovedPermanently)
			return
		}
		// A document at an address with its hash never changes.
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().UTC().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	http.ServeContent(w, r, "", a.made, a.plain())
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
	a, err := h.json2(s)
	if err == nil && subtype != "json" {
		subtype = subtypeV2
		a, err = h.proto2(s, a)
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
		packed, err := a.compressed()
		if err != nil {
			h.failed(w, err)
			return
		}
		http.ServeContent(w, r, "", a.made, packed)
		return
	}
	http.ServeContent(w, r, "", a.made, a.plain())
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

// acceptsGzip reports whether a client accepts gzip. Unlike request.AcceptsGzip it reads
// weights, as kube-apiserver does for these documents only.
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
	return (&url.URL{Path: "/openapi/v3/" + name}).EscapedPath() + "?hash=" + hash
}
