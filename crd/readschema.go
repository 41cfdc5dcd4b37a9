package crd

import (
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/internal/jsonvalue"
)

// readSchema decodes a schema several times faster than spec.Schema.UnmarshalJSON. It
// falls back to UnmarshalJSON for keywords that are rare.
func readSchema(text []byte) (*spec.Schema, error) {
	if parsed, ok := jsonvalue.Parse(text); ok {
		var r schemaReader
		if s := r.schema(parsed); !r.unsupported {
			return &s, nil
		}
	}
	s := &spec.Schema{}
	return s, s.UnmarshalJSON(text)
}

// schemaReader converts parsed JSON to schemas.
type schemaReader struct {
	// unsupported is set when a keyword or value was met that schemaReader does not convert.
	unsupported bool
}

func (r *schemaReader) schema(from any) (s spec.Schema) {
	for name, value := range as[map[string]any](r, from) {
		switch name {
		case "description":
			s.Description = as[string](r, value)
		case "type":
			s.Type = spec.StringOrArray{as[string](r, value)}
		case "nullable":
			s.Nullable = as[bool](r, value)
		case "format":
			s.Format = as[string](r, value)
		case "title":
			s.Title = as[string](r, value)
		case "default":
			s.Default = r.value(value)
		case "maximum":
			s.Maximum = r.number(value)
		case "exclusiveMaximum":
			s.ExclusiveMaximum = as[bool](r, value)
		case "minimum":
			s.Minimum = r.number(value)
		case "exclusiveMinimum":
			s.ExclusiveMinimum = as[bool](r, value)
		case "maxLength":
			s.MaxLength = r.count(value)
		case "minLength":
			s.MinLength = r.count(value)
		case "pattern":
			s.Pattern = as[string](r, value)
		case "maxItems":
			s.MaxItems = r.count(value)
		case "minItems":
			s.MinItems = r.count(value)
		case "uniqueItems":
			s.UniqueItems = as[bool](r, value)
		case "multipleOf":
			s.MultipleOf = r.number(value)
		case "enum":
			s.Enum = as[[]any](r, r.value(value))
		case "maxProperties":
			s.MaxProperties = r.count(value)
		case "minProperties":
			s.MinProperties = r.count(value)
		case "required":
			s.Required = listOf(r, value, func(v any) string { return as[string](r, v) })
		case "items":
			of := r.schema(value)
			s.Items = &spec.SchemaOrArray{Schema: &of}
		case "allOf":
			s.AllOf = listOf(r, value, r.schema)
		case "oneOf":
			s.OneOf = listOf(r, value, r.schema)
		case "anyOf":
			s.AnyOf = listOf(r, value, r.schema)
		case "not":
			of := r.schema(value)
			s.Not = &of
		case "properties":
			below := as[map[string]any](r, value)
			s.Properties = make(map[string]spec.Schema, len(below))
			for name, value := range below {
				s.Properties[name] = r.schema(value)
			}
		case "additionalProperties":
			if allows, ok := value.(bool); ok {
				s.AdditionalProperties = &spec.SchemaOrBool{Allows: allows}
				continue
			}
			of := r.schema(value)
			s.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: &of}
		default:
			if !strings.HasPrefix(name, "x-") {
				r.unsupported = true
				continue
			}
			if s.Extensions == nil {
				s.Extensions = spec.Extensions{}
			}
			s.Extensions[name] = r.value(value)
		}
	}
	return s
}

// as returns a value as a T; for a value of another type it sets odd.
func as[T any](r *schemaReader, value any) T {
	v, ok := value.(T)
	r.unsupported = r.unsupported || !ok
	return v
}

func listOf[T any](r *schemaReader, value any, read func(any) T) []T {
	items := as[[]any](r, value)
	out := make([]T, len(items))
	for i, item := range items {
		out[i] = read(item)
	}
	return out
}

func (r *schemaReader) count(value any) *int64 {
	n := as[int64](r, value)
	return &n
}

func (r *schemaReader) number(value any) *float64 {
	n := as[float64](r, r.value(value))
	return &n
}

// value converts int64 to float64, as encoding/json decodes numbers.
func (r *schemaReader) value(value any) any {
	switch v := value.(type) {
	case int64:
		return float64(v)
	case []any:
		for i := range v {
			v[i] = r.value(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = r.value(v[name])
		}
	case nil, bool, string, float64:
	default:
		r.unsupported = true
	}
	return value
}
