package openapi

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/resource"
)

// part is the input of one OpenAPI v3 document. The v2 document is built from all
// parts.
type part struct {
	// name of the document below /openapi/v3: apis/apps/v1.
	name string
	// group and version of resources; nil for a part that has but a route.
	group   *resource.ServedGroup
	version *resource.ServedVersion
	route   *Route
}

// parts returns the parts of a catalog.
func parts(catalog *resource.Catalog, media []string, routes []Route) []part {
	var parts []part
	route := func(name string, r Route) { parts = append(parts, part{name: name, route: &r}) }
	for _, r := range routes {
		route(r.Path[1:], r)
	}
	if _, ok := catalog.Group(""); ok {
		route("api", discoveryRoute(media, "/api", "getCoreAPIVersions", "core", "get available API versions", "APIVersions"))
	}
	route("apis", discoveryRoute(media, "/apis", "getAPIVersions", "apis", "get available API versions", "APIGroupList"))
	for _, g := range catalog.Groups() {
		name := "api"
		if g.Name != "" {
			name = "apis/" + g.Name
		}
		if g.Name != "" && slices.ContainsFunc(g.Versions, func(v resource.ServedVersion) bool { return !onlyCustom(&v) }) {
			id, tag := groupIdentifiers(g.Name)
			route(name, discoveryRoute(media, "/"+name, "get"+id+"APIGroup", tag, "get information of a group", "APIGroup"))
		}
		for i := range g.Versions {
			parts = append(parts, part{name: name + "/" + g.Versions[i].Name, group: g, version: &g.Versions[i]})
		}
	}
	return parts
}

// discovery returns the route of a part: the one that it is, or that of its
// list of resources, which the documents of custom resources leave out.
func (p *part) discovery(media []string) *Route {
	if p.route != nil || p.custom() {
		return p.route
	}
	id, tag := groupIdentifiers(p.group.Name)
	v := p.version.Name
	r := discoveryRoute(media, "/"+p.name, "get"+id+identifier(v, true)+"APIResources", tag+"_"+identifier(v, false),
		"get available resources", "APIResourceList")
	return &r
}

// custom reports whether a part has nothing but custom resources.
func (p *part) custom() bool { return p.version != nil && onlyCustom(p.version) }

// kind is what definitions depend on besides their sources.
func (p *part) kind() string {
	if p.custom() {
		return "custom "
	}
	return ""
}

func onlyCustom(v *resource.ServedVersion) bool {
	return !slices.ContainsFunc(v.Resources, func(s *resource.Served) bool { return !s.Unstructured })
}

// same reports whether two parts describe the same.
func (p *part) same(other *part) bool {
	if p.version == nil || other.version == nil {
		return p.version == other.version
	}
	return slices.Equal(p.version.Resources, other.version.Resources)
}

// scope is the group and the version that a document is about.
type scope struct {
	schema.GroupVersion
	custom, none bool
}

func (p *part) scope() scope {
	if p.group == nil {
		return scope{none: true}
	}
	return scope{GroupVersion: schema.GroupVersion{Group: p.group.Name, Version: p.version.Name}, custom: p.custom()}
}

// complete completes the definition of a kind that every group has: a document
// says that it is of its own group and version, and of v1. In the documents of
// custom resources it is of every group that clients are made for.
func (s scope) complete(name string, text []byte, l *library) ([]byte, error) {
	if s.none || !pack.Everywhere(name) {
		return text, nil
	}
	kind := name[len(metaPrefix):]
	b := append(slices.Clone(text[:len(text)-1]), `,"`+gvkExtension+`":[`...)
	if s.custom {
		kinds, err := l.clientKinds(name)
		if err != nil {
			return nil, err
		}
		b = append(b, kinds...)
	} else {
		b = appendKind(b, metav1.Unversioned.WithKind(kind))
		if s.GroupVersion != metav1.Unversioned {
			b = appendKind(append(b, ','), s.WithKind(kind))
		}
	}
	return append(b, "]}"...), nil
}

// clientKinds returns the kinds that a definition of version 2 has, but for those of
// the groups that client-go has no clients for.
func (l *library) clientKinds(name string) (out []byte, err error) {
	if out, ok := l.kinds[name]; ok {
		return out, nil
	}
	var known struct {
		Kinds []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
	}
	n, _ := l.pack.Find(name)
	text, err := l.texts.Text(n, pack.V2)
	if err == nil {
		err = json.Unmarshal(text, &known)
	}
	if err != nil {
		return nil, err
	}
	count := 0
	for _, k := range known.Kinds {
		switch k.Group {
		case "admission.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "imagepolicy.k8s.io":
		default:
			out = appendKind(separator(out, count), k)
			count++
		}
	}
	if l.kinds == nil {
		l.kinds = map[string][]byte{}
	}
	l.kinds[name] = out
	return out, nil
}

// info is what a document says of itself.
func (h *Handler) info(custom bool) []byte {
	title, version := h.config.Title, h.config.Version
	if custom {
		title, version = "Kubernetes CRD Swagger", "v0.1.0"
	}
	b := append(appendText([]byte(`{"title":`), title), `,"version":`...)
	return append(appendText(b, version), '}')
}

// How clients authenticate, in the words of the two versions.
const (
	security3 = `{"type":"apiKey","description":"Bearer Token authentication","name":"authorization","in":"header"}`
	security2 = `{"description":"Bearer Token authentication","type":"apiKey","name":"authorization","in":"header"}`
)
