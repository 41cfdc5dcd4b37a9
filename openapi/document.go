package openapi

import (
	"cmp"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/resource"
)

// part is what a document of version 3 is made from. The document of version 2
// is made from all parts.
type part struct {
	// name of the document below /openapi/v3: apis/apps/v1.
	name string
	// group and version of resources; nil for a part that has but a route.
	group   *resource.ServedGroup
	version *resource.ServedVersion
	route   *Route
}

// parts returns the parts of a catalog.
func parts(catalog *resource.Catalog, routes []Route) []part {
	var parts []part
	route := func(name string, r Route) { parts = append(parts, part{name: name, route: &r}) }
	for _, r := range routes {
		route(r.Path[1:], r)
	}
	if _, ok := catalog.Group(""); ok {
		route("api", discoveryRoute("/api", "getCoreAPIVersions", "core", "get available API versions", "APIVersions"))
	}
	route("apis", discoveryRoute("/apis", "getAPIVersions", "apis", "get available API versions", "APIGroupList"))
	for _, g := range catalog.Groups() {
		name := "api"
		if g.Name != "" {
			name = "apis/" + g.Name
			id, tag := groupIdentifiers(g.Name)
			route(name, discoveryRoute("/"+name, "get"+id+"APIGroup", tag, "get information of a group", "APIGroup"))
		}
		for i := range g.Versions {
			parts = append(parts, part{name: name + "/" + g.Versions[i].Name, group: g, version: &g.Versions[i]})
		}
	}
	return parts
}

// paths returns the paths of a part, sorted, and adds to the library what it
// has definitions of its own for.
func (p *part) paths(options *parameters, l *library) ([]path, error) {
	if p.route != nil {
		return p.route.paths(), nil
	}
	id, tag := groupIdentifiers(p.group.Name)
	v := p.version.Name
	paths := discoveryRoute("/"+p.name, "get"+id+identifier(v, true)+"APIResources", tag+"_"+identifier(v, false),
		"get available resources", "APIResourceList").paths()
	for _, s := range p.version.Resources {
		if err := l.add(s); err != nil {
			return nil, err
		}
		paths = append(paths, options.paths(s)...)
	}
	sortPaths(paths)
	return paths, nil
}

// scoped completes the definitions of the kinds that every group has: a
// document says that they are of its own group and version, and of v1.
func (p *part) scoped(definitions []*pack.Definition) []*pack.Definition {
	if p.group == nil {
		return definitions
	}
	own := schema.GroupVersion{Group: p.group.Name, Version: p.version.Name}
	for i, d := range definitions {
		if !pack.Everywhere(d.Name) {
			continue
		}
		kind := d.Name[len(metaPrefix):]
		b := append(slices.Clone(d.V3[:len(d.V3)-1]), `,"`+gvkExtension+`":[`...)
		b = appendKind(b, metav1.Unversioned.WithKind(kind))
		if own != metav1.Unversioned {
			b = appendKind(append(b, ','), own.WithKind(kind))
		}
		definitions[i] = &pack.Definition{Name: d.Name, Refs: d.Refs, V3: append(b, "]}"...)}
	}
	return definitions
}

func sortPaths(paths []path) {
	slices.SortFunc(paths, func(a, b path) int { return cmp.Compare(a.path, b.path) })
}

func (h *Handler) info() []byte {
	b := append(appendText([]byte(`{"title":`), h.config.Title), `,"version":`...)
	return append(appendText(b, h.config.Version), '}')
}

// document3 returns a document of version 3 in JSON.
func (h *Handler) document3(paths []path, definitions []*pack.Definition) []byte {
	size := 1024
	for _, d := range definitions {
		size += len(d.Name) + len(d.V3) + 8
	}
	b := make([]byte, 0, size+len(paths)*12<<10)
	b = append(append(b, `{"openapi":"3.0.0","info":`...), h.info()...)
	b = h.appendPaths3(append(b, `,"paths":`...), paths)
	b = append(b, `,"components":{"schemas":{`...)
	for i, d := range definitions {
		b = append(appendText(separator(b, i), d.Name), ':')
		b = append(b, d.V3...)
	}
	return append(b, `},"securitySchemes":{"BearerToken":`+security3+`}}}`...)
}

func (h *Handler) appendPaths3(b []byte, paths []path) []byte {
	w := writer3{parameters: map[parameter][]byte{}}
	b = append(b, '{')
	for i, p := range paths {
		b = w.appendPath(separator(b, i), p)
	}
	return append(b, '}')
}

// document2 returns the document of version 2 in JSON.
func (h *Handler) document2(paths []path, definitions []*pack.Definition) []byte {
	size := 64 << 10
	for _, d := range definitions {
		size += len(d.Name) + len(d.V2) + 8
	}
	b := make([]byte, 0, size+len(paths)*5<<10)
	b = append(append(b, `{"swagger":"2.0","info":`...), h.info()...)
	b = append(b, `,"paths":`...)
	b, shared := h.appendPaths2(b, paths)
	b = append(b, `,"definitions":{`...)
	for i, d := range definitions {
		b = append(appendPlain(separator(b, i), d.Name), ':')
		b = append(b, d.V2...)
	}
	b = append(b, `},"parameters":`...)
	b = append(b, shared...)
	return append(b, `,"securityDefinitions":{"BearerToken":`+security2+`},"security":[{"BearerToken":[]}]}`...)
}

func (h *Handler) appendPaths2(b []byte, paths []path) (with, shared []byte) {
	w := writer2{parameters: map[parameter][]byte{}, shared: map[string][]byte{}}
	b = append(b, '{')
	for i, p := range paths {
		b = w.appendPath(separator(b, i), p)
	}
	b = append(b, '}')
	shared = append(shared, '{')
	for i, name := range slices.Sorted(maps.Keys(w.shared)) {
		shared = append(appendPlain(separator(shared, i), name), ':')
		shared = append(shared, w.shared[name]...)
	}
	return b, append(shared, '}')
}

// How clients authenticate, in the words of the two versions.
const (
	security3 = `{"type":"apiKey","description":"Bearer Token authentication","name":"authorization","in":"header"}`
	security2 = `{"description":"Bearer Token authentication","type":"apiKey","name":"authorization","in":"header"}`
)
