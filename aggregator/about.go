package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/request"
)

// This file fetches and keeps the discovery and OpenAPI documents of backends.

// maxDocument is the largest discovery or OpenAPI document in bytes that is read from a
// backend.
const maxDocument = 16 << 20

// backendDocuments holds the documents of a backend. It is immutable; an update replaces it.
type backendDocuments struct {
	discovery *apidiscovery.APIVersionDiscovery // nil if it could not be fetched
	openapi   openapi.Remote
	tags      tags
	converted bool // the OpenAPI v3 document is converted from v2
}

// tags are the ETags of the fetched documents.
type tags struct{ discovery, swagger string }

// discovered returns the backend's part of discovery; stale if there is none.
func (b *backend) discovered(stale *apidiscovery.APIVersionDiscovery) *apidiscovery.APIVersionDiscovery {
	if a := b.documents.Load(); a != nil && a.discovery != nil {
		return a.discovery
	}
	return stale
}

// documents returns the OpenAPI documents of all backends, for package openapi. They
// are collected again when something has changed.
func (s *Server) documents() *openapi.Remotes {
	s.merging.Lock()
	defer s.merging.Unlock()
	changed := s.changed.Load()
	if s.described.changed == changed {
		return s.described.value
	}
	var all []openapi.Remote
	for _, group := range s.groups() {
		for _, service := range group {
			if b := s.remote(service); b != nil {
				if a := b.documents.Load(); a != nil && (a.openapi.Address != "" || a.openapi.V2 != nil) {
					all = append(all, a.openapi)
				}
			}
		}
	}
	next := described{changed: changed}
	switch before := s.described.value; {
	case len(all) == 0:
	case before != nil && sameDocuments(before.Documents, all):
		next.value = before
	default:
		next.value = &openapi.Remotes{Documents: all}
	}
	s.described = next
	return next.value
}

// described caches the result of documents, with the value of Server.changed that it
// belongs to.
type described struct {
	changed int64
	value   *openapi.Remotes
}

func sameDocuments(a, b []openapi.Remote) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name || a[i].Address != b[i].Address || a[i].V2 != b[i].V2 {
			return false
		}
	}
	return true
}

// dropDocuments drops the documents of a backend that is not available.
func (b *backend) dropDocuments() {
	if b.documents.Swap(nil) != nil {
		b.server.changed.Add(1)
	}
}

// fetchFirst fetches the discovery document.
func (b *backend) fetchFirst(ctx context.Context) {
	b.updateDocuments(func(a *backendDocuments) {
		if err := b.fetchDiscovery(ctx, a); err != nil {
			a.discovery, a.tags.discovery = nil, ""
			b.server.Logger.Warn("discovery of an APIService cannot be read", "name", b.name, "error", err)
		}
	})
}

// fetchDocuments fetches the OpenAPI documents. Those that cannot be fetched now are
// kept as they were, as long as the backend is available.
func (b *backend) fetchDocuments(ctx context.Context) {
	b.updateDocuments(func(a *backendDocuments) {
		err := b.fetchIndex(ctx, a)
		if err != nil {
			b.server.Logger.Debug("OpenAPI of an APIService cannot be read", "name", b.name, "version", 3, "error", err)
		}
		if err := b.fetchSwagger(ctx, a, errors.Is(err, errMissing)); err != nil {
			b.server.Logger.Debug("OpenAPI of an APIService cannot be read", "name", b.name, "version", 2, "error", err)
		}
	})
}

// updateDocuments updates the documents with change, and increments Server.changed if something is new.
func (b *backend) updateDocuments(change func(*backendDocuments)) {
	old := b.documents.Load()
	if old == nil {
		old = &backendDocuments{}
	}
	next := *old
	// The documents come from the backend: decoding them must not crash the server.
	if err := protect.Call(func() error { change(&next); return nil }); err != nil {
		b.server.Logger.Error("documents of an APIService caused a panic", "name", b.name, "error", err, "stack", protect.StackOf(err))
		return
	}
	b.documents.Store(&next)
	if !reflect.DeepEqual(old.discovery, next.discovery) || !sameDocuments([]openapi.Remote{old.openapi}, []openapi.Remote{next.openapi}) {
		b.server.changed.Add(1)
	}
}

var (
	// errUnchanged: the backend answered 304 Not Modified.
	errUnchanged = errors.New("not modified")
	// errMissing: the backend answered 404.
	errMissing = errors.New("not found")
)

// read fetches a document of at most maxDocument bytes.
func (b *backend) read(ctx context.Context, path, accept, tag string) (data []byte, header http.Header, err error) {
	target, err := b.resolve(ctx)
	if err != nil {
		return nil, nil, err
	}
	address := url.URL{Scheme: target.Scheme, Host: target.Host, Path: path}
	ask := http.Header{"Accept": {accept}}
	if tag != "" {
		ask.Set("If-None-Match", tag)
	}
	resp, err := b.get(ctx, &address, ask)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && tag != "":
		return nil, resp.Header, errUnchanged
	case resp.StatusCode == http.StatusNotFound:
		return nil, nil, fmt.Errorf("%s: %w", path, errMissing)
	case resp.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	data, err = io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err == nil && len(data) > maxDocument {
		err = fmt.Errorf("%s: longer than %d bytes", path, maxDocument)
	}
	return data, resp.Header, err
}

const acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// fetchDiscovery reads the resources of the group and version: from aggregated
// discovery, or, if the backend does not have that, from the APIResourceList of the
// version.
func (b *backend) fetchDiscovery(ctx context.Context, into *backendDocuments) error {
	data, header, err := b.read(ctx, "/apis", acceptAggregated+",application/json", into.tags.discovery)
	if errors.Is(err, errUnchanged) && into.discovery != nil {
		return nil
	}
	if err == nil && isAggregated(header.Get("Content-Type")) {
		var list apidiscovery.APIGroupDiscoveryList
		if err := json.Unmarshal(data, &list); err != nil {
			return fmt.Errorf("/apis: %w", err)
		}
		into.discovery, into.tags.discovery = b.pick(&list), header.Get("Etag")
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	path := "/apis/" + b.gv.String()
	if b.gv.Group == "" {
		path = "/api/" + b.gv.Version
	}
	if data, _, err = b.read(ctx, path, "application/json", ""); err != nil {
		return err
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if list.GroupVersion != "" && list.GroupVersion != b.gv.String() {
		return fmt.Errorf("%s: the answer is about %q", path, list.GroupVersion)
	}
	into.tags.discovery = ""
	into.discovery = &apidiscovery.APIVersionDiscovery{
		Version: b.gv.Version, Resources: discovery.Resources(list.APIResources), Freshness: apidiscovery.DiscoveryFreshnessCurrent,
	}
	return nil
}

func isAggregated(contentType string) bool {
	_, params, err := mime.ParseMediaType(contentType)
	return err == nil && params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" && params["as"] == "APIGroupDiscoveryList"
}

// pick returns the part of an aggregated discovery document about this group and
// version. A backend that does not mention it has no resources.
func (b *backend) pick(list *apidiscovery.APIGroupDiscoveryList) *apidiscovery.APIVersionDiscovery {
	picked := &apidiscovery.APIVersionDiscovery{Version: b.gv.Version}
	for _, group := range list.Items {
		for _, v := range group.Versions {
			if group.Name == b.gv.Group && v.Version == b.gv.Version {
				picked = v.DeepCopy()
			}
		}
	}
	picked.Freshness = apidiscovery.DiscoveryFreshnessCurrent
	for i := range picked.Resources {
		r := &picked.Resources[i]
		if r.ResponseKind == nil { // some clients expect it to be set
			r.ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range r.Subresources {
			if r.Subresources[j].ResponseKind == nil {
				r.Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
	return picked
}

func (b *backend) documentName() string {
	if b.gv.Group == "" {
		return "api/" + b.gv.Version
	}
	return "apis/" + b.gv.String()
}

// fetchIndex reads the address of the OpenAPI v3 document from the index of the
// backend.
func (b *backend) fetchIndex(ctx context.Context, into *backendDocuments) error {
	data, _, err := b.read(ctx, "/openapi/v3", "application/json", "")
	if err != nil {
		return err
	}
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return fmt.Errorf("/openapi/v3: %w", err)
	}
	name := b.documentName()
	address := index.Paths[name].ServerRelativeURL
	if at, err := url.Parse(address); err != nil || at.Host != "" || at.Scheme != "" || at.Path != "/openapi/v3/"+name {
		return fmt.Errorf("/openapi/v3: %q is no address of %s", address, name)
	}
	into.openapi.Name, into.openapi.Address, into.openapi.Serve, into.converted = name, address, b.serveDocument, false
	return nil
}

// serveDocument proxies a request for the OpenAPI v3 document.
func (b *backend) serveDocument(w http.ResponseWriter, r *http.Request) {
	a := b.documents.Load()
	if a == nil {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	// For an outdated hash the backend would redirect, which is not forwarded: the
	// client gets the current document instead.
	query := request.QueryOf(r)
	if hash := query.Get("hash"); hash != "" && !strings.Contains(a.openapi.Address, url.QueryEscape(hash)) {
		query = request.Query{}
	}
	b.proxyQuery(w, r, query)
}

// fetchSwagger reads the part of the OpenAPI v2 document about the group and version.
// For a backend without v3 (only), the v3 document is converted from it.
func (b *backend) fetchSwagger(ctx context.Context, into *backendDocuments, only bool) error {
	tag := into.tags.swagger
	if only && !into.converted {
		tag = "" // needed again for the conversion
	}
	data, header, err := b.read(ctx, "/openapi/v2", "application/json", tag)
	switch {
	case errors.Is(err, errUnchanged) && into.openapi.V2 != nil:
		return nil
	case errors.Is(err, errMissing) && !only:
		return b.fetchNewer(ctx, into)
	case err != nil:
		return err
	}
	if only {
		address, serve, err := convert(data, b.documentName())
		if err != nil {
			return err
		}
		into.openapi.Name, into.openapi.Address, into.openapi.Serve, into.converted = b.documentName(), address, serve, true
	}
	part, err := openapi.ReadSwagger(data, "/"+b.documentName())
	if err != nil {
		return err
	}
	into.openapi.Name = b.documentName()
	into.openapi.V2, into.tags.swagger = part, header.Get("Etag")
	return nil
}

// fetchNewer converts the OpenAPI v2 document from v3, for a backend without v2.
func (b *backend) fetchNewer(ctx context.Context, into *backendDocuments) error {
	if into.openapi.Address == "" || into.tags.swagger == into.openapi.Address && into.openapi.V2 != nil {
		return nil // the hash in the address is that of the content
	}
	data, _, err := b.read(ctx, "/openapi/v3/"+b.documentName(), "application/json", "")
	if err != nil {
		return err
	}
	part, err := toSwagger(data, "/"+b.documentName())
	if err != nil {
		return err
	}
	into.openapi.V2, into.tags.swagger = part, into.openapi.Address
	return nil
}
