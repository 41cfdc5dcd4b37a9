package openapi

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/resource"
)

// path is a path of a document with its operations. Documents of both versions are
// written from it.
type path struct {
	path       string
	operations []operation
	// common are the parameters that every operation has.
	common []parameter
}

type operation struct {
	method      string // lower case
	id          string
	tag         string
	description string
	parameters  []parameter
	consumes    []string
	produces    []string
	body        string // name of a definition, "" if there is none
	bodyNeeded  bool
	responses   []response
	// action and kind are there for resources.
	action string
	kind   schema.GroupVersionKind
}

type response struct {
	code int
	// definition of the body, "" for a string.
	definition string
}

// methods is the order of operations in a path.
var methods = []string{"get", "put", "post", "delete", "options", "head", "patch"}

const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaCBOR     = "application/cbor"
	anyMedia      = "*/*"
)

// mediaTypes are the media types that documents name for built-in kinds and discovery.
type mediaTypes struct {
	objects []string // of requests and responses
	lists   []string // of responses that may be watches
	patches []string // of the bodies of patches
}

func newMediaTypes(cbor bool) mediaTypes {
	m := mediaTypes{
		objects: []string{mediaJSON, mediaYAML, mediaProtobuf},
		patches: []string{
			string(types.JSONPatchType), string(types.MergePatchType),
			string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType),
		},
	}
	streams := []string{mediaJSON + ";stream=watch", mediaProtobuf + ";stream=watch"}
	if cbor {
		m.objects = append(m.objects, mediaCBOR)
		m.patches = append(m.patches, string(types.ApplyCBORPatchType))
		streams = append(streams, mediaCBOR+"-seq")
	}
	m.lists = slices.Concat(m.objects, streams)
	return m
}

// The media types that documents name for custom resources, as in kube-apiserver also if
// the server speaks CBOR.
var (
	customMediaTypes      = []string{mediaJSON, mediaYAML}
	customPatchMediaTypes = []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
)

const metaPrefix = "io.k8s.apimachinery.pkg.apis.meta.v1."

// Route is a path that is no resource's.
type Route struct {
	// Path without a slash at its end: /version.
	Path        string
	Operation   string
	Description string
	// Tag defaults to the first part of the path.
	Tag      string
	Consumes []string
	Produces []string
	// Definition of the answer, "" for a string.
	Definition string
}

func (r Route) paths() []path {
	tag := r.Tag
	if tag == "" {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.Path, "/"), "/")
		tag = identifier(first, false)
	}
	return []path{{path: r.Path + "/", operations: []operation{{
		method: "get", id: r.Operation, tag: tag, description: r.Description,
		consumes: r.Consumes, produces: r.Produces,
		responses: []response{{http.StatusOK, r.Definition}},
	}}}}
}

// discoveryRoute is a route of discovery: it speaks what resources speak.
func discoveryRoute(media []string, at, operation, tag, description, kind string) Route {
	return Route{Path: at, Operation: operation, Tag: tag, Description: description,
		Consumes: media, Produces: media, Definition: metaPrefix + kind}
}

// endpoint is a resource or one of its subresources, on its way to paths.
type endpoint struct {
	group, version string
	at             string // /apis/apps/v1
	namespaced     bool
	resource       string
	subresource    string
	parent         string // kind of the resource
	kind           schema.GroupVersionKind
	object, list   string // definitions
	verbs          []string
	answersDeleted bool
	// custom resources are described with less detail, as in kube-apiserver.
	custom  bool
	options *parameters
	// only is the path that is wanted, "" for all.
	only string
}

// paths returns what a resource adds to the document of its group version: the
// path that is wanted, or all with "".
func (o *parameters) paths(s *resource.Served, only string) []path {
	d, gv := s.Definition, s.GroupVersion
	e := endpoint{
		group: gv.Group, version: gv.Version, at: root(gv), namespaced: d.Namespaced,
		resource: d.Resource, parent: d.Kind, kind: s.GroupVersionKind(),
		object: objectName(s), list: listName(s), verbs: d.Verbs,
		// If a deletion begins with an update, and the object may stay, documents
		// promise only a Status.
		answersDeleted: (d.Strategy.ReturnDeleted || s.Version.ReturnDeleted) && d.Strategy.BeforeDelete == nil, options: o,
		custom: s.Unstructured, only: only,
	}
	paths := e.paths()
	for sub := range s.Subresources() {
		e := e
		e.subresource = sub.Name
		e.verbs = sub.ServedVerbs()
		if sub.Connect != nil {
			if sub.Kind.Kind != "" {
				e.kind = sub.Kind
			}
			paths = append(paths, e.connections(sub.Connect)...)
			continue
		}
		if sub.Kind.Kind != "" {
			e.object = definitionName(sub.New(), sub.Kind)
			if !e.custom {
				e.kind = sub.Kind
			}
		}
		paths = append(paths, e.paths()...)
	}
	return paths
}

func root(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func (e *endpoint) has(verb string) bool { return slices.Contains(e.verbs, verb) }

func (e *endpoint) paths() []path {
	collection, watch := e.at+"/", e.at+"/watch/"
	var scope []parameter
	namespaced := ""
	if e.namespaced {
		collection += "namespaces/{namespace}/"
		watch += "namespaces/{namespace}/"
		namespaced = "Namespaced"
		scope = append(scope, e.options.namespace)
	}
	collection += e.resource
	watch += e.resource
	named := append(slices.Clone(scope), pathParameter("name", "name of the "+e.kind.Kind))
	item := collection + "/{name}"

	var paths []path
	add := func(at string, operations func() []operation) {
		if e.only != "" && e.only != at {
			return
		}
		found := slices.DeleteFunc(operations(), func(op operation) bool { return op.method == "" })
		if len(found) > 0 {
			paths = append(paths, shareParameters(path{path: at, operations: found}))
		}
	}
	if e.subresource != "" {
		add(item+"/"+e.subresource, func() []operation {
			return []operation{e.read(namespaced, named), e.replace(namespaced, named), e.create(namespaced, named),
				e.remove(namespaced, named), e.patch(namespaced, named)}
		})
		return paths
	}
	add(collection, func() []operation {
		return []operation{e.listOperation(namespaced, "", scope), e.create(namespaced, scope), e.removeAll(namespaced, scope)}
	})
	add(item, func() []operation {
		return []operation{e.read(namespaced, named), e.replace(namespaced, named), e.remove(namespaced, named), e.patch(namespaced, named)}
	})
	if e.namespaced {
		add(e.at+"/"+e.resource, func() []operation { return []operation{e.listOperation("", "ForAllNamespaces", nil)} })
	}
	if e.has("watch") && !e.custom {
		if e.has("list") {
			add(watch, func() []operation { return []operation{e.watchList(namespaced, "", scope)} })
			if e.namespaced {
				add(e.at+"/watch/"+e.resource, func() []operation { return []operation{e.watchList("", "ForAllNamespaces", nil)} })
			}
		}
		add(watch+"/{name}", func() []operation { return []operation{e.watch(namespaced, named)} })
	}
	return paths
}

// operation returns an operation with everything that does not depend on the
// verb. rest is the name of the operation after its verb.
func (e *endpoint) operation(method, action, verb, rest, description string, scope []parameter, options []parameter) operation {
	group, tag := groupIdentifiers(e.group)
	parameters := slices.Concat(scope, []parameter{e.options.pretty}, options)
	slices.SortFunc(parameters, func(a, b parameter) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.in, b.in))
	})
	consumes, produces := []string{anyMedia}, e.options.media.objects
	if e.custom {
		consumes, produces = customMediaTypes, customMediaTypes
	}
	return operation{
		method: method, action: action, kind: e.kind,
		id:          verb + group + identifier(e.version, true) + identifier(rest, true),
		tag:         tag + "_" + identifier(e.version, false),
		description: description, parameters: parameters,
		consumes: consumes, produces: produces,
	}
}

// name is how operations call what they work on.
func (e *endpoint) name(namespaced string) string {
	return namespaced + e.parent + title(e.subresource)
}

// phrase returns a description for a resource, or for a subresource.
func (e *endpoint) phrase(resource, subresource string) string {
	if e.subresource == "" {
		return resource + e.parent
	}
	return subresource + e.parent
}

func (e *endpoint) answers(codes ...int) []response {
	responses := make([]response, len(codes))
	for i, code := range codes {
		responses[i] = response{code, e.object}
	}
	return responses
}

func (e *endpoint) read(namespaced string, scope []parameter) operation {
	if !e.has("get") {
		return operation{}
	}
	var options []parameter
	if e.custom {
		options = e.options.get
	}
	op := e.operation("get", "get", "read", e.name(namespaced),
		e.phrase("read the specified ", "read "+e.subresource+" of the specified "), scope, options)
	op.responses = e.answers(http.StatusOK)
	return op
}

func (e *endpoint) listOperation(namespaced, suffix string, scope []parameter) operation {
	if !e.has("list") {
		return operation{}
	}
	what := "list objects of kind "
	if e.has("watch") && !e.custom {
		what = "list or watch objects of kind "
	}
	op := e.operation("get", "list", "list", e.name(namespaced)+suffix, what+e.parent, scope, e.options.list)
	if !e.custom {
		op.produces = e.options.media.lists
	}
	op.responses = []response{{http.StatusOK, e.list}}
	return op
}

func (e *endpoint) create(namespaced string, scope []parameter) operation {
	if !e.has("create") {
		return operation{}
	}
	a := article(e.parent)
	op := e.operation("post", "post", "create", e.name(namespaced),
		e.phrase("create"+a, "create "+e.subresource+" of"+a), scope, e.options.create)
	op.body, op.bodyNeeded = e.object, true
	op.responses = e.answers(http.StatusOK, http.StatusCreated, http.StatusAccepted)
	return op
}

func (e *endpoint) replace(namespaced string, scope []parameter) operation {
	if !e.has("update") {
		return operation{}
	}
	op := e.operation("put", "put", "replace", e.name(namespaced),
		e.phrase("replace the specified ", "replace "+e.subresource+" of the specified "), scope, e.options.update)
	op.body, op.bodyNeeded = e.object, true
	op.responses = e.answers(http.StatusOK, http.StatusCreated)
	return op
}

func (e *endpoint) patch(namespaced string, scope []parameter) operation {
	if !e.has("patch") {
		return operation{}
	}
	op := e.operation("patch", "patch", "patch", e.name(namespaced),
		e.phrase("partially update the specified ", "partially update "+e.subresource+" of the specified "), scope, e.options.patch)
	op.consumes = e.options.media.patches
	op.body, op.bodyNeeded = metaPrefix+"Patch", true
	op.responses = e.answers(http.StatusOK, http.StatusCreated)
	if e.custom {
		op.consumes, op.responses = customPatchMediaTypes, e.answers(http.StatusOK)
	}
	return op
}

func (e *endpoint) remove(namespaced string, scope []parameter) operation {
	if !e.has("delete") {
		return operation{}
	}
	a := article(e.parent)
	op := e.operation("delete", "delete", "delete", e.name(namespaced),
		e.phrase("delete"+a, "delete "+e.subresource+" of"+a), scope, e.options.delete)
	op.body = metaPrefix + "DeleteOptions"
	op.responses = []response{{http.StatusOK, metaPrefix + "Status"}, {http.StatusAccepted, metaPrefix + "Status"}}
	if e.answersDeleted {
		op.responses = e.answers(http.StatusOK, http.StatusAccepted)
	}
	return op
}

func (e *endpoint) removeAll(namespaced string, scope []parameter) operation {
	if !e.has("deletecollection") {
		return operation{}
	}
	options := e.options.deleteCollection
	if e.custom {
		options = e.options.list
	}
	op := e.operation("delete", "deletecollection", "delete", "collection"+e.name(namespaced),
		"delete collection of "+e.parent, scope, options)
	if !e.custom {
		op.body = metaPrefix + "DeleteOptions"
	}
	op.responses = []response{{http.StatusOK, metaPrefix + "Status"}}
	return op
}

func (e *endpoint) watch(namespaced string, scope []parameter) operation {
	op := e.operation("get", "watch", "watch", e.name(namespaced),
		"watch changes to an object of kind "+e.parent+". deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter.",
		scope, e.options.list)
	op.produces = e.options.media.lists
	op.responses = []response{{http.StatusOK, metaPrefix + "WatchEvent"}}
	return op
}

func (e *endpoint) watchList(namespaced, suffix string, scope []parameter) operation {
	op := e.operation("get", "watchlist", "watch", e.name(namespaced)+"List"+suffix,
		"watch individual changes to a list of "+e.parent+". deprecated: use the 'watch' parameter with a list operation instead.",
		scope, e.options.list)
	op.produces = e.options.media.lists
	op.responses = []response{{http.StatusOK, metaPrefix + "WatchEvent"}}
	return op
}

// shareParameters moves the parameters that all operations of a path have to
// the path.
func shareParameters(p path) path {
	p.common = slices.Clone(p.operations[0].parameters)
	for _, op := range p.operations[1:] {
		p.common = slices.DeleteFunc(p.common, func(c parameter) bool { return !slices.Contains(op.parameters, c) })
	}
	for i := range p.operations {
		op := &p.operations[i]
		op.parameters = slices.DeleteFunc(slices.Clone(op.parameters), func(x parameter) bool { return slices.Contains(p.common, x) })
	}
	slices.SortFunc(p.operations, func(a, b operation) int {
		return cmp.Compare(slices.Index(methods, a.method), slices.Index(methods, b.method))
	})
	return p
}

// groupIdentifiers returns how a group is called in the ids and in the tags of
// operations.
func groupIdentifiers(group string) (id, tag string) {
	if group == "" {
		group = "core"
	}
	group = strings.TrimSuffix(group, ".k8s.io")
	return identifier(group, true), identifier(group, false)
}

// identifier makes a camel-case identifier of a name.
func identifier(s string, upper bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)):
			upper = true
		case upper:
			b.WriteRune(unicode.ToUpper(r))
			upper = false
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func title(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:])
}

// article returns the article of a noun between spaces.
func article(noun string) string {
	switch {
	case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"):
		return " "
	case strings.ContainsAny(noun[:1], "aeiouAEIOU"):
		return " an "
	default:
		return " a "
	}
}
