// Package cel compiles and evaluates the validation rules of custom resources
// (x-kubernetes-validations, in the Common Expression Language). Start at Type, the CEL
// view of a schema, and Rules, which evaluates the rules of a schema and of all schemas
// below it. Compile checks the rules of one Type and estimates their cost, for the
// validation of definitions. Programs are compiled when a value first reaches their rule.
// The package must not know how objects or definitions are stored.
package cel

import (
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/common"
)

// Type is the CEL view of a schema. It is immutable.
type Type struct {
	props      *apiextensions.JSONSchemaProps
	properties map[string]common.Schema
	items      *Type
	// other is the schema of additionalProperties.
	other    *Type
	fallback any
	enum     []any
	// resource is this type with apiVersion, kind and metadata added, if values are
	// resources.
	resource *Type
	// ruled says that there are rules here or below.
	ruled bool
	// declared is the CEL type, if this or a parent type has rules.
	declared declared
}

var _ common.Schema = (*Type)(nil)

// NewType makes the type of a schema; resource says that values are resources: the root,
// or embedded resources.
func NewType(props *apiextensions.JSONSchemaProps, resource bool) *Type {
	if props == nil {
		return nil
	}
	t := newType(props, resource)
	t.declare(declared{}, false)
	return t
}

func newType(props *apiextensions.JSONSchemaProps, resource bool) *Type {
	t := &Type{props: props, ruled: len(props.XValidations) > 0}
	if props.Default != nil {
		_ = utiljson.Unmarshal(props.Default.Raw, &t.fallback)
	}
	for i := range props.Enum {
		var v any
		_ = utiljson.Unmarshal(props.Enum[i].Raw, &v)
		t.enum = append(t.enum, v)
	}
	if len(props.Properties) > 0 {
		t.properties = make(map[string]common.Schema, len(props.Properties))
		for name := range props.Properties {
			p := props.Properties[name]
			below := newType(&p, p.XEmbeddedResource)
			t.properties[name], t.ruled = below, t.ruled || below.ruled
		}
	}
	if props.Items != nil && props.Items.Schema != nil {
		t.items = newType(props.Items.Schema, props.Items.Schema.XEmbeddedResource)
		t.ruled = t.ruled || t.items.ruled
	}
	if a := props.AdditionalProperties; a != nil && a.Schema != nil {
		t.other = newType(a.Schema, a.Schema.XEmbeddedResource)
		t.ruled = t.ruled || t.other.ruled
	}
	if resource {
		t.resource = t.withMeta()
	}
	return t
}

// maxName bounds the names of objects, and thereby the cost of rules on them.
const maxName = int64(validation.DNS1123SubdomainMaxLength)

// withMeta returns the type with apiVersion, kind, metadata.name and
// metadata.generateName added.
func (t *Type) withMeta() *Type {
	out := *t
	out.items = nil
	out.properties = make(map[string]common.Schema, len(t.properties)+3)
	for name, p := range t.properties {
		out.properties[name] = p
	}
	text := func(max int64) *Type {
		p := &apiextensions.JSONSchemaProps{Type: "string"}
		if max > 0 {
			p.MaxLength = &max
		}
		return &Type{props: p}
	}
	names := map[string]common.Schema{"name": text(maxName), "generateName": text(maxName - 1)}
	complete := t.hasProperty("kind", "string") && t.hasProperty("apiVersion", "string") && t.hasProperty("metadata", "object")
	if meta, ok := t.properties["metadata"].(*Type); ok {
		complete = complete && meta.hasProperty("name", "string") && meta.hasProperty("generateName", "string")
		for name, p := range names {
			own, ok := meta.properties[name].(*Type)
			if ok && own.props.MaxLength != nil && *own.props.MaxLength < *p.MaxLength() {
				names[name] = text(*own.props.MaxLength)
			}
		}
	}
	if complete {
		return t
	}
	out.properties["kind"], out.properties["apiVersion"] = text(0), text(0)
	out.properties["metadata"] = &Type{props: &apiextensions.JSONSchemaProps{Type: "object"}, properties: names}
	return &out
}

func (t *Type) hasProperty(name, kind string) bool {
	p, ok := t.properties[name]
	return ok && p.Type() == kind
}

// declare sets the CEL type of t and the types below, starting at the topmost type with
// rules. above is the declaration found there, seen says that there was one.
func (t *Type) declare(above declared, seen bool) {
	if t == nil || !t.ruled {
		return
	}
	if seen = seen || len(t.props.XValidations) > 0; seen && !above.known && above.err == nil {
		// Rules of parents cannot name the values, but they may have their own rules.
		above.decl = common.SchemaDeclType(t, t.resource != nil)
		if above.known = above.decl != nil; !above.known {
			above.err = ErrUndeclared
		}
	}
	t.declared = above
	elem, decl := above, above.decl
	if decl == nil {
		decl = &apiservercel.DeclType{}
	}
	elem.decl = decl.ElemType
	t.items.declare(elem, seen)
	t.other.declare(elem, seen)
	for name, p := range t.properties {
		below := declared{err: above.err}
		if escaped, ok := apiservercel.Escape(name); ok && decl.Fields[escaped] != nil {
			below = declared{decl: decl.Fields[escaped].Type, known: true}
		}
		p.(*Type).declare(below, seen)
	}
}

// declared is the CEL type of a Type: a declaration, or that there is none (known is
// false), or the error of making one.
type declared struct {
	decl  *apiservercel.DeclType
	known bool
	err   error
}

// nameable reports whether CEL has a type for the values.
func (t *Type) nameable() bool {
	if t == nil || t.props.XIntOrString {
		return t != nil
	}
	switch t.props.Type {
	case "array":
		return t.items.nameable()
	case "object":
		return t.other == nil || t.other.nameable()
	case "string", "boolean", "integer", "number":
		return true
	}
	return false
}

// Property returns the type of a property, nil if it is not listed.
func (t *Type) Property(name string) *Type {
	if t == nil || t.properties[name] == nil {
		return nil
	}
	return t.properties[name].(*Type)
}

// Item returns the type of the items of a list, nil if there is none.
func (t *Type) Item() *Type {
	if t == nil {
		return nil
	}
	return t.items
}

// Other returns the type of the values of a map, nil if there is none.
func (t *Type) Other() *Type {
	if t == nil {
		return nil
	}
	return t.other
}

// Type implements common.Schema, as everything below.
func (t *Type) Type() string { return t.props.Type }

// Format returns the format of strings.
func (t *Type) Format() string { return t.props.Format }

// Items returns the type of the items of a list.
func (t *Type) Items() common.Schema {
	if t.items == nil {
		return nil
	}
	return t.items
}

// Properties returns the types of the members that are named.
func (t *Type) Properties() map[string]common.Schema { return t.properties }

// AdditionalProperties returns the type of the values of a map.
func (t *Type) AdditionalProperties() common.SchemaOrBool {
	if t.props.AdditionalProperties == nil {
		return nil
	}
	return other{t}
}

// other is additionalProperties of a schema.
type other struct{ t *Type }

// Schema implements common.SchemaOrBool.
func (o other) Schema() common.Schema {
	if o.t.other == nil {
		return nil
	}
	return o.t.other
}

// Allows implements common.SchemaOrBool.
func (o other) Allows() bool { return o.t.other != nil || o.t.props.AdditionalProperties.Allows }

// WithTypeAndObjectMeta returns the type of the resource that values are.
func (t *Type) WithTypeAndObjectMeta() common.Schema {
	if t.resource == nil {
		return t.withMeta()
	}
	return t.resource
}

// Default returns the default value.
func (t *Type) Default() any { return t.fallback }

// Enum returns the values that are allowed.
func (t *Type) Enum() []any { return t.enum }

// Pattern returns the pattern of strings.
func (t *Type) Pattern() string { return t.props.Pattern }

// Minimum returns the lower bound of numbers.
func (t *Type) Minimum() *float64 { return t.props.Minimum }

// IsExclusiveMinimum reports whether the lower bound itself is excluded.
func (t *Type) IsExclusiveMinimum() bool { return t.props.ExclusiveMinimum }

// Maximum returns the upper bound of numbers.
func (t *Type) Maximum() *float64 { return t.props.Maximum }

// IsExclusiveMaximum reports whether the upper bound itself is excluded.
func (t *Type) IsExclusiveMaximum() bool { return t.props.ExclusiveMaximum }

// MultipleOf returns what numbers are multiples of.
func (t *Type) MultipleOf() *float64 { return t.props.MultipleOf }

// MinItems bounds lists.
func (t *Type) MinItems() *int64 { return t.props.MinItems }

// MaxItems bounds lists.
func (t *Type) MaxItems() *int64 { return t.props.MaxItems }

// MinLength bounds strings.
func (t *Type) MinLength() *int64 { return t.props.MinLength }

// MaxLength bounds strings.
func (t *Type) MaxLength() *int64 { return t.props.MaxLength }

// MinProperties bounds objects.
func (t *Type) MinProperties() *int64 { return t.props.MinProperties }

// MaxProperties bounds objects.
func (t *Type) MaxProperties() *int64 { return t.props.MaxProperties }

// Required returns the members that must be there.
func (t *Type) Required() []string { return t.props.Required }

// Nullable reports whether null is allowed.
func (t *Type) Nullable() bool { return t.props.Nullable }

// UniqueItems is always false: CustomResourceDefinitions must not set it.
func (t *Type) UniqueItems() bool { return false }

// AllOf is empty, as AnyOf, OneOf and Not: no rules are allowed in them.
func (t *Type) AllOf() []common.Schema { return nil }

// AnyOf implements common.Schema.
func (t *Type) AnyOf() []common.Schema { return nil }

// OneOf implements common.Schema.
func (t *Type) OneOf() []common.Schema { return nil }

// Not implements common.Schema.
func (t *Type) Not() common.Schema { return nil }

// IsXIntOrString reports whether values are integers or strings.
func (t *Type) IsXIntOrString() bool { return t.props.XIntOrString }

// IsXEmbeddedResource reports whether values are resources.
func (t *Type) IsXEmbeddedResource() bool { return t.props.XEmbeddedResource }

// IsXPreserveUnknownFields reports whether unknown fields are preserved.
func (t *Type) IsXPreserveUnknownFields() bool {
	return t.props.XPreserveUnknownFields != nil && *t.props.XPreserveUnknownFields
}

// XValidations is empty: rules are read from the schema.
func (t *Type) XValidations() []common.ValidationRule { return nil }

// XListType returns what a list is: atomic, set or map.
func (t *Type) XListType() string { return deref(t.props.XListType) }

// XMapType returns what an object is: granular or atomic.
func (t *Type) XMapType() string { return deref(t.props.XMapType) }

// XListMapKeys returns the keys of a list that is a map.
func (t *Type) XListMapKeys() []string { return t.props.XListMapKeys }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
