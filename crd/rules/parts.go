package rules

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/crd/cel"
)

// maxSelectable is the limit of selectableFields.
const maxSelectable = 8

func validateSubresources(s *v1.CustomResourceSubresources, path *field.Path) (errs field.ErrorList) {
	if s == nil || s.Scale == nil {
		return nil
	}
	check := func(name, value, under string) {
		at := path.Child("scale." + name)
		switch {
		case value == "":
			errs = append(errs, field.Required(at, ""))
		case value[0] != '.':
			errs = append(errs, field.Invalid(at, value, "must be a simple json path starting with ."))
		case !strings.HasPrefix(value, "."+under+"."):
			errs = append(errs, field.Invalid(at, value, "should be a json path under ."+under))
		}
	}
	check("specReplicasPath", s.Scale.SpecReplicasPath, "spec")
	check("statusReplicasPath", s.Scale.StatusReplicasPath, "status")
	if selector := s.Scale.LabelSelectorPath; selector != nil && *selector != "" {
		at := path.Child("scale.labelSelectorPath")
		if (*selector)[0] != '.' {
			errs = append(errs, field.Invalid(at, *selector, "must be a simple json path starting with ."))
		} else if !strings.HasPrefix(*selector, ".spec.") && !strings.HasPrefix(*selector, ".status.") {
			errs = append(errs, field.Invalid(at, selector, "should be a json path under either .spec or .status"))
		}
	}
	return errs
}

func validateColumns(columns []v1.CustomResourceColumnDefinition, path *field.Path) (errs field.ErrorList) {
	types := []string{"boolean", "date", "integer", "number", "string"}
	formats := []string{"byte", "date", "date-time", "double", "float", "int32", "int64", "password"}
	oneOf := func(list []string) string { return fmt.Sprintf("must be one of %s", strings.Join(list, ",")) }
	for i := range columns {
		c, path := &columns[i], path.Index(i)
		if c.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
		if c.Type == "" {
			errs = append(errs, field.Required(path.Child("type"), oneOf(types)))
		} else if !slices.Contains(types, c.Type) {
			errs = append(errs, field.Invalid(path.Child("type"), c.Type, oneOf(types)))
		}
		if c.Format != "" && !slices.Contains(formats, c.Format) {
			errs = append(errs, field.Invalid(path.Child("format"), c.Format, oneOf(formats)))
		}
		if c.JSONPath == "" {
			errs = append(errs, field.Required(path.Child("JSONPath"), ""))
		} else if c.JSONPath[0] != '.' {
			errs = append(errs, field.Invalid(path.Child("JSONPath"), c.JSONPath, "must be a simple json path starting with ."))
		}
	}
	return errs
}

func validateSelectable(fields []v1.SelectableField, schema *v1.JSONSchemaProps, path *field.Path, tooMany bool) (errs field.ErrorList) {
	if schema != nil {
		if err := unsupported(schema); err != nil {
			errs = append(errs, field.Invalid(path.Child("schema.openAPIV3Schema"), "", err.Error()))
			schema = nil
		}
	}
	seen := map[string]bool{}
	list := path.Child("selectableFields")
	for i := range fields {
		text, at := fields[i].JSONPath, list.Index(i).Child("jsonPath")
		if text == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		leads, to, err := cel.FieldPath(text, schema, false)
		if err != nil {
			errs = append(errs, field.Invalid(at, text, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		if leads.Root().String() == "metadata" {
			errs = append(errs, field.Invalid(at, text, "must not point to fields in metadata"))
		}
		if to == nil || to.Type != "string" && to.Type != "boolean" && to.Type != "integer" {
			errs = append(errs, field.Invalid(at, text, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."))
		}
		if seen[leads.String()] {
			errs = append(errs, field.Duplicate(at, text))
		}
		seen[leads.String()] = true
	}
	if len(seen) > maxSelectable && !tooMany {
		errs = append(errs, field.TooMany(list, len(seen), maxSelectable))
	}
	return errs
}
