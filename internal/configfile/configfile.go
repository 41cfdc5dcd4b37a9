// Package configfile reads the kind of a configuration file, and has kube-apiserver's
// errors for an unexpected one. Start at Kind and Check.
package configfile

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// Kind returns a file, in YAML or JSON, as JSON, with its group, version and kind,
// which may be empty.
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

// Check returns an error unless the file has this kind in one of the versions.
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

// Unknown returns the error for an unexpected kind.
func Unknown(kind schema.GroupVersionKind) error {
	return runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", kind)
}
