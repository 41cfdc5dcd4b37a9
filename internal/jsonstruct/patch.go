package jsonstruct

import (
	"reflect"
	"strings"

	"github.com/apikeel/kelson/internal/jsonscan"
)

// maxOperations is how many operations Patch applies.
const maxOperations = 1000

// Patch applies a JSON patch (RFC 6902) to the struct that into points to. It knows
// add, replace and remove of fields and of entries of maps that are reached through
// structs. Otherwise it returns false and leaves the struct undefined, also if an
// operation fails.
func Patch(patch []byte, into any) bool {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct || decoderOf(v.Type().Elem()) == nil {
		return false
	}
	p := parser{Scanner: jsonscan.Scanner{Text: string(patch)}}
	n := 0
	return p.array(func() bool { n++; return n <= maxOperations && p.operation(v.Elem()) }) && p.End()
}

// operation reads an operation of a JSON patch and applies it.
func (p *parser) operation(v reflect.Value) bool {
	var op, path string
	var seen names
	value := parser{}
	if !p.object(func(name string) (ok bool) {
		switch {
		case !seen.add(name):
		case name == "op":
			op, ok = p.String()
		case name == "path":
			path, ok = p.String()
		case name == "value" && p.Space() != 'n':
			from := p.At
			ok = p.skip()
			value.Text = p.Text[from:p.At]
		}
		return ok
	}) {
		return false
	}
	set := op == "add" || op == "replace"
	if !strings.HasPrefix(path, "/") || !set && op != "remove" || set != (value.Text != "") {
		return false
	}
	return value.patch(v, strings.Split(path[1:], "/"), op)
}

// patch sets the field or the entry of a map at a path to the value that the parser
// reads, or removes it.
func (p *parser) patch(v reflect.Value, path []string, op string) bool {
	name := strings.NewReplacer("~1", "/", "~0", "~").Replace(path[0])
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return p.patch(v.Elem(), path, op)
	case reflect.PointerTo(v.Type()).Implements(unmarshaler):
		return false
	case v.Kind() == reflect.Map && v.Len() > 0 && len(path) == 1:
		key := reflect.ValueOf(name).Convert(v.Type().Key())
		if op != "add" && !v.MapIndex(key).IsValid() {
			return false
		}
		item := reflect.New(v.Type().Elem())
		if op == "remove" {
			v.SetMapIndex(key, reflect.Value{})
			return true
		}
		ok := decoderOf(v.Type().Elem())(p, item.UnsafePointer())
		v.SetMapIndex(key, item.Elem())
		return ok
	case v.Kind() != reflect.Struct:
		return false
	}
	f, ok := fieldNamed(v, name)
	switch {
	case !ok:
		return false
	case len(path) > 1:
		return p.patch(f, path[1:], op)
	case op != "add" && f.IsZero():
		return false // perhaps it is not there
	}
	f.SetZero()
	return op == "remove" || decoderOf(f.Type())(p, f.Addr().UnsafePointer())
}

// fieldNamed returns the field of a struct that has a name in JSON.
func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == name && name != "-" && name != "" && f.IsExported() {
			return v.Field(i), true
		}
		if f.Anonymous && tag == "" && f.Type.Kind() == reflect.Struct {
			if below, ok := fieldNamed(v.Field(i), name); ok {
				return below, true
			}
		}
	}
	return reflect.Value{}, false
}
