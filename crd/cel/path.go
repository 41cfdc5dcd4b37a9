package cel

import (
	"errors"
	"fmt"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FieldPath parses a field path: .spec.name, or .spec['name'] if keys is set. It returns
// the path and the schema it leads to, nil for a map value without a schema.
func FieldPath(text string, schema *apiextensions.JSONSchemaProps, keys bool) (*field.Path, *apiextensions.JSONSchemaProps, error) {
	var path *field.Path
	step := func(name string) error {
		switch {
		case schema != nil && len(schema.Properties) > 0:
			path = path.Child(name)
			next, ok := schema.Properties[name]
			if !ok {
				return errors.New("does not refer to a valid field")
			}
			schema = &next
		case schema != nil && schema.AdditionalProperties != nil:
			path = path.Key(name)
			schema = schema.AdditionalProperties.Schema
		default:
			return errors.New("does not refer to a valid field")
		}
		return nil
	}
	words := split(text)
	take := func() (string, error) {
		if len(words) == 0 {
			return "", errors.New("unexpected end of JSON path")
		}
		word := words[0]
		words = words[1:]
		return word, nil
	}
	for len(words) > 0 {
		word, _ := take()
		switch {
		case word == "[" && !keys:
			return nil, nil, errors.New("array notation is not allowed")
		case word != "." && word != "[":
			return nil, nil, fmt.Errorf("expected [ or . but got: %s", word)
		}
		name, err := take()
		if err != nil {
			return nil, nil, err
		}
		if word == "[" {
			if len(name) < 2 || name[0] != '\'' || name[len(name)-1] != '\'' {
				return nil, nil, fmt.Errorf("expected single quoted string but got %s", name)
			}
			if name, err = unquote(name[1 : len(name)-1]); err != nil {
				return nil, nil, fmt.Errorf("invalid string literal: %w", err)
			}
		}
		if err := step(name); err != nil {
			return nil, nil, err
		}
		if word == "[" {
			if end, err := take(); err != nil {
				return nil, nil, err
			} else if end != "]" {
				return nil, nil, fmt.Errorf("expected ] but got %s", end)
			}
		}
	}
	return path, schema, nil
}

// split splits a path into the tokens . [ ] and the names and quoted keys between them.
func split(text string) (words []string) {
	for text != "" {
		end := strings.IndexAny(text, ".[]")
		switch {
		case text[0] == '\'':
			for end = 1; end < len(text) && (text[end] != '\'' || text[end-1] == '\\'); {
				end++
			}
			end = min(end+1, len(text))
		case end == 0:
			end = 1
		case end < 0:
			end = len(text)
		}
		words = append(words, text[:end])
		text = text[end:]
	}
	return words
}

// unquote resolves the escapes of a string literal.
func unquote(text string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' || i == len(text)-1 {
			out.WriteByte(text[i])
			continue
		}
		i++
		at := strings.IndexByte(`abfnrtv'\`, text[i])
		if at < 0 {
			return "", fmt.Errorf("invalid escape char %s", text[i-1:i+1])
		}
		out.WriteByte("\a\b\f\n\r\t\v'\\"[at])
	}
	return out.String(), nil
}
