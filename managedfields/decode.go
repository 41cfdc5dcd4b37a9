package managedfields

import (
	"bytes"
	"fmt"

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
	if _, err := yaml.ToJSON(data); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
	}
	patch := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(data, &patch.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return patch, nil
}

// CheckPatch returns what is wrong with an apply configuration under strict
// field validation, such as a field that is given twice. Servers ask after a
// successful Apply: with Strict the request is refused, with Warn it is a
// warning.
func CheckPatch(data []byte) error {
	if _, twice, ok := decodeJSON(data); ok && !twice {
		return nil
	}
	return yaml.UnmarshalStrict(data, &map[string]any{})
}

// decodeJSON reads a configuration that is JSON of the kind that YAML has the
// same meaning for, which is what clients other than people send; a decoder for
// YAML takes ten times as long. It says whether a field is given twice, and
// false if the text is left to the decoder for YAML.
func decodeJSON(data []byte) (fields map[string]any, twice, ok bool) {
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
	fields = map[string]any{}
	strict, err := kjson.UnmarshalStrict(data, &fields)
	if err != nil || !sameInYAML(fields) {
		return nil, false, false
	}
	return fields, len(strict) > 0, true
}

// sameInYAML reports whether a value of JSON is sure to be the same in YAML,
// where numbers are read differently and keys have a largest length.
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
