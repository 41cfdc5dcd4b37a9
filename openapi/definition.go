package openapi

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/openapi/internal/pack"
	"github.com/apikeel/kelson/resource"
)

//go:generate go run ./internal/generate -dir internal/generate -out data k8s.io/api/... k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/kube-aggregator/pkg/apis/apiregistration/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version

// packs are the generated definitions, a file a Go package.
//
//go:embed data/*.pack
var packs embed.FS

const (
	gvkExtension     = "x-kubernetes-group-version-kind"
	selectableFields = "x-kubernetes-selectable-fields"
)

// definitionName returns the name of the definition of an object: the one that
// its type was given, the one of its Go package, or that of its kind if it has
// no type.
func definitionName(obj any, kind schema.GroupVersionKind) string {
	if named, ok := obj.(util.OpenAPIModelNamer); ok {
		return named.OpenAPIModelName()
	}
	if _, ok := obj.(runtime.Unstructured); ok {
		parts := strings.Split(kind.Group, ".")
		slices.Reverse(parts)
		return strings.Join(parts, ".") + "." + kind.Version + "." + kind.Kind
	}
	return util.ToRESTFriendlyName(util.GetCanonicalTypeName(obj))
}

func objectName(s *resource.Served) string {
	return definitionName(s.Version.New(), s.GroupVersionKind())
}

func listName(s *resource.Served) string {
	if s.Version.NewList == nil || !slices.Contains(s.Definition.Verbs, "list") {
		return ""
	}
	return definitionName(s.Version.NewList(), s.GroupVersion.WithKind(s.Definition.ListKind))
}

// library finds definitions. It reads packs when they are first needed and
// lives for as long as documents are being built: what is read is much larger
// than the documents made of it, once compressed.
type library struct {
	read  map[string]bool
	found map[string]*pack.Definition
	// own are the sources of the definitions that packs do not have, made those
	// whose definitions have been made.
	own  map[string]*source
	made map[*source]bool
	// two tells that definitions are made for version 2, not for version 3.
	two bool
	// buf is where pieces are compressed.
	buf bytes.Buffer
}

func newLibrary() *library {
	return &library{read: map[string]bool{}, found: map[string]*pack.Definition{}, made: map[*source]bool{}}
}

// newLibrary2 is newLibrary for documents of version 2.
func newLibrary2() *library {
	l := newLibrary()
	l.two = true
	return l
}

// get returns a definition, nil if there is none of the name.
func (l *library) get(name string) (*pack.Definition, error) {
	if d := l.found[name]; d != nil {
		return d, nil
	}
	if file := pack.Of(name); !l.read[file] {
		l.read[file] = true
		if err := l.readPack(file); err != nil {
			return nil, err
		}
	}
	if s := l.own[name]; s != nil && l.found[name] == nil && !l.made[s] {
		l.made[s] = true
		if err := l.add(s.served); err != nil {
			return nil, err
		}
	}
	return l.found[name], nil
}

func (l *library) readPack(file string) error {
	packed, err := packs.ReadFile("data/" + file + ".pack")
	if err != nil {
		return nil // not one of the generated packages
	}
	definitions, err := pack.Read(packed)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for i := range definitions {
		l.found[definitions[i].Name] = &definitions[i]
	}
	return nil
}

// add makes the definitions of a resource for whose types none were generated.
func (l *library) add(s *resource.Served) error {
	name, list := objectName(s), listName(s)
	if d, err := l.get(name); d != nil || err != nil {
		return err
	}
	own := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	own.AddExtension(preserveUnknown, true)
	if s.Version.Schema != nil {
		own = *s.Version.Schema()
		own.Extensions = maps.Clone(own.Extensions)
	}
	if err := l.put(name, &own, s.GroupVersionKind()); err != nil || list == "" {
		return err
	}
	if d, err := l.get(list); d != nil || err != nil {
		return err
	}
	of := listSchema(s.Definition.Kind, name)
	if s.Unstructured {
		of.Description = s.Definition.ListKind + " is a list of " + s.Definition.Kind
		items := of.Properties["items"]
		items.Description = "List of " + s.Definition.Resource + ". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
		of.Properties["items"] = items
	}
	if fields, ok := own.Extensions[selectableFields]; ok {
		of.AddExtension(selectableFields, fields)
	}
	return l.put(list, of, s.GroupVersion.WithKind(s.Definition.ListKind))
}

// put makes a definition in the version that the library is for.
func (l *library) put(name string, s *spec.Schema, kind schema.GroupVersionKind) (err error) {
	s.AddExtension(gvkExtension, []any{map[string]any{"group": kind.Group, "version": kind.Version, "kind": kind.Kind}})
	d := &pack.Definition{Name: name}
	if l.two {
		two := swagger(s)
		if s.Extensions[preserveUnknown] == true {
			// Clients would refuse everything that is not said of an object, so
			// nothing is.
			two = &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
			two.AddExtension(gvkExtension, s.Extensions[gvkExtension])
		}
		d.V2, err = two.MarshalJSON()
	} else {
		var raw []byte
		raw, err = s.MarshalJSON()
		var escaped bytes.Buffer
		json.HTMLEscape(&escaped, raw)
		d.V3 = escaped.Bytes()
	}
	if err != nil {
		return fmt.Errorf("schema of %s: %w", kind, err)
	}
	for _, m := range reference.FindAllSubmatch(slices.Concat(d.V2, d.V3), -1) {
		d.Refs = append(d.Refs, string(m[1]))
	}
	l.found[name] = d
	return nil
}

var reference = regexp.MustCompile(`"\$ref":"#/(?:components/schemas|definitions)/([^"]+)"`)

// unknown is the definition of a type that nothing is known of: an object of
// any content. A kind without a schema must not cost the others theirs.
func unknown(name string) *pack.Definition {
	return &pack.Definition{Name: name,
		V3: []byte(`{"type":"object","` + preserveUnknown + `":true}`), V2: []byte(`{"` + preserveUnknown + `":true}`)}
}

// listSchema is the schema of a list of objects.
func listSchema(kind, object string) *spec.Schema {
	ref := func(name string) spec.Schema {
		return *spec.RefSchema("#/components/schemas/" + name)
	}
	text := func(description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}, Description: description}}
	}
	items := ref(object)
	described := func(s spec.Schema, description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{AllOf: []spec.Schema{s}, Description: description}}
	}
	return &spec.Schema{SchemaProps: spec.SchemaProps{
		Description: kind + "List is a list of " + kind,
		Type:        spec.StringOrArray{"object"},
		Required:    []string{"items"},
		Properties: map[string]spec.Schema{
			"apiVersion": text("APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"),
			"kind":       text("Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
			"metadata":   described(ref(metaPrefix+"ListMeta"), "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"),
			"items": {SchemaProps: spec.SchemaProps{
				Description: "List of " + strings.ToLower(kind) + "s",
				Type:        spec.StringOrArray{"array"},
				Items:       &spec.SchemaOrArray{Schema: &items},
			}},
		},
	}}
}
