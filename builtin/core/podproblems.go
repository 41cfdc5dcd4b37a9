package core

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// problems collects what is wrong with an object, in the order of finding it.
type problems field.ErrorList

func (e *problems) add(errs ...*field.Error) {
	for _, err := range errs {
		if err != nil {
			*e = append(*e, err)
		}
	}
}

func (e *problems) required(p *field.Path, detail string)  { e.add(field.Required(p, detail)) }
func (e *problems) forbidden(p *field.Path, detail string) { e.add(field.Forbidden(p, detail)) }
func (e *problems) duplicate(p *field.Path, value any)     { e.add(field.Duplicate(p, value)) }

func (e *problems) invalid(p *field.Path, value any, detail string) {
	e.add(field.Invalid(p, value, detail))
}

// need reports an empty value and tells whether there is one.
func (e *problems) need(p *field.Path, value string) bool {
	if value == "" {
		e.required(p, "")
	}
	return value != ""
}

// each reports a value once for every message.
func (e *problems) each(p *field.Path, value any, messages []string) {
	for _, m := range messages {
		e.invalid(p, value, m)
	}
}

// label wants a DNS label, subdomain a DNS name.
func (e *problems) label(p *field.Path, value string) {
	e.each(p, value, validation.IsDNS1123Label(value))
}

func (e *problems) subdomain(p *field.Path, value string) {
	e.each(p, value, validation.IsDNS1123Subdomain(value))
}

func (e *problems) nonNegative(p *field.Path, value int64) {
	if value < 0 {
		e.invalid(p, value, "must be greater than or equal to 0")
	}
}

func (e *problems) positive(p *field.Path, value int64) {
	if value <= 0 {
		e.invalid(p, value, "must be greater than zero")
	}
}

// user and group want the ids that Linux knows; nil is none.
func (e *problems) user(p *field.Path, id *int64) {
	if id != nil {
		e.each(p, *id, validation.IsValidUserID(*id))
	}
}

func (e *problems) group(p *field.Path, id *int64) {
	if id != nil {
		e.each(p, *id, validation.IsValidGroupID(*id))
	}
}

// oneOf reports a value that is not among the supported ones, which the message
// lists in the order given.
func oneOf[T ~string](e *problems, p *field.Path, value T, supported ...T) {
	if !slices.Contains(supported, value) {
		e.add(field.NotSupported(p, value, supported))
	}
}

// oneOfOrRequired does the same for a value that has no default.
func oneOfOrRequired[T ~string](e *problems, p *field.Path, value T, supported ...T) {
	if value == "" {
		e.required(p, "")
		return
	}
	oneOf(e, p, value, supported...)
}

// oneOfPointer does the same for a value that may be absent.
func oneOfPointer[T ~string](e *problems, p *field.Path, value *T, supported ...T) {
	if value != nil {
		oneOf(e, p, *value, supported...)
	}
}

// GoForm shows a value of the API in messages as goForm does.
func GoForm(value any) any { return goForm{value} }

// goForm shows a value of the API in messages under the names that its
// fields have in Go, with nothing left out: that is what clients are used to.
// The types of other packages keep their JSON form.
type goForm struct{ value any }

// MarshalJSON writes the form.
func (f goForm) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeGoForm(&b, reflect.ValueOf(f.value))
	return b.Bytes(), err
}

func writeGoForm(b *bytes.Buffer, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		return writeGoForm(b, v.Elem())
	case reflect.Struct:
		if !strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/") {
			break
		}
		b.WriteByte('{')
		if err := writeGoFields(b, v); err != nil {
			return err
		}
		b.WriteByte('}')
		return nil
	case reflect.Slice:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeGoForm(b, v.Index(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	return writeJSON(b, v.Interface())
}

// writeGoFields writes the fields of a struct; those of an embedded one are
// its own.
func writeGoFields(b *bytes.Buffer, v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			inner, err := json.Marshal(goForm{v.Field(i).Interface()})
			if err != nil {
				return err
			}
			if len(inner) > len("{}") {
				comma(b)
				b.Write(inner[1 : len(inner)-1])
			}
			continue
		}
		comma(b)
		b.WriteString(`"` + f.Name + `":`)
		if err := writeGoForm(b, v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func comma(b *bytes.Buffer) {
	if b.Bytes()[b.Len()-1] != '{' {
		b.WriteByte(',')
	}
}

func writeJSON(b *bytes.Buffer, value any) error {
	text, err := json.Marshal(value)
	b.Write(text)
	return err
}
