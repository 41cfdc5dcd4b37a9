package crd

import (
	"encoding/json"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// What clients see of a schema: as it was written, with the fields that every
// object has.

const (
	apiVersionDescription = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"
	kindDescription       = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"
	metadataDescription   = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
	objectMeta            = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
)

// published returns the schema of objects for OpenAPI.
func published(props *apiextensions.JSONSchemaProps) *spec.Schema {
	raw, err := json.Marshal(props)
	if err != nil {
		return preserved()
	}
	out := &spec.Schema{}
	if err := json.Unmarshal(raw, out); err != nil {
		return preserved()
	}
	if props.XPreserveUnknownFields != nil && *props.XPreserveUnknownFields && len(props.Properties) == 0 {
		out.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	}
	return withMeta(out)
}

// preserved is the schema of objects about which nothing is known.
func preserved() *spec.Schema {
	out := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	out.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	return withMeta(out)
}

func withMeta(out *spec.Schema) *spec.Schema {
	text := func(description string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"string"}, Description: description}}
	}
	if out.Properties == nil {
		out.Properties = map[string]spec.Schema{}
	}
	out.Properties["apiVersion"], out.Properties["kind"] = text(apiVersionDescription), text(kindDescription)
	out.Properties["metadata"] = spec.Schema{SchemaProps: spec.SchemaProps{
		Description: metadataDescription, AllOf: []spec.Schema{*spec.RefSchema(objectMeta)},
	}}
	return out
}
