package managedfields

import (
	"bytes"
	"fmt"

	"github.com/apikeel/kelson/internal/jsonvalue"
	"github.com/apikeel/kelson/internal/yamltext"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
)

// DecodePatch reads an apply configuration in YAML or JSON.
func DecodePatch(data []byte) (*unstructured.Unstructured, error) {
	if fields, _, ok := decodeJSON(data); ok {
		return &unstructured.Unstructured{Object: fields}, nil
	}
	release, err := yamltext.Hold(data)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, err := yaml.ToJSON(data); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(data, &patch.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return patch, nil
}

// CheckPatch returns the strict decoding error of an apply configuration, such as a
// duplicate field. It is called after a successful Apply: with fieldValidation=Strict
// the request is refused, with Warn the error becomes a warning.
func CheckPatch(data []byte) error {
	if _, twice, ok := decodeJSON(data); ok && !twice {
		return nil
	}
	release, err := yamltext.Hold(data)
	if err != nil {
		return err
	}
	defer release()
	return yaml.UnmarshalStrict(data, &map[string]any{})
}

// decodeJSON decodes a configuration that is JSON and means the same in YAML, as most
// clients send it; a YAML decoder takes ten times as long. duplicate says that a field
// occurs twice. ok is false if the text has to go to the YAML decoder.
func decodeJSON(data []byte) (fields map[string]any, duplicate, ok bool) {
	if len(data) == 0 || data[0] != '{' || bytes.Contains(data, []byte("<<")) {
		return nil, false, false
	}
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\n':
		case c < ' ' || c > '~':
			return nil, false, false
		case c == ':' && !quoted && data[i-1] != '"':
			return nil, false, false
		case c == '\\':
			i++
			if i == len(data) || !bytes.ContainsRune([]byte(`"\nrt`), rune(data[i])) {
				return nil, false, false
			}
		}
	}
	if fields, ok := jsonvalue.Parse(data); ok {
		return fields, false, sameInYAML(fields)
	}
	fields = map[string]any{}
	strict, err := kjson.UnmarshalStrict(data, &fields)
	if err != nil || !sameInYAML(fields) {
		return nil, false, false
	}
	return fields, len(strict) > 0, true
}

// sameInYAML reports whether a JSON value is sure to be the same in YAML, which decodes
// numbers differently and limits the length of keys.
func sameInYAML(v any) bool {
	switch v := v.(type) {
	case float64:
		return false
	case map[string]any:
		for k, e := range v {
			if len(k) > 500 || !sameInYAML(e) {
				return false
			}
		}
	case []any:
		for _, e := range v {
			if !sameInYAML(e) {
				return false
			}
		}
	}
	return true
}
