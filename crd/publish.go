package crd

import (
	"encoding/json"
	"reflect"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/crd/rules"
)

// The schema of a custom resource as OpenAPI publishes it: as it was written, with
// apiVersion, kind and metadata added.

const (
	apiVersionDescription = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"
	kindDescription       = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
	metadataDescription   = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
	validations           = "x-kubernetes-validations"
	objectMeta            = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// openAPISchema returns the OpenAPI schema of the objects.
func openAPISchema(text *schemaText) *spec.Schema {
	out, err := readSchema(text.json)
	if err != nil {
		return openSchema()
	}
	if text.preserve {
		// Only such definitions can have schemas that are not structural, which count as none.
		var v apiextensions.CustomResourceDefinitionVersion
		if err := json.Unmarshal([]byte(`{"schema":{"openAPIV3Schema":`+string(text.json)+`}}`), &v); err != nil {
			return openSchema()
		}
		if reason, _ := rules.NonStructural(&apiextensions.CustomResourceDefinitionSpec{Versions: []apiextensions.CustomResourceDefinitionVersion{v}}); reason != "" {
			return openSchema()
		}
		out.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	unfold(out)
	return withMeta(out)
}

// unfold adds what the x-kubernetes extensions mean in OpenAPI keywords.
func unfold(s *spec.Schema) {
	for name, below := range s.Properties {
		unfold(&below)
		s.Properties[name] = below
	}
	if s.Items != nil && s.Items.Schema != nil {
		unfold(s.Items.Schema)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		unfold(s.AdditionalProperties.Schema)
	}
	if rules, ok := s.Extensions[validations]; ok {
		s.Extensions[validations] = inOrder(rules)
	}
	if both, _ := s.Extensions.GetBool("x-kubernetes-int-or-string"); both {
		unfoldIntOrString(s)
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); embedded {
		s.SetProperty("apiVersion", text("apiVersion defines the versioned schema of this representation of an object. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"))
		s.SetProperty("kind", text("kind is a string value representing the type of this object. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"))
		s.SetProperty("metadata", meta())
		for _, name := range []string{"kind", "apiVersion"} {
			if !slices.Contains(s.Required, name) {
				s.Required = append(s.Required, name)
			}
		}
	}
}

// inOrder returns CEL rules as structs, so that their fields are encoded in the order of
// kube-apiserver: clients compare documents by their hashes.
func inOrder(rules any) any {
	var typed []apiextensions.ValidationRule
	raw, err := json.Marshal(rules)
	if err == nil {
		err = json.Unmarshal(raw, &typed)
	}
	if err != nil {
		return rules
	}
	return typed
}

// unfoldIntOrString adds anyOf integer and string, unless the schema has it.
func unfoldIntOrString(s *spec.Schema) {
	of := func(kind string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{kind}}}
	}
	either := []spec.Schema{of("integer"), of("string")}
	switch {
	case reflect.DeepEqual(s.AnyOf, either), len(s.AllOf) > 0 && reflect.DeepEqual(s.AllOf[0].AnyOf, either):
	case s.AnyOf == nil:
		s.AnyOf = either
	default:
		s.AllOf = append([]spec.Schema{{SchemaProps: spec.SchemaProps{AnyOf: either}}}, s.AllOf...)
	}
}

// openSchema returns the schema of an object with unknown fields.
func openSchema() *spec.Schema {
	out := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	out.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return withMeta(out)
}

func text(description string) spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}, Description: description}}
}

func meta() spec.Schema {
	return spec.Schema{SchemaProps: spec.SchemaProps{
		Description: metadataDescription, AllOf: []spec.Schema{*spec.RefSchema(objectMeta)},
	}}
}

func withMeta(out *spec.Schema) *spec.Schema {
	if out.Properties == nil {
		out.Properties = map[string]spec.Schema{}
	}
	out.Properties["apiVersion"], out.Properties["kind"], out.Properties["metadata"] = text(apiVersionDescription), text(kindDescription), meta()
	return out
}
