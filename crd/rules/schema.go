package rules

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/crd/cel"
	"github.com/apikeel/kelson/crd/schema"
)

// maxDepth bounds the nesting of schemas, so that recursion over them cannot exhaust the
// stack.
const maxDepth = 128

func valueTypes() []string {
	return []string{"array", "boolean", "integer", "number", "object", "string"}
}

// validateSchema checks the schema of one version, or the hoisted one of all versions.
func validateSchema(ctx context.Context, v *v1.CustomResourceValidation, status bool, path *field.Path, t *tolerance) (errs field.ErrorList) {
	p := schemaOf(v)
	if p == nil {
		return nil
	}
	at := path.Child("openAPIV3Schema")
	if tooDeep(p, 0) {
		return field.ErrorList{field.Invalid(at, "", fmt.Sprintf("must not be nested more than %d levels deep", maxDepth))}
	}
	if status {
		// Unlike verdicts, reflect.DeepEqual tells an empty list from a missing one.
		errs = append(errs, validateRoot(p, path)...)
	}
	about, known := verdictOn(p, status, t.structural)
	if known && len(errs) == 0 && t.accepted.has(about) {
		return nil // valid without any tolerance
	}
	if p.Nullable {
		errs = append(errs, field.Forbidden(path.Child("openAPIV3Schema.nullable"), "nullable cannot be true at the root"))
	}
	w := &walk{t: t}
	var late *field.Error
	if t.structural {
		if err := unsupported(p); err != nil {
			late = field.Invalid(at, "", err.Error())
		} else if problems := validateStructural(p, at); len(problems) > 0 {
			errs = append(errs, problems...)
		} else if problems := schema.ValidateDefaults(ctx, at, p, !t.unpruned); len(problems) > 0 {
			errs = append(errs, problems...)
		} else {
			w.costs = &costs{}
		}
	}
	root := place{path: at, p: p, defaults: "-", root: true}
	// The rules of an unchanged schema were accepted before.
	if w.costs != nil && !t.costly && has(p, func(p *v1.JSONSchemaProps) bool { return len(p.XValidations) > 0 }) {
		root.t, root.rules, root.count = cel.NewType(p, true), true, 1
	}
	w.schema(root)
	errs = append(errs, w.errs...)
	errs = append(errs, w.ruleErrs...)
	if len(errs) == 0 && late != nil {
		errs = append(errs, late)
	}
	if w.costs != nil {
		errs = append(errs, w.costs.errors(at)...)
	}
	if known && t.none && len(errs) == 0 {
		t.accepted.add(about)
	}
	return errs
}

func tooDeep(p *v1.JSONSchemaProps, depth int) bool {
	if p == nil {
		return false
	}
	if depth > maxDepth {
		return true
	}
	if p.Items != nil && (tooDeep(p.Items.Schema, depth+1) || anyTooDeep(p.Items.JSONSchemas, depth+1)) {
		return true
	}
	if p.AdditionalProperties != nil && tooDeep(p.AdditionalProperties.Schema, depth+1) {
		return true
	}
	for name := range p.Properties {
		below := p.Properties[name]
		if tooDeep(&below, depth+1) {
			return true
		}
	}
	return anyTooDeep(p.AllOf, depth+1) || anyTooDeep(p.AnyOf, depth+1) || anyTooDeep(p.OneOf, depth+1) || tooDeep(p.Not, depth+1)
}

func anyTooDeep(list []v1.JSONSchemaProps, depth int) bool {
	return slices.ContainsFunc(list, func(p v1.JSONSchemaProps) bool { return tooDeep(&p, depth) })
}

// validateRoot checks that the root has only keywords that still apply when the status
// alone is validated.
func validateRoot(p *v1.JSONSchemaProps, path *field.Path) field.ErrorList {
	allowed := []string{"Description", "Type", "Format", "Title", "Maximum", "ExclusiveMaximum", "Minimum", "ExclusiveMinimum", "MaxLength", "MinLength",
		"Pattern", "MaxItems", "MinItems", "UniqueItems", "MultipleOf", "Required", "Items", "Properties", "ExternalDocs", "Example", "XPreserveUnknownFields", "XValidations"}
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch {
		case v.Field(i).IsZero():
		case name == "Type" && p.Type != "object":
			return field.ErrorList{field.Invalid(path.Child("openAPIV3Schema.type"), p.Type, `only "object" is allowed as the type at the root of the schema if the status subresource is enabled`)}
		case !slices.Contains(allowed, name):
			var shown apiextensions.JSONSchemaProps
			_ = v1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(p, &shown, nil)
			return field.ErrorList{field.Invalid(path.Child("openAPIV3Schema"), shown, fmt.Sprintf(`only %v fields are allowed at the root of the schema if the status subresource is enabled`, allowed))}
		}
	}
	return nil
}

// place is a schema inside of another, and the context of it.
type place struct {
	path *field.Path
	p    *v1.JSONSchemaProps
	root bool
	// defaults is the reason why defaults are forbidden here, "-" if they are allowed.
	defaults string
	meta     bool // inside of the metadata of a resource
	// uncorrelated is the path of the innermost list or map whose items cannot be correlated;
	// oldSelf must not be used below it.
	uncorrelated *field.Path

	// rules says that rules are compiled here; t is the CEL type of the values.
	rules bool
	t     *cel.Type
	// count is how often a value can occur here in one object, unless unbounded.
	count     uint64
	unbounded bool
}

// below returns the place of a schema inside of at.
func (at place) below(p *v1.JSONSchemaProps, path *field.Path) place {
	at.p, at.path, at.root = p, path, false
	return at
}

// nested is below for schemas in allOf, anyOf, oneOf and not, which have no rules.
func (at place) nested(p *v1.JSONSchemaProps, path *field.Path) place {
	at.rules, at.t = false, nil
	return at.below(p, path)
}

// inside returns the place of the items or properties of the values.
func (at place) inside() place {
	var limit *int64
	switch {
	case at.p.Type == "object" && at.p.AdditionalProperties != nil:
		limit = at.p.MaxProperties
	case at.p.Type == "array":
		limit = at.p.MaxItems
	default:
		return at
	}
	if limit == nil {
		at.unbounded = true
	} else {
		at.count = multiply(at.count, uint64(max(*limit, 0)))
	}
	return at
}

// walk validates a schema recursively.
type walk struct {
	t              *tolerance
	costs          *costs // nil if rules are not looked at
	errs, ruleErrs field.ErrorList
}

func (w *walk) add(errs ...*field.Error) { w.errs = append(w.errs, errs...) }

func (w *walk) schema(at place) {
	p, path := at.p, at.path
	if p == nil {
		return
	}
	before := len(w.errs)
	w.plain(at)
	w.children(at)
	w.extensions(p, path)
	if len(p.XValidations) > 0 {
		w.rules(at, len(w.errs) > before)
	}
}

// plain checks the keywords that do not depend on nested schemas.
func (w *walk) plain(at place) {
	p, path := at.p, at.path
	if !w.t.types && p.Type != "" && !slices.Contains(valueTypes(), p.Type) {
		w.add(field.NotSupported(path.Child("type"), p.Type, valueTypes()))
	}
	forbid := func(bad bool, name, text string) {
		if bad {
			w.add(field.Forbidden(path.Child(name), text))
		}
	}
	forbid(p.Default != nil && at.defaults != "-", "default", "must not be set "+at.defaults)
	forbid(p.ID != "", "id", "id is not supported")
	forbid(p.AdditionalItems != nil, "additionalItems", "additionalItems is not supported")
	forbid(len(p.PatternProperties) > 0, "patternProperties", "patternProperties is not supported")
	forbid(len(p.Definitions) > 0, "definitions", "definitions is not supported")
	forbid(p.Dependencies != nil, "dependencies", "dependencies is not supported")
	forbid(p.Ref != nil, "$ref", "$ref is not supported")
	forbid(p.Type == "null", "type", "type cannot be set to null, use nullable as an alternative")
	forbid(p.Items != nil && len(p.Items.JSONSchemas) > 0, "items", "items must be a schema object and not an array")
	forbid(at.meta && p.XEmbeddedResource, "x-kubernetes-embedded-resource", "must not be used inside of resource meta")
	forbid(p.UniqueItems, "uniqueItems", "uniqueItems cannot be set to true since the runtime complexity becomes quadratic")
	if a := p.AdditionalProperties; a != nil && len(p.Properties) > 0 {
		forbid(!a.Allows || a.Schema != nil, "additionalProperties", "additionalProperties and properties are mutual exclusive")
	}
}

func (w *walk) children(at place) {
	p, path := at.p, at.path
	inside := at.inside()
	if a := p.AdditionalProperties; a != nil {
		next := inside.below(a.Schema, path.Child("additionalProperties"))
		next.t = at.t.Other()
		if at.meta {
			next.defaults = "inside additionalProperties applying to object metadata"
		}
		w.schema(next)
	}
	for _, name := range sorted(p.Properties) {
		below := p.Properties[name]
		next := inside.below(&below, path.Child("properties").Key(name))
		next.t = at.t.Property(name)
		if p.XMapType != nil && *p.XMapType != "granular" && *p.XMapType != "atomic" && next.uncorrelated == nil {
			next.uncorrelated = path
		}
		if (at.root || p.XEmbeddedResource) && (name == "metadata" || name == "kind" || name == "apiVersion") {
			next.meta = true
			if at.root {
				next.defaults = "in top-level " + name
			}
		}
		w.schema(next)
	}
	w.schema(at.nested(p.Not, path.Child("not")))
	for _, list := range []struct {
		name string
		of   []v1.JSONSchemaProps
	}{{"allOf", p.AllOf}, {"oneOf", p.OneOf}, {"anyOf", p.AnyOf}} {
		for i := range list.of {
			w.schema(at.nested(&list.of[i], path.Child(list.name).Index(i)))
		}
	}
	for _, name := range sorted(p.Definitions) {
		below := p.Definitions[name]
		w.schema(at.nested(&below, path.Child("definitions").Key(name)))
	}
	if p.Items != nil {
		next := inside.below(p.Items.Schema, path.Child("items"))
		next.t = at.t.Item()
		// Only items of map lists can be correlated.
		if (p.XListType == nil || *p.XListType != "map") && next.uncorrelated == nil {
			next.uncorrelated = path
		}
		w.schema(next)
		for i := range p.Items.JSONSchemas {
			w.schema(next.nested(&p.Items.JSONSchemas[i], path.Child("items").Index(i)))
		}
	}
	for name, d := range p.Dependencies {
		w.schema(at.nested(d.Schema, path.Child("dependencies").Key(name)))
	}
}

// extensions checks the x-kubernetes extensions.
func (w *walk) extensions(p *v1.JSONSchemaProps, path *field.Path) {
	if p.XPreserveUnknownFields != nil && !*p.XPreserveUnknownFields {
		w.add(field.Invalid(path.Child("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined"))
	}
	typed := func(set *string, kind, name string) bool {
		text := fmt.Sprintf("must be %s if %s is specified", kind, name)
		switch {
		case set == nil || p.Type == kind:
			return true
		case p.Type == "":
			w.add(field.Required(path.Child("type"), text))
		default:
			w.add(field.Invalid(path.Child("type"), p.Type, text))
		}
		return false
	}
	oneOf := func(set *string, name string, allowed ...string) {
		if set != nil && !slices.Contains(allowed, *set) {
			w.add(field.NotSupported(path.Child(name), *set, allowed))
		}
	}
	typed(p.XMapType, "object", "x-kubernetes-map-type")
	oneOf(p.XMapType, "x-kubernetes-map-type", "atomic", "granular")
	if typed(p.XListType, "array", "x-kubernetes-list-type") && !w.t.sets {
		if name := notAtomic(p); name != "" {
			w.add(field.Invalid(path.Child("items").Child(name), p.Items.Schema.XListType, "must be atomic as item of a list with x-kubernetes-list-type=set"))
		}
	}
	oneOf(p.XListType, "x-kubernetes-list-type", "atomic", "set", "map")
	if len(p.XListMapKeys) > 0 {
		const text = "must be map if x-kubernetes-list-map-keys is non-empty"
		if p.XListType == nil {
			w.add(field.Required(path.Child("x-kubernetes-list-type"), text))
		} else if *p.XListType != "map" {
			w.add(field.Invalid(path.Child("x-kubernetes-list-type"), *p.XListType, text))
		}
	}
	if p.XListType != nil && *p.XListType == "map" {
		w.mapList(p, path)
	}
	if !w.t.keys {
		w.add(validateKeys(p, path)...)
	}
}

// notAtomic returns the keyword that is missing to make the items of a set atomic, "" if
// they are.
func notAtomic(p *v1.JSONSchemaProps) string {
	if p.XListType == nil || *p.XListType != "set" || p.Items == nil || p.Items.Schema == nil {
		return ""
	}
	switch items := p.Items.Schema; items.Type {
	case "array":
		if items.XListType != nil && *items.XListType != "atomic" {
			return "x-kubernetes-list-type"
		}
	case "object":
		if items.XMapType == nil || *items.XMapType != "atomic" {
			return "x-kubernetes-map-type"
		}
	}
	return ""
}

// mapList checks a list of type map.
func (w *walk) mapList(p *v1.JSONSchemaProps, path *field.Path) {
	keys, items := path.Child("x-kubernetes-list-map-keys"), path.Child("items")
	if len(p.XListMapKeys) == 0 {
		w.add(field.Required(keys, "must not be empty if x-kubernetes-list-type is map"))
	}
	switch {
	case p.Items == nil:
		w.add(field.Required(items, "must have a schema if x-kubernetes-list-type is map"))
		return
	case p.Items.Schema == nil:
		var shown apiextensions.JSONSchemaPropsOrArray
		_ = v1.Convert_v1_JSONSchemaPropsOrArray_To_apiextensions_JSONSchemaPropsOrArray(p.Items, &shown, nil)
		w.add(field.Invalid(items, shown, "must only have a single schema if x-kubernetes-list-type is map"))
		return
	case p.Items.Schema.Type != "object":
		w.add(field.Invalid(items.Child("type"), p.Items.Schema.Type, "must be object if parent array's x-kubernetes-list-type is map"))
		return
	}
	seen := map[string]bool{}
	for _, key := range p.XListMapKeys {
		member, ok := p.Items.Schema.Properties[key]
		switch {
		case !ok:
			w.add(field.Invalid(keys, p.XListMapKeys, "entries must all be names of item properties"))
		case member.Type == "array" || member.Type == "object":
			w.add(field.Invalid(items.Child("properties").Key(key).Child("type"), p.Items.Schema.Type, "must be a scalar type if parent array's x-kubernetes-list-type is map"))
		}
		if seen[key] {
			w.add(field.Invalid(keys, p.XListMapKeys, "must not contain duplicate entries"))
		}
		seen[key] = true
	}
}

// validateKeys checks that keys of maps and items of sets are never null or missing.
func validateKeys(p *v1.JSONSchemaProps, path *field.Path) (errs field.ErrorList) {
	if p.Items == nil || p.Items.Schema == nil || p.XListType == nil || *p.XListType != "set" && *p.XListType != "map" {
		return nil
	}
	items := path.Child("items")
	if p.Items.Schema.Nullable {
		errs = append(errs, field.Forbidden(items.Child("nullable"), "cannot be nullable when x-kubernetes-list-type is "+*p.XListType))
	}
	if *p.XListType != "map" {
		return errs
	}
	required := sets.New(p.Items.Schema.Required...)
	for _, key := range p.XListMapKeys {
		member, ok := p.Items.Schema.Properties[key]
		if !ok {
			continue
		}
		at := items.Child("properties").Key(key)
		if !required.Has(key) && member.Default == nil {
			errs = append(errs, field.Required(at.Child("default"), "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"))
		}
		if member.Nullable {
			errs = append(errs, field.Forbidden(at.Child("nullable"), "this property is in x-kubernetes-list-map-keys, so it cannot be nullable"))
		}
	}
	return errs
}

// multiply returns a product, or the largest number if it is larger.
func multiply(a, b uint64) uint64 {
	if a != 0 && math.MaxUint64/a < b {
		return math.MaxUint64
	}
	return a * b
}

func hasLineBreak(s string) bool { return strings.ContainsAny(s, "\n\r") }
