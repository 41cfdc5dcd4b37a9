package openapi

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/kube-openapi/pkg/schemamutation"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

const (
	preserveUnknown = "x-kubernetes-preserve-unknown-fields"
	embedded        = "x-kubernetes-embedded-resource"
	validations     = "x-kubernetes-validations"
)

// sorted returns a value whose fields are written in the order of their names,
// as documents of version 2 have them.
func sorted(value any) any {
	raw, err := json.Marshal(value)
	if err != nil {
		return value
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		return value
	}
	return out
}

// swagger returns a schema of version 3 in the terms of version 2, which knows
// neither junctors nor null. Where a value can be more than version 2 can say,
// it says nothing: clients would refuse what the server accepts.
func swagger(s *spec.Schema) *spec.Schema {
	w := schemamutation.Walker{
		SchemaCallback: func(s *spec.Schema) *spec.Schema {
			c := swaggerOf(s)
			return &c
		},
		RefCallback: func(ref *spec.Ref) *spec.Ref {
			if r := swaggerRef(ref.String()); r != ref.String() {
				made := spec.MustCreateRef(r)
				return &made
			}
			return ref
		},
	}
	return w.WalkSchema(s)
}

// swaggerRef returns a reference of version 3 as it is in version 2.
func swaggerRef(ref string) string {
	if name, ok := strings.CutPrefix(ref, referencePrefix); ok && name != "" {
		return "#/definitions/" + name
	}
	return ref
}

// everyObject returns the properties of a schema that it has because values are
// objects of their own; where they can have any others, there are none.
func everyObject(s *spec.Schema, open bool) map[string]spec.Schema {
	if open || s.Extensions[embedded] != true {
		return nil
	}
	kept := map[string]spec.Schema{}
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		if p, ok := s.Properties[name]; ok {
			kept[name] = p
		}
	}
	return kept
}

// swaggerOf does that for a schema, and leaves those below as they are.
func swaggerOf(s *spec.Schema) spec.Schema {
	c := *s
	if len(c.AllOf) == 1 && c.AllOf[0].Ref.String() != "" {
		c.Ref = c.AllOf[0].Ref // version 2 describes references in place
	}
	c.AllOf, c.OneOf, c.AnyOf, c.Not, c.Default = nil, nil, nil, nil, nil
	open := c.Extensions[preserveUnknown] == true
	if c.Nullable || open {
		c.Items, c.Properties = nil, everyObject(s, open)
		if c.Nullable || c.Type.Contains("object") {
			c.Type = nil
		}
		c.Nullable = false
	}
	if open && c.Extensions[embedded] == true && len(c.Required) >= 2 {
		// Where nothing is said of properties, those that every object
		// has are not required either.
		c.Required = slices.DeleteFunc(slices.Clone(c.Required), func(name string) bool { return name == "kind" || name == "apiVersion" })
	}
	if c.Items == nil && c.Type.Contains("array") {
		c.Type = nil
	}
	if rules, ok := c.Extensions[validations]; ok {
		c.Extensions = maps.Clone(c.Extensions)
		c.Extensions[validations] = sorted(rules)
	}
	if nullable := func(name string) bool { return c.Properties[name].Nullable }; slices.ContainsFunc(c.Required, nullable) {
		c.Required = slices.DeleteFunc(slices.Clone(c.Required), nullable)
	}
	if a := c.AdditionalProperties; a != nil && a.Schema != nil && a.Schema.Nullable {
		c.Required = nil
	}
	return c
}
