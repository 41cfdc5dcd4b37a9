package policy

import (
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

func TestChecker(t *testing.T) {
	catalog := admissiontest.Catalog()
	c := &Checker{
		Catalog: func() *resource.Catalog { return catalog }, Expressions: new(policycel.Environment),
		Schema: func(s *resource.Served) (*spec.Schema, error) {
			text := spec.StringProperty()
			return &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Properties: map[string]spec.Schema{
				"data": *spec.MapProperty(text),
			}}}, nil
		},
	}
	for expression, want := range map[string]string{
		"object.data.a == '1'":              "",
		"object.metadata.name == 'x'":       "",
		"object.spec == 'x'":                "undefined field 'spec'",
		"variables.a == 1":                  "found no matching overload for '_==_' applied to '(string, int)'",
		"params.data.size() > object.other": "undefined field 'other'",
	} {
		p := validatingPolicy("p", expression, params(registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}), func(p *vap) {
			p.Spec.Variables = []registrationv1.Variable{{Name: "a", Expression: "object.data.a"}}
			r := &p.Spec.MatchConstraints.ResourceRules[0]
			r.APIGroups, r.APIVersions, r.Resources = []string{""}, []string{"v1"}, []string{"pods/*", "configmaps"}
		})
		warnings := c.Check(p)
		switch {
		case want == "" && len(warnings) > 0:
			t.Errorf("%s: %v", expression, warnings)
		case want != "" && (len(warnings) != 1 || warnings[0].FieldRef != "spec.validations[0].expression" ||
			!strings.HasPrefix(warnings[0].Warning, "/v1, Kind=ConfigMap: ERROR: ") || !strings.Contains(warnings[0].Warning, want)):
			t.Errorf("%s: %v, want %s", expression, warnings, want)
		}
	}
}
