package openapi

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/resource"
)

// Schema returns the schema of the objects of a resource with all references inlined. A
// recursive type ends in an object without properties. It is slow, and not cached.
func Schema(s *resource.Served) (*spec.Schema, error) {
	in := inliner{library: newLibrary(openPack()), read: map[string]*spec.Schema{}, within: map[string]bool{}}
	if err := in.library.add(s); err != nil {
		return nil, err
	}
	whole := spec.RefSchema(referencePrefix + objectName(s))
	return whole, in.inline(whole)
}

const referencePrefix = "#/components/schemas/"

// inliner replaces references by the schemas that they refer to.
type inliner struct {
	library *library
	read    map[string]*spec.Schema
	within  map[string]bool // what the place is a part of
}

func (in *inliner) get(name string) (*spec.Schema, error) {
	if s := in.read[name]; s != nil {
		return s, nil
	}
	d, err := in.library.get(name)
	if err != nil {
		return nil, err
	}
	if d == nil {
		d = in.library.unknown()
	}
	s := new(spec.Schema)
	if err := json.Unmarshal(d, s); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", name, err)
	}
	in.read[name] = s
	return s, nil
}

// referred returns the name that a schema refers to; a reference with a
// description is wrapped.
func referred(s *spec.Schema) string {
	if ref := s.Ref.String(); ref != "" {
		return strings.TrimPrefix(ref, referencePrefix)
	}
	for i := range s.AllOf {
		if name := referred(&s.AllOf[i]); name != "" {
			return name
		}
	}
	return ""
}

// inline inlines the references of a schema in place, so the schema must not be shared.
// The schemas that it refers to are copied.
func (in *inliner) inline(s *spec.Schema) error {
	if name := referred(s); name != "" {
		if in.within[name] {
			*s = spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
			return nil
		}
		known, err := in.get(name)
		if err != nil {
			return err
		}
		in.within[name] = true
		defer delete(in.within, name)
		*s = *known
	}
	if s.Properties != nil {
		properties := make(map[string]spec.Schema, len(s.Properties))
		for name, p := range s.Properties {
			if err := in.inline(&p); err != nil {
				return err
			}
			properties[name] = p
		}
		s.Properties = properties
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		of := *a.Schema
		s.AdditionalProperties = &spec.SchemaOrBool{Allows: a.Allows, Schema: &of}
		if err := in.inline(&of); err != nil {
			return err
		}
	}
	if i := s.Items; i != nil && i.Schema != nil {
		of := *i.Schema
		s.Items = &spec.SchemaOrArray{Schema: &of}
		return in.inline(&of)
	}
	return nil
}
