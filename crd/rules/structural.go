package rules

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/internal/problems"
)

// A schema is structural if it lists all fields and their types outside of allOf, anyOf,
// oneOf and not. Only then can objects be pruned and defaulted, and the schema published.
// Schemas inside of allOf and so on only restrict values.

// level is the position of a schema.
type level int

const (
	atRoot level = iota
	atItem
	atField
)

func sorted(m map[string]v1.JSONSchemaProps) []string { return slices.Sorted(maps.Keys(m)) }

// unsupported returns an error for the first keyword that no definition may use.
func unsupported(p *v1.JSONSchemaProps) (err error) {
	say := func(bad bool, name string) {
		if bad && err == nil {
			err = fmt.Errorf("OpenAPIV3Schema '%s' is not supported", name)
		}
	}
	visit(p, func(p *v1.JSONSchemaProps) bool {
		say(p.ID != "", "id")
		say(p.Schema != "", "schema")
		say(p.Ref != nil && *p.Ref != "", "$ref")
		say(len(p.PatternProperties) > 0, "patternProperties")
		say(len(p.Dependencies) > 0, "dependencies")
		say(p.AdditionalItems != nil, "additionalItems")
		say(len(p.Definitions) > 0, "definitions")
		if err == nil && p.XPreserveUnknownFields != nil && !*p.XPreserveUnknownFields {
			err = errors.New("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")
		}
		if err == nil && p.Items != nil && len(p.Items.JSONSchemas) > 0 {
			err = errors.New("OpenAPIV3Schema 'items' must be a schema, but is an array")
		}
		return err == nil
	})
	return err
}

// The reasons of the condition NonStructuralSchema.
const (
	StructuralError = "StructuralError" // a schema has a keyword that no definition may use
	Violations      = "Violations"
)

// NonStructural returns the reason and the message of the condition NonStructuralSchema, ""
// if all schemas are structural.
func NonStructural(spec *v1.CustomResourceDefinitionSpec) (reason, text string) {
	var errs field.ErrorList
	if spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range spec.Versions {
		p := schemaOf(spec.Versions[i].Schema)
		if p == nil {
			continue
		}
		if err := unsupported(p); err != nil {
			return StructuralError, fmt.Sprintf("failed to check validation schema for version %s: %v", spec.Versions[i].Name, err)
		}
		errs = append(errs, validateStructural(p, field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"))...)
	}
	if len(errs) == 0 {
		return "", ""
	}
	return Violations, problems.Text(errs)
}

// validateStructural returns why a schema is not structural, nil if it is.
func validateStructural(p *v1.JSONSchemaProps, path *field.Path) field.ErrorList {
	s := &structure{}
	s.schema(p, atRoot, path)
	s.completeAll(p, p, path, path)
	slices.SortFunc(s.errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return s.errs
}

type structure struct{ errs field.ErrorList }

func (s *structure) add(err *field.Error) { s.errs = append(s.errs, err) }

func (s *structure) forbid(bad bool, path *field.Path, name, text string) {
	if bad {
		s.add(field.Forbidden(path.Child(name), text))
	}
}

func preserves(p *v1.JSONSchemaProps) bool {
	return p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields
}

// schema checks a schema outside of allOf, anyOf, oneOf and not.
func (s *structure) schema(p *v1.JSONSchemaProps, at level, path *field.Path) {
	if p.Type == "array" && (p.Items == nil || p.Items.Schema == nil) {
		s.add(field.Required(path.Child("items"), "must be specified"))
	}
	if p.Items != nil && p.Items.Schema != nil {
		s.schema(p.Items.Schema, atItem, path.Child("items"))
	}
	for _, name := range sorted(p.Properties) {
		below := p.Properties[name]
		s.schema(&below, atField, path.Child("properties").Key(name))
	}
	if a := p.AdditionalProperties; a != nil {
		s.forbid(at == atRoot, path, "additionalProperties", "must not be used at the root")
		if a.Schema != nil {
			s.schema(a.Schema, atField, path.Child("additionalProperties"))
		}
	}
	if p.XIntOrString && preserves(p) {
		s.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), true, "must be false if x-kubernetes-int-or-string is true"))
	}
	if p.XIntOrString && p.XEmbeddedResource {
		s.add(field.Invalid(path.Child("x-kubernetes-embedded-resource"), true, "must be false if x-kubernetes-int-or-string is true"))
	}
	s.restrictions(p, intOrString(p.AnyOf), len(p.AllOf) > 0 && intOrString(p.AllOf[0].AnyOf), path)
	s.types(p, at, path)
	s.resource(p, at, path)
}

// types checks that a schema has a type.
func (s *structure) types(p *v1.JSONSchemaProps, at level, path *field.Path) {
	path = path.Child("type")
	const embedded = "must be object if x-kubernetes-embedded-resource is true"
	switch {
	case p.XEmbeddedResource && p.Type == "":
		s.add(field.Required(path, embedded))
	case p.XEmbeddedResource && p.Type != "object":
		s.add(field.Invalid(path, p.Type, embedded))
	case p.Type == "" && !p.XIntOrString && !preserves(p):
		s.add(field.Required(path, "must not be empty "+[]string{"at the root", "for specified array items", "for specified object fields"}[at]))
	}
	if at == atRoot && p.Type != "" && p.Type != "object" {
		s.add(field.Invalid(path, p.Type, "must be object at the root"))
	}
}

// resource checks the schema of apiVersion, kind and metadata of resources.
func (s *structure) resource(p *v1.JSONSchemaProps, at level, path *field.Path) {
	s.forbid(p.XEmbeddedResource && p.AdditionalProperties != nil, path, "additionalProperties", "must not be used if x-kubernetes-embedded-resource is set")
	isResource := at == atRoot || p.XEmbeddedResource
	for _, name := range []string{"kind", "apiVersion"} {
		if below, ok := p.Properties[name]; ok && isResource && below.Type != "string" {
			s.add(field.Invalid(path.Child("properties").Key(name).Child("type"), below.Type, "must be string"))
		}
	}
	if meta, ok := p.Properties["metadata"]; ok {
		path := path.Child("properties").Key("metadata")
		if isResource && meta.Type != "object" {
			s.add(field.Invalid(path.Child("type"), meta.Type, "must be object"))
		}
		if at == atRoot && !onlyNames(meta) {
			s.add(field.Forbidden(path, "must not specify anything other than name and generateName, but metadata is implicitly specified"))
		}
	}
	if p.XEmbeddedResource && !preserves(p) && len(p.Properties) == 0 {
		s.add(field.Required(path.Child("properties"), "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"))
	}
}

// onlyNames reports whether a schema of metadata restricts only name and generateName.
func onlyNames(p v1.JSONSchemaProps) bool {
	others := 0
	for name := range p.Properties {
		if name != "name" && name != "generateName" {
			others++
		}
	}
	if others == 0 {
		p.Properties = nil
	}
	p.Type, p.Default = "", nil
	return reflect.DeepEqual(withoutEmptyLists(p), v1.JSONSchemaProps{})
}

// withoutEmptyLists returns a schema with empty lists set to nil.
func withoutEmptyLists(p v1.JSONSchemaProps) v1.JSONSchemaProps {
	for _, list := range []*[]v1.JSONSchemaProps{&p.AllOf, &p.AnyOf, &p.OneOf} {
		if len(*list) == 0 {
			*list = nil
		}
	}
	if len(p.Enum) == 0 {
		p.Enum = nil
	}
	return p
}

// intOrString reports whether anyOf is integer and string, the only types allowed in anyOf.
func intOrString(anyOf []v1.JSONSchemaProps) bool {
	return len(anyOf) == 2 && reflect.DeepEqual(withoutEmptyLists(anyOf[0]), v1.JSONSchemaProps{Type: "integer"}) &&
		reflect.DeepEqual(withoutEmptyLists(anyOf[1]), v1.JSONSchemaProps{Type: "string"})
}

// restrictions checks the schemas in allOf, anyOf, oneOf and not.
func (s *structure) restrictions(p *v1.JSONSchemaProps, skipAnyOf, skipFirst bool, path *field.Path) {
	if !skipAnyOf {
		for i := range p.AnyOf {
			s.restriction(&p.AnyOf[i], false, path.Child("anyOf").Index(i))
		}
	}
	for i := range p.AllOf {
		s.restriction(&p.AllOf[i], skipFirst && i == 0, path.Child("allOf").Index(i))
	}
	for i := range p.OneOf {
		s.restriction(&p.OneOf[i], false, path.Child("oneOf").Index(i))
	}
	if p.Not != nil {
		s.restriction(p.Not, false, path.Child("not"))
	}
	if p.Pattern != "" {
		if err := boundedregexp.Check(p.Pattern); err != nil {
			s.add(field.Invalid(path.Child("pattern"), p.Pattern, fmt.Sprintf("must be a valid regular expression, but isn't: %v", err)))
		}
	}
}

func (s *structure) restriction(p *v1.JSONSchemaProps, skipAnyOf bool, path *field.Path) {
	s.restrictions(p, skipAnyOf, false, path)
	if p.Items != nil && p.Items.Schema != nil {
		s.restriction(p.Items.Schema, false, path.Child("items"))
	}
	for _, name := range sorted(p.Properties) {
		below := p.Properties[name]
		s.restriction(&below, false, path.Child("properties").Key(name))
	}
	const (
		empty     = "must be empty to be structural"
		undefined = "must be undefined to be structural"
		unset     = "must be false to be structural"
	)
	s.forbid(p.Type != "", path, "type", empty)
	s.forbid(p.AdditionalProperties != nil && (p.AdditionalProperties.Schema != nil || p.AdditionalProperties.Allows), path, "additionalProperties", undefined)
	s.forbid(p.Default != nil, path, "default", undefined)
	s.forbid(p.Title != "", path, "title", empty)
	s.forbid(p.Description != "", path, "description", empty)
	s.forbid(p.Nullable, path, "nullable", unset)
	s.forbid(preserves(p), path, "x-kubernetes-preserve-unknown-fields", unset)
	s.forbid(p.XEmbeddedResource, path, "x-kubernetes-embedded-resource", unset)
	s.forbid(p.XIntOrString, path, "x-kubernetes-int-or-string", unset)
	s.forbid(len(p.XListMapKeys) > 0, path, "x-kubernetes-list-map-keys", empty)
	s.forbid(p.XListType != nil, path, "x-kubernetes-list-type", undefined)
	s.forbid(p.XMapType != nil, path, "x-kubernetes-map-type", undefined)
	s.forbid(len(p.XValidations) > 0, path, "x-kubernetes-validations", empty)
	if _, ok := p.Properties["metadata"]; ok {
		s.add(field.Forbidden(path.Child("properties").Key("metadata"), "must not be specified in a nested context"))
	}
}

// completeAll checks that fields named in allOf, anyOf, oneOf and not of p are also in the
// schema itself.
func (s *structure) completeAll(p, schema *v1.JSONSchemaProps, at, path *field.Path) {
	if p.Not != nil {
		s.complete(p.Not, schema, at, path.Child("not"))
	}
	for i := range p.AllOf {
		s.complete(&p.AllOf[i], schema, at, path.Child("allOf").Index(i))
	}
	for i := range p.AnyOf {
		s.complete(&p.AnyOf[i], schema, at, path.Child("anyOf").Index(i))
	}
	for i := range p.OneOf {
		s.complete(&p.OneOf[i], schema, at, path.Child("oneOf").Index(i))
	}
}

func (s *structure) complete(p, schema *v1.JSONSchemaProps, at, path *field.Path) {
	if schema == nil {
		s.add(field.Required(at, fmt.Sprintf("because it is defined in %s", path)))
		return
	}
	s.completeAll(p, schema, at, path)
	if p.Items != nil && p.Items.Schema != nil {
		var items *v1.JSONSchemaProps
		if schema.Items != nil {
			items = schema.Items.Schema
		}
		s.complete(p.Items.Schema, items, at.Child("items"), path.Child("items"))
	}
	for _, name := range sorted(p.Properties) {
		below := p.Properties[name]
		at, path := at.Child("properties").Key(name), path.Child("properties").Key(name)
		if known, ok := schema.Properties[name]; ok {
			s.complete(&below, &known, at, path)
		} else {
			s.complete(&below, nil, at, path)
		}
	}
}
