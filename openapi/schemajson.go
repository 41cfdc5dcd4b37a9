package openapi

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/kube-openapi/pkg/validation/spec"
)

// schemaWriter writes schemas in JSON as their own MarshalJSON does, in a tenth of the
// time: that takes most of what documents about custom resources cost. What is
// seldom in a schema it leaves to MarshalJSON.
type schemaWriter struct {
	// html escapes <, > and & as json.HTMLEscape does.
	html bool
	// two writes schemas in the terms of version 2.
	two bool
	// odd is that something was not written, and MarshalJSON has to.
	odd bool
}

// marshalSchema3 and marshalSchema2 return a schema in JSON, as documents of the two
// versions have them.
func marshalSchema3(s *spec.Schema) ([]byte, error) {
	w := schemaWriter{html: true}
	return w.schema(make([]byte, 0, 4096), s)
}

func marshalSchema2(s *spec.Schema) ([]byte, error) {
	w := schemaWriter{two: true}
	return w.schema(make([]byte, 0, 4096), s)
}

// schema appends a schema. One that is odd itself is marshalled with all below it.
func (w *schemaWriter) schema(b []byte, s *spec.Schema) ([]byte, error) {
	begin, odd := len(b), w.odd
	w.odd = false
	as := s
	if w.two {
		c := swaggerOf(s)
		as = &c
	}
	b, err := w.members(append(b, '{'), as)
	if err == nil && w.odd {
		if as != s {
			as = swagger(s)
		}
		b, err = w.marshal(b[:begin], as)
	} else {
		b = append(b, '}')
	}
	w.odd = odd
	return b, err
}

// marshal appends what has a MarshalJSON.
func (w *schemaWriter) marshal(b []byte, s *spec.Schema) ([]byte, error) {
	text, err := s.MarshalJSON()
	if w.html {
		return appendHTML(b, text), err
	}
	return append(b, text...), err
}

func (w *schemaWriter) members(b []byte, s *spec.Schema) (_ []byte, err error) {
	if s.ID != "" || s.Schema != "" || s.PatternProperties != nil || s.Dependencies != nil || s.AdditionalItems != nil || s.Definitions != nil ||
		s.Discriminator != "" || s.ReadOnly || s.ExternalDocs != nil || s.Example != nil || s.ExtraProps != nil || s.Items != nil && s.Items.Schema == nil {
		w.odd = true
		return b, nil
	}
	b = w.text(b, "description", s.Description)
	switch {
	case s.Type == nil:
	case len(s.Type) == 1:
		b = w.text(b, "type", s.Type[0])
	default:
		w.odd = true
	}
	b = w.flag(b, "nullable", s.Nullable)
	b = w.text(b, "format", s.Format)
	b = w.text(b, "title", s.Title)
	if s.Default != nil {
		b = w.value(w.name(b, "default"), s.Default)
	}
	b = w.float(b, "maximum", s.Maximum)
	b = w.flag(b, "exclusiveMaximum", s.ExclusiveMaximum)
	b = w.float(b, "minimum", s.Minimum)
	b = w.flag(b, "exclusiveMinimum", s.ExclusiveMinimum)
	b = w.count(b, "maxLength", s.MaxLength)
	b = w.count(b, "minLength", s.MinLength)
	b = w.text(b, "pattern", s.Pattern)
	b = w.count(b, "maxItems", s.MaxItems)
	b = w.count(b, "minItems", s.MinItems)
	b = w.flag(b, "uniqueItems", s.UniqueItems)
	b = w.float(b, "multipleOf", s.MultipleOf)
	if len(s.Enum) > 0 {
		b = w.value(w.name(b, "enum"), s.Enum)
	}
	b = w.count(b, "maxProperties", s.MaxProperties)
	b = w.count(b, "minProperties", s.MinProperties)
	if len(s.Required) > 0 {
		b = append(w.name(b, "required"), '[')
		for i, name := range s.Required {
			b = w.string(separator(b, i), name)
		}
		b = append(b, ']')
	}
	if s.Items != nil {
		b, err = w.schema(w.name(b, "items"), s.Items.Schema)
	}
	for _, of := range []struct {
		name    string
		schemas []spec.Schema
	}{{"allOf", s.AllOf}, {"oneOf", s.OneOf}, {"anyOf", s.AnyOf}} {
		if len(of.schemas) == 0 || err != nil {
			continue
		}
		b = append(w.name(b, of.name), '[')
		for i := range of.schemas {
			if b, err = w.schema(separator(b, i), &of.schemas[i]); err != nil {
				return b, err
			}
		}
		b = append(b, ']')
	}
	if s.Not != nil && err == nil {
		b, err = w.schema(w.name(b, "not"), s.Not)
	}
	if len(s.Properties) > 0 && err == nil {
		b = append(w.name(b, "properties"), '{')
		for i, name := range slices.Sorted(maps.Keys(s.Properties)) {
			below := s.Properties[name]
			if b, err = w.schema(append(w.string(separator(b, i), name), ':'), &below); err != nil {
				return b, err
			}
		}
		b = append(b, '}')
	}
	if a := s.AdditionalProperties; a != nil && err == nil {
		if b = w.name(b, "additionalProperties"); a.Schema != nil {
			b, err = w.schema(b, a.Schema)
		} else {
			b = strconv.AppendBool(b, a.Allows)
		}
	}
	if err != nil {
		return b, err
	}
	ref := s.Ref.String()
	if w.two {
		ref = swaggerRef(ref)
	}
	b = w.text(b, "$ref", ref)
	return w.extensions(b, s.Extensions)
}

func (w *schemaWriter) extensions(b []byte, extensions spec.Extensions) ([]byte, error) {
	if len(extensions) == 0 {
		return b, nil
	}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		if !strings.HasPrefix(name, "x-") {
			w.odd = true // not all of them are written
			return b, nil
		}
		odd, begin := w.odd, len(b)
		w.odd = false
		b = w.value(w.name(b, name), extensions[name])
		if w.odd { // types of others
			one := spec.Schema{VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{name: extensions[name]}}}
			text, err := w.marshal(nil, &one)
			if err != nil {
				return b, err
			}
			if b = b[:begin]; b[len(b)-1] != '{' {
				b = append(b, ',')
			}
			b = append(b, text[1:len(text)-1]...)
		}
		w.odd = odd
	}
	return b, nil
}

// name begins a member.
func (w *schemaWriter) name(b []byte, name string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return append(w.string(b, name), ':')
}

func (w *schemaWriter) text(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	return w.string(w.name(b, name), text)
}

func (w *schemaWriter) flag(b []byte, name string, flag bool) []byte {
	if !flag {
		return b
	}
	return append(w.name(b, name), "true"...)
}

func (w *schemaWriter) count(b []byte, name string, n *int64) []byte {
	if n == nil {
		return b
	}
	return strconv.AppendInt(w.name(b, name), *n, 10)
}

func (w *schemaWriter) float(b []byte, name string, n *float64) []byte {
	if n == nil {
		return b
	}
	return w.value(w.name(b, name), *n)
}

// value appends what JSON is read into.
func (w *schemaWriter) value(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return w.string(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 && v != 0 {
			return strconv.AppendInt(b, int64(v), 10)
		}
		text, err := json.Marshal(v)
		w.odd = w.odd || err != nil
		return append(b, text...)
	case []any:
		if v == nil {
			w.odd = true
		}
		b = append(b, '[')
		for i, item := range v {
			b = w.value(separator(b, i), item)
		}
		return append(b, ']')
	case map[string]any:
		if v == nil {
			w.odd = true
		}
		b = append(b, '{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			b = w.value(append(w.string(separator(b, i), name), ':'), v[name])
		}
		return append(b, '}')
	}
	w.odd = true
	return b
}

// string appends a text; one that is not UTF-8 is odd.
func (w *schemaWriter) string(b []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(b, '"'), s...), '"')
	}
	w.odd = w.odd || !utf8.ValidString(s)
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r < ' ', w.html && (r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029'):
			const hex = "0123456789abcdef"
			b = append(b, '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
