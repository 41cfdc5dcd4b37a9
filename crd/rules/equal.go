package rules

import (
	"bytes"
	"reflect"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Equal reports whether two parts of definitions are semantically equal: empty and missing
// lists are equal, and so is JSON that differs only in spelling.
func Equal(a, b any) bool {
	e := equality.Semantic.Copy()
	if err := e.AddFunc(equalJSON); err != nil {
		return false // cannot happen
	}
	return e.DeepEqual(a, b)
}

func equalJSON(a, b v1.JSON) bool {
	if bytes.Equal(a.Raw, b.Raw) {
		return true
	}
	var x, y any
	if utiljson.Unmarshal(a.Raw, &x) != nil || utiljson.Unmarshal(b.Raw, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

// Respell normalizes the JSON values in the schemas of a definition, as kube-apiserver
// stores them: equal values get the same spelling.
func Respell(spec *v1.CustomResourceDefinitionSpec) {
	for _, p := range schemas(spec) {
		visit(p, func(p *v1.JSONSchemaProps) bool {
			respell(p.Default)
			respell(p.Example)
			for i := range p.Enum {
				respell(&p.Enum[i])
			}
			return true
		})
	}
}

func respell(j *v1.JSON) {
	if j == nil || len(j.Raw) == 0 {
		return
	}
	for range 2 { // -0.0 becomes -0, then 0
		var v any
		if utiljson.Unmarshal(j.Raw, &v) != nil {
			return
		}
		raw, err := utiljson.Marshal(v)
		if err != nil || bytes.Equal(raw, j.Raw) {
			return
		}
		j.Raw = raw
	}
}
