package admissionregistration

import (
	"context"
	"errors"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

func fields(errs field.ErrorList) []string {
	var out []string
	for _, err := range errs {
		out = append(out, err.Field)
	}
	return out
}

func TestResources(t *testing.T) {
	for _, test := range []struct {
		resources []string
		want      []string
	}{
		{[]string{"pods", "pods/status"}, nil},
		{[]string{"*", "pods/status"}, nil},
		{[]string{"*", "*/status"}, nil},
		{nil, []string{"r"}},
		{[]string{""}, []string{"r[0]"}},
		{[]string{"*", "pods"}, []string{"r"}},
		{[]string{"pods", "*"}, nil}, // kube-apiserver only looks at the last one
		{[]string{"pods/*", "pods/status"}, []string{"r[1]"}},
		{[]string{"*/status", "pods/status"}, []string{"r[1]"}},
		{[]string{"*/*", "pods"}, []string{"r"}},
	} {
		if got := fields(validateResources(test.resources, field.NewPath("r"))); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.resources, got, test.want)
		}
	}
}

func TestParamKind(t *testing.T) {
	for apiVersion, ok := range map[string]bool{
		"v1": true, "apps/v1": true, "/v1": true, "": false, "/": false, "apps/": false, "a/b/c": false, "Apps/v1": false, "apps/V1": false,
	} {
		errs := validateParamKind(&admissionv1.ParamKind{APIVersion: apiVersion, Kind: "ConfigMap"}, nil)
		if (len(errs) == 0) != ok {
			t.Errorf("%q: %v", apiVersion, errs)
		}
	}
}

// TestLeniency wants what was wrong before to be allowed to stay.
func TestLeniency(t *testing.T) {
	hooks := func(names ...string) []hook {
		var out []hook
		for _, name := range names {
			out = append(out, hook{
				Name: name, SideEffects: new(admissionv1.SideEffectClassSome), AdmissionReviewVersions: []string{"v9"},
				ClientConfig:    admissionv1.WebhookClientConfig{URL: new("https://example.com")},
				MatchConditions: []admissionv1.MatchCondition{{Name: "x", Expression: "nonsense"}},
			})
		}
		return out
	}
	env := new(policycel.Environment)
	twice := hooks("a.example.com", "a.example.com")
	want := []string{
		"webhooks[0].sideEffects", "webhooks[0].matchConditions[0].expression", "webhooks[0].admissionReviewVersions",
		"webhooks[1].sideEffects", "webhooks[1].matchConditions[0].expression", "webhooks[1].admissionReviewVersions", "webhooks[1].name",
	}
	if got := fields(validateWebhooks(t.Context(), twice, nil, env)); !slices.Equal(got, want) {
		t.Errorf("on create: %q", got)
	}
	if got := fields(validateWebhooks(t.Context(), twice, &twice, env)); got != nil {
		t.Errorf("on update: %q", got)
	}
	changed := hooks("a.example.com", "a.example.com")
	changed[1].MatchConditions[0].Expression = "other"
	if got := fields(validateWebhooks(t.Context(), changed, &twice, env)); len(got) != 2 {
		t.Errorf("on update of a condition: %q", got)
	}
}

// TestParams wants to be asked about parameters when they come in, if nothing
// else is wrong.
func TestParams(t *testing.T) {
	refused := errors.New("no")
	d := ValidatingPolicies(Config{Expressions: new(policycel.Environment), Params: func(context.Context, resource.Object) error { return refused }})
	policy := func(change func(*validatingPolicy)) *validatingPolicy {
		p := &validatingPolicy{}
		p.Name = "x"
		p.Spec.ParamKind = &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
		p.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"*"},
			Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
		p.Spec.Validations = []admissionv1.Validation{{Expression: "object.x == params.x"}}
		change(p)
		d.Versions[0].Default(p)
		return p
	}
	p := policy(func(*validatingPolicy) {})
	ctx := context.Background()
	if got := fields(d.Strategy.Validate(ctx, p)); !slices.Equal(got, []string{"spec.paramKind"}) {
		t.Errorf("create: %q", got)
	}
	if got := fields(d.Strategy.ValidateUpdate(ctx, p, p)); got != nil {
		t.Errorf("update: %q", got)
	}
	without := policy(func(p *validatingPolicy) { p.Spec.ParamKind = nil })
	if got := fields(d.Strategy.Validate(ctx, without)); !slices.Equal(got, []string{"spec.validations[0].expression"}) {
		t.Errorf("without: %q", got)
	}
}
