package openapi

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/discovery/discoverytest"
)

// TestDefinitionsAreCurrent compares the fields of Go types with the generated
// definitions: after an update of the API types they have to be generated
// again.
func TestDefinitionsAreCurrent(t *testing.T) {
	catalog, err := discoverytest.Catalog()
	if err != nil {
		t.Fatal(err)
	}
	l, seen := newLibrary(openPack()), map[reflect.Type]bool{}
	var check func(typ reflect.Type)
	check = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			check(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		named, ok := reflect.Zero(typ).Interface().(util.OpenAPIModelNamer)
		if !ok || seen[typ] {
			return
		}
		seen[typ] = true
		d, err := l.get(named.OpenAPIModelName())
		if d == nil || err != nil {
			t.Errorf("%s: no definition: %v", named.OpenAPIModelName(), err)
			return
		}
		var s spec.Schema
		if err := json.Unmarshal(d, &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Properties) == 0 {
			return // times and quantities are values of their own
		}
		fields := fieldsOf(typ)
		for name, field := range fields {
			if _, ok := s.Properties[name]; !ok {
				t.Errorf("%s: no property %s", named.OpenAPIModelName(), name)
			}
			check(field)
		}
		for name := range s.Properties {
			if fields[name] == nil {
				t.Errorf("%s: property %s, but no field", named.OpenAPIModelName(), name)
			}
		}
	}
	for _, g := range catalog.Groups() {
		for _, v := range g.Versions {
			for _, s := range v.Resources {
				check(reflect.TypeOf(s.Version.New()))
				if slices.Contains(s.Definition.Verbs, "list") {
					check(reflect.TypeOf(s.Version.NewList()))
				}
			}
		}
	}
	if len(seen) < 500 {
		t.Errorf("only %d types", len(seen))
	}
}

func fieldsOf(typ reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && (f.Anonymous || options == "inline"):
			for name, t := range fieldsOf(f.Type) {
				fields[name] = t
			}
		case name != "":
			fields[name] = f.Type
		}
	}
	return fields
}
