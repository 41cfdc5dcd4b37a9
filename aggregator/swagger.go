package aggregator

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/apikeel/kelson/openapi"
)

// This file converts OpenAPI v3 documents to v2.

// object is a JSON object.
type object = map[string]any

// toSwagger creates the OpenAPI v2 document of a backend that has only v3, as far as v2
// can express it.
func toSwagger(document []byte, prefix string) (*openapi.Swagger, error) {
	var in struct {
		Paths      map[string]object
		Components struct{ Schemas map[string]any }
	}
	text := strings.ReplaceAll(string(document), `"#/components/schemas/`, `"#/definitions/`)
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("document of version 3: %w", err)
	}
	for _, schema := range in.Components.Schemas {
		simplify(schema)
	}
	for _, item := range in.Paths {
		for name, value := range item {
			if operation, ok := value.(object); ok {
				convertOperation(operation)
			} else if name == "parameters" {
				item[name] = convertParameters(value)
			}
		}
	}
	out, err := json.Marshal(object{"paths": in.Paths, "definitions": in.Components.Schemas})
	if err != nil {
		return nil, err
	}
	return openapi.ReadSwagger(out, prefix)
}

// simplify removes what v2 does not have from a schema. A schema with oneOf or anyOf
// becomes a string, as int-or-string always was in v2.
func simplify(value any) {
	switch value := value.(type) {
	case object:
		for _, choice := range []string{"oneOf", "anyOf"} {
			if _, ok := value[choice].([]any); ok {
				delete(value, choice)
				if value["type"] == nil && value["$ref"] == nil && value["allOf"] == nil {
					value["type"] = "string"
				}
			}
		}
		delete(value, "nullable")
		for _, part := range value {
			simplify(part)
		}
	case []any:
		for _, part := range value {
			simplify(part)
		}
	}
}

func convertOperation(operation object) {
	parameters := convertParameters(operation["parameters"])
	if body, ok := operation["requestBody"].(object); ok {
		schema, types := bodyOf(body)
		parameter := object{"name": "body", "in": "body", "schema": schema}
		for _, key := range []string{"required", "description"} {
			if value, ok := body[key]; ok {
				parameter[key] = value
			}
		}
		parameters = append([]any{parameter}, parameters...)
		operation["consumes"] = types
		delete(operation, "requestBody")
	}
	delete(operation, "parameters")
	if len(parameters) > 0 {
		operation["parameters"] = parameters
	}
	responses, _ := operation["responses"].(object)
	produces := map[string]bool{}
	for _, value := range responses {
		if response, ok := value.(object); ok && response["content"] != nil {
			schema, types := bodyOf(response)
			for _, t := range types {
				produces[t] = true
			}
			delete(response, "content")
			if schema != nil {
				response["schema"] = schema
			}
		}
	}
	operation["produces"] = slices.Sorted(maps.Keys(produces))
}

// convertParameters moves the schema of each parameter into the parameter.
func convertParameters(value any) []any {
	parameters, _ := value.([]any)
	for _, value := range parameters {
		if parameter, ok := value.(object); ok {
			schema, _ := parameter["schema"].(object)
			simplify(schema)
			delete(parameter, "schema")
			maps.Copy(parameter, schema)
		}
	}
	return parameters
}

// bodyOf returns the schema of a body, and its media types.
func bodyOf(of object) (schema any, types []string) {
	all, _ := of["content"].(object)
	types = slices.Sorted(maps.Keys(all))
	for _, name := range types {
		if media, ok := all[name].(object); ok && media["schema"] != nil {
			schema = media["schema"]
			simplify(schema)
		}
	}
	return schema, types
}
