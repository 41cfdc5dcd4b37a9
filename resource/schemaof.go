package resource

import (
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const componentRef = "#/components/schemas/"

// SchemaOf returns the OpenAPI schema of a Go struct by its JSON encoding. Properties
// have the names of the json tags, are required unless the tag has omitempty or
// omitzero or the field is a pointer, and are described by the doc tag. The
// patchStrategy and patchMergeKey tags set x-kubernetes-list-type; without them a list
// is atomic. Types of the Kubernetes API become references.
//
//	Ports []Port `json:"ports,omitempty" patchStrategy:"merge" patchMergeKey:"name" doc:"Where it listens."`
func SchemaOf[T any]() *spec.Schema {
	t := reflect.TypeFor[T]()
	s := schemaOfStruct(t, map[reflect.Type]bool{t: true})
	described := metav1.TypeMeta{}.SwaggerDoc()
	for _, name := range []string{"apiVersion", "kind"} {
		if p, ok := s.Properties[name]; ok {
			p.Description = described[name]
			s.Properties[name] = p
		}
	}
	return s
}

// schemaOfType returns the schema of a Go type. open holds the structs that are being
// expanded; a struct that contains itself becomes an object with unknown fields.
func schemaOfType(t reflect.Type, open map[reflect.Type]bool) *spec.Schema {
	if t.Kind() == reflect.Pointer {
		return schemaOfType(t.Elem(), open)
	}
	if named, ok := reflect.New(t).Interface().(util.OpenAPIModelNamer); ok {
		return spec.RefSchema(componentRef + named.OpenAPIModelName())
	}
	simple := func(kind, format string) *spec.Schema {
		return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{kind}, Format: format}}
	}
	switch t.Kind() {
	case reflect.String:
		return simple("string", "")
	case reflect.Bool:
		return simple("boolean", "")
	case reflect.Int, reflect.Int64, reflect.Uint32, reflect.Uint, reflect.Uint64:
		return simple("integer", "int64")
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Uint8, reflect.Uint16:
		return simple("integer", "int32")
	case reflect.Float32, reflect.Float64:
		return simple("number", "double")
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return simple("string", "byte")
		}
		s := simple("array", "")
		s.Items = &spec.SchemaOrArray{Schema: schemaOfType(t.Elem(), open)}
		return s
	case reflect.Map:
		s := simple("object", "")
		s.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: schemaOfType(t.Elem(), open)}
		return s
	case reflect.Struct:
		if !open[t] {
			open[t] = true
			defer delete(open, t)
			return schemaOfStruct(t, open)
		}
	}
	s := simple("object", "")
	s.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return s
}

func schemaOfStruct(t reflect.Type, open map[reflect.Type]bool) *spec.Schema {
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{}}}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == "-" || !f.IsExported():
			continue
		case f.Anonymous && tag == "": // embedded: its fields are inlined
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				within := schemaOfStruct(inner, open)
				for name, p := range within.Properties {
					s.Properties[name] = p
				}
				s.Required = append(s.Required, within.Required...)
			}
			continue
		case tag == "":
			tag = f.Name
		}
		s.Properties[tag] = *schemaOfField(f, open)
		given := strings.Split(options, ",")
		if !slices.Contains(given, "omitempty") && !slices.Contains(given, "omitzero") && f.Type.Kind() != reflect.Pointer {
			s.Required = append(s.Required, tag)
		}
	}
	return s
}

func schemaOfField(f reflect.StructField, open map[reflect.Type]bool) *spec.Schema {
	p := schemaOfType(f.Type, open)
	if p.Ref.String() != "" { // a $ref allows no description beside it, so it is wrapped in allOf
		p = &spec.Schema{SchemaProps: spec.SchemaProps{AllOf: []spec.Schema{*p}, Default: map[string]any{}}}
		if f.Type.Kind() == reflect.Pointer {
			p.Default = nil
		}
	}
	p.Description = f.Tag.Get("doc")
	if p.Type.Contains("array") {
		switch key := f.Tag.Get("patchMergeKey"); {
		case !strings.Contains(f.Tag.Get("patchStrategy"), "merge"):
			p.AddExtension("x-kubernetes-list-type", "atomic")
		case key == "":
			p.AddExtension("x-kubernetes-list-type", "set")
		default:
			p.AddExtension("x-kubernetes-list-type", "map")
			p.AddExtension("x-kubernetes-list-map-keys", []any{key})
		}
	}
	return p
}
