// Package configfile tells which object a configuration file has, in the words that
// operators of Kubernetes know if it is none that was expected.
package configfile

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Kind returns a file, in YAML or JSON, as JSON, and what it says that it is, which
// may be nothing.
func Kind(data []byte) (text []byte, kind schema.GroupVersionKind, err error) {
	if text = data; !utilyaml.IsJSONBuffer(data) {
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return nil, kind, err
		}
	}
	found, err := json.SimpleMetaFactory{}.Interpret(text)
	if err != nil {
		return nil, kind, err
	}
	return text, *found, nil
}

// Check is Kind for files that must say what they are: a kind in one of some
// versions.
func Check(data []byte, kind string, apiVersions ...string) error {
	_, is, err := Kind(data)
	switch {
	case err != nil:
		return err
	case is.Kind == "":
		return runtime.NewMissingKindErr(string(data))
	case is.Version == "":
		return runtime.NewMissingVersionErr(string(data))
	}
	for _, v := range apiVersions {
		if is.Kind == kind && is.GroupVersion().String() == v {
			return nil
		}
	}
	return Unknown(is)
}

// Unknown is the error of a kind that was not expected.
func Unknown(kind schema.GroupVersionKind) error {
	return runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", kind)
}
