// Package discovery serves API discovery: /api and /apis with a document for each group
// and version, and aggregated discovery, in which /api and /apis have everything at
// once. Start at Handler. It imports no group: documents are computed from a catalog on
// the first request, and kept until the catalog changes.
package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/status"
)

// Handler serves discovery. It is safe for concurrent use.
type Handler struct {
	catalog func() *resource.Catalog
	address func(r *http.Request) string
	merge   func(*resource.Catalog) *Merged
	// NoHashes leaves out storageVersionHash of kinds that are built in: the gate
	// StorageVersionHash is off. It is set before the first request.
	NoHashes bool
	// Peers are other servers whose groups /apis has too, in the aggregated format and
	// unless a client asks for the profile nopeer; nil if there are none. It is set before
	// the first request.
	Peers Peers
	// Metrics counts how often the groups of peers were merged, if there are Peers.
	Metrics measure.Sink

	mu      sync.Mutex
	current *state
	peers   *peerState
}

// state has the encoded documents of one catalog.
type state struct {
	catalog *resource.Catalog
	merged  *Merged
	mu      sync.Mutex
	pages   map[page][]byte
	etags   map[string]string
}

// page identifies a document in one of its formats.
type page struct {
	path       string // for /api with the address of the server
	media      string
	pretty     bool
	aggregated bool
}

// New returns a handler. catalog is called for each request; address returns the host
// and port by which a client reaches the server, which /api contains.
func New(catalog func() *resource.Catalog, address func(r *http.Request) string) *Handler {
	return &Handler{catalog: catalog, address: address}
}

// Serve answers a request for discovery. It returns false, and does nothing, if the
// path is not a discovery path, or its group or version does not exist. An error is a
// Status that the caller writes; nothing has been written then.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request) (bool, error) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	// Any number of trailing slashes is accepted, except for /apis, which takes one.
	parts := strings.Split(strings.TrimRight(path, "/"), "/")
	if parts[0] != "api" && parts[0] != "apis" || strings.HasPrefix(path, "apis//") {
		return false, nil
	}
	v := h.view()
	catalog := v.catalog
	switch {
	case parts[0] == "api" && len(parts) == 1, parts[0] == "apis" && len(parts) == 1:
		if parts[0] == "api" {
			if err := checkRequest(r); err != nil {
				return true, err
			}
		}
		return true, h.serveRoot(w, r, v, parts[0])
	case parts[0] == "apis" && len(parts) == 2:
		g, ok := v.group(parts[1])
		if !ok || g.Name == "" {
			return false, nil
		}
		return true, h.serve(w, r, v, "apis/"+g.Name, func() runtime.Object {
			group := apiGroup(g)
			group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &group
		})
	case parts[0] == "apis" && len(parts) == 3 && parts[1] != "", parts[0] == "api" && len(parts) == 2:
		name := ""
		if parts[0] == "apis" {
			name = parts[1]
		}
		g, ok := catalog.Group(name)
		if !ok {
			return false, nil
		}
		version, ok := g.Version(parts[len(parts)-1])
		if !ok {
			return false, nil
		}
		if err := checkRequest(r); err != nil {
			return true, err
		}
		known := status.Media(request.From(r.Context()))
		if onlyCustom(version) {
			known = status.Media(&request.Request{}) // as in kube-apiserver, never CBOR
		}
		return true, h.serveAs(w, r, v, known, strings.Join(parts, "/"), func() runtime.Object { return h.resourceList(g, version) })
	}
	return false, nil
}

// serveRoot serves /api or /apis. The aggregated format is preferred if the client
// accepts it.
func (h *Handler) serveRoot(w http.ResponseWriter, r *http.Request, v view, root string) error {
	// /apis/ with a trailing slash has only the old format.
	plain := root == "apis" && strings.HasSuffix(r.URL.Path, "/")
	if media, ok := negotiate(r, status.Media(request.From(r.Context())), true); ok && !plain {
		return h.serveAggregated(w, r, v, root, media)
	}
	if root == "apis" {
		return h.serve(w, r, v, root, func() runtime.Object { return groupList(v) })
	}
	address := h.address(r)
	return h.serve(w, r, v, root+" "+address, func() runtime.Object {
		// This document predates API versions: it has no apiVersion.
		return &metav1.APIVersions{
			TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
			Versions:                   versionNames(v.catalog),
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: address}},
		}
	})
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, v view, path string, object func() runtime.Object) error {
	return h.serveAs(w, r, v, status.Media(request.From(r.Context())), path, object)
}

// serveAs is serve with the media types that the document has.
func (h *Handler) serveAs(w http.ResponseWriter, r *http.Request, v view, known []string, path string, object func() runtime.Object) error {
	media, ok := negotiate(r, known, false)
	if !ok {
		return notAcceptable(known)
	}
	body, err := h.state(v).page(page{path: path, media: media.name, pretty: media.pretty || isPretty(r)}, object)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", media.name)
	return send(w, r, body)
}

func (h *Handler) serveAggregated(w http.ResponseWriter, r *http.Request, v view, root string, media media) error {
	s := h.state(v)
	list := func() runtime.Object { return aggregated(v, root) }
	switch {
	case h.Peers == nil:
	case media.noPeers:
		measure.Count(h.Metrics, measure.DiscoveryNoPeer)
	case root == "apis":
		s, list = h.withPeers(v, s)
	}
	etag, err := s.etag(root, list)
	if err != nil {
		return err
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	body, err := s.page(page{path: root, media: media.name, pretty: media.pretty || isPretty(r), aggregated: true}, list)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", media.name+";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	return send(w, r, body)
}

// state returns the documents of a view, and drops those of others.
func (h *Handler) state(v view) *state {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil || h.current.catalog != v.catalog || h.current.merged != v.merged {
		h.current = &state{catalog: v.catalog, merged: v.merged, pages: map[page][]byte{}, etags: map[string]string{}}
	}
	return h.current
}

// maxPages is the largest number of cached documents: clients choose addresses.
const maxPages = 1024

func (s *state) page(p page, object func() runtime.Object) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if body := s.pages[p]; body != nil {
		return body, nil
	}
	body, err := encode(object(), p.media, p.pretty)
	if err != nil {
		return nil, err
	}
	if len(s.pages) < maxPages {
		s.pages[p] = body
	}
	return body, nil
}

func (s *state) etag(root string, object func() runtime.Object) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if etag := s.etags[root]; etag != "" {
		return etag, nil
	}
	etag, err := hash(object())
	if err == nil {
		s.etags[root] = etag
	}
	return etag, err
}

func versionNames(catalog *resource.Catalog) []string {
	names := []string{}
	if g, ok := catalog.Group(""); ok {
		for _, v := range g.Versions {
			names = append(names, v.Name)
		}
	}
	return names
}

func groupList(v view) *metav1.APIGroupList {
	list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	for _, g := range v.groups() {
		if g, ok := g.listed(); ok && g.Name != "" {
			list.Groups = append(list.Groups, apiGroup(g))
		}
	}
	return list
}

func apiGroup(g MergedGroup) metav1.APIGroup {
	group := metav1.APIGroup{Name: g.Name}
	for _, v := range g.Versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: g.Name, Version: v.Name}.String(), Version: v.Name,
		})
	}
	group.PreferredVersion = group.Versions[0]
	return group
}

func (h *Handler) resourceList(g *resource.ServedGroup, v *resource.ServedVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: schema.GroupVersion{Group: g.Name, Version: v.Name}.String(),
		APIResources: resources(v),
	}
	if g.Name == "" {
		list.APIVersion = "" // as in /api
	}
	if h.NoHashes {
		for i, r := range list.APIResources {
			isCustom := slices.ContainsFunc(v.Resources, func(s *resource.Served) bool { return s.Unstructured && s.Definition.Resource == r.Name })
			if !isCustom {
				list.APIResources[i].StorageVersionHash = ""
			}
		}
	}
	return list
}

// verbsOf returns the verbs of a resource, sorted, except for custom resources, which
// have their own order.
func verbsOf(s *resource.Served) []string {
	if s.Unstructured {
		return s.Definition.Verbs
	}
	return slices.Sorted(slices.Values(s.Definition.Verbs))
}

// resources returns the resources and subresources of a version, sorted by name.
func resources(v *resource.ServedVersion) []metav1.APIResource {
	list := []metav1.APIResource{}
	for _, s := range v.Resources {
		d := s.Definition
		r := metav1.APIResource{
			Name: d.Resource, SingularName: d.Singular, Namespaced: d.Namespaced, Kind: d.Kind,
			Verbs: verbsOf(s), ShortNames: d.ShortNames, Categories: d.Categories,
		}
		if !d.Virtual() {
			r.StorageVersionHash = storageVersionHash(d)
		}
		list = append(list, r)
		for sub := range s.Subresources() {
			list = append(list, subresource(s, sub))
		}
	}
	custom := isCustom(v)
	slices.SortStableFunc(list, func(a, b metav1.APIResource) int {
		if custom { // subresources of custom resources keep their order
			x, _, _ := strings.Cut(a.Name, "/")
			y, _, _ := strings.Cut(b.Name, "/")
			return strings.Compare(x, y)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return list
}

func subresource(s *resource.Served, sub *resource.Subresource) metav1.APIResource {
	d := s.Definition
	r := metav1.APIResource{Name: d.Resource + "/" + sub.Name, Namespaced: d.Namespaced, Kind: d.Kind, Verbs: sub.ServedVerbs()}
	if sub.Kind.Kind != "" {
		r.Kind = sub.Kind.Kind
		if sub.Kind.GroupVersion() != s.GroupVersion {
			r.Group, r.Version = sub.Kind.Group, sub.Kind.Version
		}
	}
	return r
}

// storageVersionHash changes when the storage version changes.
func storageVersionHash(d *resource.Definition) string {
	gv, err := schema.ParseGroupVersion(d.StorageAPIVersion())
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(gv.Group + "/" + gv.Version + "/" + d.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// aggregated returns the aggregated discovery of /api or /apis.
func aggregated(v view, root string) *apidiscovery.APIGroupDiscoveryList {
	list := &apidiscovery.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"},
		Items:    []apidiscovery.APIGroupDiscovery{},
	}
	for _, g := range v.groups() {
		if (root == "api") != (g.Name == "") {
			continue
		}
		group := apidiscovery.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, version := range g.Versions {
			if content := v.content(g.Name, version); content != nil {
				group.Versions = append(group.Versions, *content)
			}
		}
		if len(group.Versions) > 0 {
			list.Items = append(list.Items, group)
		}
	}
	return list
}

// isCustom reports whether a version has custom resources.
func isCustom(v *resource.ServedVersion) bool {
	return len(v.Resources) > 0 && v.Resources[0].Unstructured
}

// nestSubresources puts subresources into their resources.
func nestSubresources(flat []metav1.APIResource) []apidiscovery.APIResourceDiscovery {
	var list []apidiscovery.APIResourceDiscovery
	for _, r := range flat {
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		if _, sub, ok := strings.Cut(r.Name, "/"); ok {
			parent := &list[len(list)-1]
			parent.Subresources = append(parent.Subresources, apidiscovery.APISubresourceDiscovery{
				Subresource: sub, ResponseKind: kind, Verbs: r.Verbs,
			})
			continue
		}
		scope := apidiscovery.ScopeCluster
		if r.Namespaced {
			scope = apidiscovery.ScopeNamespace
		}
		list = append(list, apidiscovery.APIResourceDiscovery{
			Resource: r.Name, ResponseKind: kind, Scope: scope, SingularResource: r.SingularName,
			Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories,
		})
	}
	return list
}

// onlyCustom reports whether a version has nothing but custom resources.
func onlyCustom(v *resource.ServedVersion) bool {
	return !slices.ContainsFunc(v.Resources, func(s *resource.Served) bool { return !s.Unstructured })
}
