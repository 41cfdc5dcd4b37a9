// Package configfile reads configuration files, with kube-apiserver's errors for an unexpected
// kind. Start at Kind, Check and UnmarshalStrict. Its errors name fields and places but quote no
// text of a file: files have keys and passwords in them, and errors are logged.
package configfile

import (
	"errors"
	"regexp"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Kind returns a file, in YAML or JSON, as JSON, with its group, version and kind,
// which may be empty.
func Kind(data []byte) (text []byte, kind schema.GroupVersionKind, err error) {
	if text = data; !utilyaml.IsJSONBuffer(data) {
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return nil, kind, Unquoted(err)
		}
	}
	found, err := json.SimpleMetaFactory{}.Interpret(text)
	if err != nil {
		return nil, kind, Unquoted(err)
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
		return MissingKind(data)
	case is.Version == "":
		return MissingVersion(data)
	}
	for _, v := range apiVersions {
		if is.Kind == kind && is.GroupVersion().String() == v {
			return nil
		}
	}
	return Unknown(is)
}

// UnmarshalStrict decodes JSON. Unknown and duplicate fields are in problems.
func UnmarshalStrict(text []byte, into any) (problems []error, err error) {
	problems, err = kjson.UnmarshalStrict(text, into)
	return problems, Unquoted(err)
}

// UnmarshalYAML decodes YAML or JSON strictly: unknown and duplicate fields are errors.
func UnmarshalYAML(data []byte, into any) error { return Unquoted(yaml.UnmarshalStrict(data, into)) }

// ToJSON converts YAML or JSON to JSON. Duplicate fields are errors.
func ToJSON(data []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	return text, Unquoted(err)
}

// quoted are the parts of errors of decoders that come from a file, other than names of fields:
// what is before them stays.
var quoted = regexp.MustCompile("(?s)(cannot unmarshal (?:!!)?\\w+) .*?( into )" +
	"|(cannot unmarshal \\w+ into .*? of type (?:struct \\{.*\\}|\\S+)).*" +
	"|((?:invalid duration|unit|in duration|parsing time|parsing|invalid syntax|unknown anchor|undefined alias|escape sequence|invalid use of|unable to parse quantity's suffix|quantities must match)) [\"'`].*" +
	"|(invalid map key:|could not parse|cannot parse).*|(invalid character) '.*?'|`[^`]*`")

// Unquoted returns an error of a decoder without what it quotes of the file. The names of fields
// stay.
func Unquoted(err error) error {
	if err == nil {
		return nil
	}
	text := quoted.ReplaceAllString(err.Error(), "$1$3$4$5$6$2")
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// MissingKind returns the error for a file without a kind.
func MissingKind(data []byte) error { return runtime.NewMissingKindErr(inPlaceOf(data)) }

// MissingVersion returns the error for a file without a version.
func MissingVersion(data []byte) error { return runtime.NewMissingVersionErr(inPlaceOf(data)) }

// inPlaceOf returns what errors say where kube-apiserver's have the text of the file.
func inPlaceOf(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return "the file"
}

// Unknown returns the error for an unexpected kind.
func Unknown(kind schema.GroupVersionKind) error {
	return runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", kind)
}
