package openapi

import (
	"bytes"
	_ "embed"
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

//go:generate go run ./internal/generate -dir internal/generate -out data/definitions.pack k8s.io/api/... k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1 k8s.io/kube-aggregator/pkg/apis/apiregistration/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version

//go:embed data/definitions.pack
var packed string

// openPack returns the generated definitions.
func openPack() *pack.Pack {
	p, err := pack.Open(packed)
	if err != nil {
		panic(err) // it is part of the program
	}
	return p
}

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

func hasList(s *resource.Served) bool {
	return s.Version.NewList != nil && slices.Contains(s.Definition.Verbs, "list")
}

func listName(s *resource.Served) string {
	if !hasList(s) {
		return ""
	}
	return definitionName(s.Version.NewList(), s.GroupVersion.WithKind(s.Definition.ListKind))
}

// library finds definitions. It decompresses those of the pack on first use, and
// generates those that the pack does not have. It lives only while documents are built:
// what it has read is much larger than what is kept.
type library struct {
	pack  *pack.Pack
	texts *pack.Reader
	// own are the sources of the definitions that the pack does not have, made those
	// that have been made.
	own  map[string]*source
	made map[string]*schemaOf
	// two: definitions are generated for OpenAPI v2, not v3.
	two bool
	// noEnums: definitions of the pack are read without the values of enumerations.
	noEnums bool
	// buf is the buffer in which pieces are compressed.
	buf bytes.Buffer
	// kinds are what clientKinds has returned.
	kinds map[string][]byte
	// paths of the sources that are read.
	paths map[*source][]path
	// paths3 and paths2 write those of the two versions.
	paths3      *writer3
	paths3Proto *protoWriter3
	paths2      *writer2
}

// schemaOf is a definition that is not in the pack.
type schemaOf struct {
	// text is JSON, in the version of the library.
	text []byte
}

func newLibrary(p *pack.Pack) *library {
	return &library{pack: p, texts: p.NewReader(), made: map[string]*schemaOf{}, paths: map[*source][]path{},
		paths3: &writer3{map[parameter][]byte{}}, paths3Proto: &protoWriter3{map[parameter][]byte{}, map[string][]byte{}}, paths2: newWriter2()}
}

// newLibrary2 is newLibrary for documents of version 2.
func newLibrary2(p *pack.Pack) *library {
	l := newLibrary(p)
	l.two = true
	return l
}

// get returns a definition in JSON, nil if there is none of the name.
func (l *library) get(name string) ([]byte, error) {
	if n, ok := l.pack.Find(name); ok {
		form := pack.V3
		if l.two {
			form = pack.V2
		}
		text, err := l.texts.Text(n, form)
		if l.noEnums && err == nil {
			text = withoutEnums(text)
		}
		return text, err
	}
	d, err := l.ownDefinition(name)
	if d == nil || err != nil {
		return nil, err
	}
	return d.text, nil
}

// Parts of definitions in JSON that tell the values of an enumeration: a list of them, and
// the end of the description. A field that is called enum has a schema, not a list.
var (
	enumText  = regexp.MustCompile(`(?:\s|\\n)*Possible enum values:(?:[^"\\]|\\.)*"`)
	noText    = regexp.MustCompile(`"description":"",|,"description":""`)
	enumLists = regexp.MustCompile(`"enum":\[[^\]]*\],|,"enum":\[[^\]]*\]`)
)

// withoutEnums returns a definition without the values of enumerations.
func withoutEnums(text []byte) []byte {
	text = enumText.ReplaceAll(text, []byte(`"`))
	return enumLists.ReplaceAll(noText.ReplaceAll(text, nil), nil)
}

// ownDefinition returns a definition that is not in the pack, nil if there is none.
func (l *library) ownDefinition(name string) (*schemaOf, error) {
	if s := l.own[name]; s != nil && l.made[name] == nil {
		if err := l.add(s.served); err != nil {
			return nil, err
		}
	}
	return l.made[name], nil
}

// has reports whether a definition exists already.
func (l *library) has(name string) bool {
	_, ok := l.pack.Find(name)
	return ok || l.made[name] != nil
}

// add generates the definitions of a resource whose types have none in the pack.
func (l *library) add(s *resource.Served) error {
	name, list := objectName(s), listName(s)
	if l.has(name) {
		return nil
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
	if l.has(list) {
		return nil
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
	d := &schemaOf{}
	if l.two {
		two := s
		if s.Extensions[preserveUnknown] == true {
			// Clients refuse fields that a schema does not mention, so the schema
			// mentions none.
			two = &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
			for _, name := range []string{gvkExtension, selectableFields} {
				if v, ok := s.Extensions[name]; ok {
					two.AddExtension(name, v)
				}
			}
		}
		d.text, err = marshalSchema2(two)
	} else {
		d.text, err = marshalSchema3(s)
	}
	if err != nil {
		return fmt.Errorf("schema of %s: %w", kind, err)
	}
	l.made[name] = d
	return nil
}

// refs returns the names of the definitions that it refers to.
func (d *schemaOf) refs() (names []string) {
	for _, m := range reference.FindAllSubmatch(d.text, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

// appendHTML appends JSON as json.Marshal would have it.
func appendHTML(b, text []byte) []byte {
	out := bytes.NewBuffer(b)
	json.HTMLEscape(out, text)
	return out.Bytes()
}

var reference = regexp.MustCompile(`"\$ref":"#/(?:components/schemas|definitions)/([^"]+)"`)

// unknown is the definition of a type without a schema: an object of any content. A
// kind without a schema must not break the document.
func (l *library) unknown() []byte {
	if l.two {
		return []byte(`{"` + preserveUnknown + `":true}`)
	}
	return []byte(`{"type":"object","` + preserveUnknown + `":true}`)
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
