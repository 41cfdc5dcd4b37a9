package rules

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// GoForm wraps the value of a field error, so that the message shows it under
// the names that its fields have in Go and leaves no field out, as messages of
// Kubernetes do. Types outside of k8s.io/api keep their JSON form.
func GoForm(value any) any { return goForm{value} }

// goForm is the value that GoForm returns; field errors marshal it as JSON.
type goForm struct{ value any }

// MarshalJSON implements json.Marshaler.
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

// writeGoFields writes the fields of a struct. The fields of an embedded struct
// are written as fields of the outer one.
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
