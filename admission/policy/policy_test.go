package policy

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
)

var ctx = context.Background()

func constraints(change ...func(*registrationv1.MatchResources)) *registrationv1.MatchResources {
	m := &registrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{}, MatchPolicy: new(registrationv1.Equivalent),
		ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: registrationv1.RuleWithOperations{
			Operations: []registrationv1.OperationType{"*"},
			Rule:       registrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}, Scope: new(registrationv1.AllScopes)},
		}}},
	}
	for _, c := range change {
		c(m)
	}
	return m
}

type vap = registrationv1.ValidatingAdmissionPolicy

func validatingPolicy(name, expression string, change ...func(*vap)) *vap {
	p := &vap{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: registrationv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: new(registrationv1.Fail), MatchConstraints: constraints(),
		Validations: []registrationv1.Validation{{Expression: expression}},
	}}
	for _, c := range change {
		c(p)
	}
	return p
}

func bind(policy string, change ...func(*registrationv1.ValidatingAdmissionPolicyBinding)) *registrationv1.ValidatingAdmissionPolicyBinding {
	b := &registrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy, ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny},
	}}
	for _, c := range change {
		c(b)
	}
	return b
}

func config(objects ...resource.Object) Config {
	source := &admissiontest.Source{}
	source.Set(objects...)
	catalog := admissiontest.Catalog()
	limits := admissiontest.ConfigMap("limits", "role=params")
	limits.Data["max"] = "3"
	return Config{
		Source: source, Catalog: func() *resource.Catalog { return catalog },
		Objects: admissiontest.Objects{
			"namespaces": {admissiontest.Namespace("default", "env=test")},
			"configmaps": {limits},
			"widgets":    {admissiontest.Widget("limit", 4)},
		},
		Authorizer: func(_ context.Context, c *expression.Check) (bool, string, error) {
			return c.User.Name == "jane" && c.Resource == "secrets" && c.Verb == "get", "", nil
		},
		Types: new(managedfields.Builtin).Type,
	}
}

func params(kind registrationv1.ParamKind) func(*vap) {
	return func(p *vap) { p.Spec.ParamKind = &kind }
}

func paramRef(r registrationv1.ParamRef) func(*registrationv1.ValidatingAdmissionPolicyBinding) {
	return func(b *registrationv1.ValidatingAdmissionPolicyBinding) {
		if r.ParameterNotFoundAction == nil {
			r.ParameterNotFoundAction = new(registrationv1.DenyAction)
		}
		b.Spec.ParamRef = &r
	}
}

func TestValidating(t *testing.T) {
	maps := registrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	widgets := registrationv1.ParamKind{APIVersion: "example.com/v1beta1", Kind: "Widget"}
	validation := func(v registrationv1.Validation) func(*vap) {
		return func(p *vap) { v.Expression = p.Spec.Validations[0].Expression; p.Spec.Validations[0] = v }
	}
	ignoring := func(p *vap) { p.Spec.FailurePolicy = new(registrationv1.Ignore) }
	for _, test := range []struct {
		name    string
		policy  *vap
		binding *registrationv1.ValidatingAdmissionPolicyBinding
		want    string // after "denied request: "; "" if it passes
		code    int32
	}{
		{name: "true", policy: validatingPolicy("p", "object.data.a == '1'")},
		{name: "false", policy: validatingPolicy("p", " object.data.a == '2' "), want: "failed expression: object.data.a == '2'"},
		{name: "message", policy: validatingPolicy("p", "false", validation(registrationv1.Validation{Message: " no "})), want: "no"},
		{name: "message expression", policy: validatingPolicy("p", "false", validation(registrationv1.Validation{Message: "no", MessageExpression: "'not ' + object.metadata.name"})), want: "not x"},
		{name: "bad message expression", policy: validatingPolicy("p", "false", validation(registrationv1.Validation{Message: "no", MessageExpression: "object.none"})), want: "no"},
		{name: "lines", policy: validatingPolicy("p", "false", validation(registrationv1.Validation{Message: "no", MessageExpression: "'a\\nb'"})), want: "no"},
		{name: "reason", policy: validatingPolicy("p", "false", validation(registrationv1.Validation{Message: "no", Reason: new(metav1.StatusReasonForbidden)})), want: "no", code: 403},
		{name: "error", policy: validatingPolicy("p", "object.data.none == 'x'"), want: "expression 'object.data.none == 'x'' resulted in error: no such key: none"},
		{name: "ignored error", policy: validatingPolicy("p", "object.data.none == 'x'", ignoring)},
		{name: "kind", policy: validatingPolicy("p", "object.kind == 'ConfigMap' && object.apiVersion == 'v1'")},
		{name: "absent", policy: validatingPolicy("p", "!has(object.binaryData) && oldObject == null && params == null", params(maps))},
		{name: "request", policy: validatingPolicy("p", "request.operation == 'CREATE' && request.resource.resource == 'configmaps' && request.namespace == 'default' && 'testers' in request.userInfo.groups && !request.dryRun && !has(request.subResource)")},
		{name: "namespace", policy: validatingPolicy("p", "namespaceObject.metadata.labels.env == 'test'")},
		{name: "authorizer", policy: validatingPolicy("p", "authorizer.group('').resource('secrets').namespace('default').check('get').allowed() && !authorizer.requestResource.check('delete').allowed()")},
		{name: "account", policy: validatingPolicy("p", "!authorizer.serviceAccount('a', 'b').group('').resource('secrets').check('get').allowed()")},
		{name: "variables", policy: validatingPolicy("p", "variables.b == '1!'", func(p *vap) {
			p.Spec.Variables = []registrationv1.Variable{{Name: "a", Expression: "object.data.a"}, {Name: "b", Expression: "variables.a + '!'"}, {Name: "never", Expression: "object.none"}}
		})},
		{name: "failing variable", policy: validatingPolicy("p", "variables.a == '1'", func(p *vap) {
			p.Spec.Variables = []registrationv1.Variable{{Name: "a", Expression: "object.none"}}
		}), want: `expression 'variables.a == '1'' resulted in error: composited variable "a" fails to evaluate: no such key: none`},
		{name: "conditions", policy: validatingPolicy("p", "false", func(p *vap) {
			p.Spec.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.name == 'y'"}, {Name: "b", Expression: "object.none"}}
		})},
		{name: "failing condition", policy: validatingPolicy("p", "true", func(p *vap) {
			p.Spec.MatchConditions = []registrationv1.MatchCondition{{Name: "b", Expression: "object.none == 1"}}
		}), want: "expression 'object.none == 1' resulted in error: no such key: none"},
		{name: "excluded", policy: validatingPolicy("p", "false", func(p *vap) {
			p.Spec.MatchConstraints.ExcludeResourceRules = constraints().ResourceRules
			p.Spec.MatchConstraints.ExcludeResourceRules[0].ResourceNames = []string{"x"}
		})},
		{name: "binding elsewhere", policy: validatingPolicy("p", "false"), binding: bind("p", func(b *registrationv1.ValidatingAdmissionPolicyBinding) {
			b.Spec.MatchResources = constraints(func(m *registrationv1.MatchResources) {
				m.NamespaceSelector.MatchLabels = map[string]string{"env": "prod"}
			})
		})},
		{name: "not bound", policy: validatingPolicy("p", "false"), binding: bind("q")},
		{name: "params", policy: validatingPolicy("p", "params.data.max == '3' && params.kind == 'ConfigMap'", params(maps)), binding: bind("p", paramRef(registrationv1.ParamRef{Name: "limits"}))},
		{name: "custom params", policy: validatingPolicy("p", "params.spec.width == 4 && params.apiVersion == 'example.com/v1beta1'", params(widgets)), binding: bind("p", paramRef(registrationv1.ParamRef{Name: "limit", Namespace: "default"}))},
		{name: "selected params", policy: validatingPolicy("p", "params.data.max != '3'", params(maps)), binding: bind("p", paramRef(registrationv1.ParamRef{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "params"}}})), want: "failed expression: params.data.max != '3'"},
		{name: "no params", policy: validatingPolicy("p", "true", params(maps)), binding: bind("p", paramRef(registrationv1.ParamRef{Name: "none"})), want: "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"},
		{name: "no params allowed", policy: validatingPolicy("p", "false", params(maps)), binding: bind("p", paramRef(registrationv1.ParamRef{Name: "none", ParameterNotFoundAction: new(registrationv1.AllowAction)}))},
		{name: "unknown params", policy: validatingPolicy("p", "true", params(registrationv1.ParamKind{APIVersion: "a/v1", Kind: "B"})), binding: bind("p", paramRef(registrationv1.ParamRef{Name: "none"})), want: "failed to configure policy: failed to find resource referenced by paramKind: 'a/v1, Kind=B'"},
		{name: "broken", policy: validatingPolicy("p", "nonsense"), want: "compilation error: compilation failed: ERROR: <input>:1:1: undeclared reference to 'nonsense' (in container '')\n | nonsense\n | ^"},
		{name: "dear", policy: validatingPolicy("p", "[1, 2, 3].all(i, authorizer.path('/').check('get').allowed() || true)"), want: "*actual cost limit exceeded"},
		{name: "annotation fails", policy: validatingPolicy("p", "true", func(p *vap) {
			p.Spec.AuditAnnotations = []registrationv1.AuditAnnotation{{Key: "k", ValueExpression: "string(object.none)"}}
		}), want: "expression 'string(object.none)' resulted in error: no such key: none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.binding == nil {
				test.binding = bind("p")
			}
			cfg := config(test.policy, test.binding)
			v := NewValidating(cfg)
			a := admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil)
			err := v.Validate(ctx, a)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if part, ok := strings.CutPrefix(test.want, "*"); ok {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v, want %s", err, part)
				}
				return
			}
			head := `configmaps "x" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: `
			if strings.HasPrefix(test.want, "failed to configure policy") {
				head = `configmaps "x" is forbidden: ValidatingAdmissionPolicy 'p' denied request: `
			}
			if err == nil || err.Error() != head+test.want {
				t.Fatalf("%v, want %s", err, head+test.want)
			}
			if test.code == 0 {
				test.code = 422
			}
			if code := err.(apierrors.APIStatus).Status().Code; code != test.code {
				t.Errorf("code %d", code)
			}
		})
	}
}

func TestActions(t *testing.T) {
	p := validatingPolicy("p", "false", func(p *vap) {
		p.Spec.Validations[0].Message = "no"
		p.Spec.AuditAnnotations = []registrationv1.AuditAnnotation{{Key: "k", ValueExpression: "'v ' + object.metadata.name"}, {Key: "none", ValueExpression: "null"}}
	})
	b := bind("p", func(b *registrationv1.ValidatingAdmissionPolicyBinding) {
		b.Spec.ValidationActions = []registrationv1.ValidationAction{registrationv1.Warn, registrationv1.Audit}
	})
	cfg := config(p, b)
	a := admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil)
	if err := NewValidating(cfg).Validate(ctx, a); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(a.Request.Warnings()); got != "[Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no]" {
		t.Error(got)
	}
	notes := a.Request.Audit.(*admissiontest.Notes)
	const want = `[{"message":"no","policy":"p","binding":"b","expressionIndex":0,"validationActions":["Warn","Audit"]}]`
	if got := notes.Get("validation.policy.admission.k8s.io/validation_failure"); got != want {
		t.Error(got)
	}
	if got := notes.Get("p/k"); got != "v x" {
		t.Error(got)
	}
}

func TestEquivalentVersion(t *testing.T) {
	p := validatingPolicy("p", "object.spec.width < 3 && request.kind.version == 'v1beta1' && request.requestKind.version == 'v1'", func(p *vap) {
		p.Spec.MatchConstraints.ResourceRules[0].APIVersions = []string{"v1beta1"}
	})
	cfg := config(p, bind("p"))
	v := NewValidating(cfg)
	for size, ok := range map[int64]bool{2: true, 3: false} {
		err := v.Validate(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "widgets", admissiontest.Widget("w", size), nil))
		if (err == nil) != ok {
			t.Errorf("%d: %v", size, err)
		}
	}
}

func TestDelete(t *testing.T) {
	cfg := config(validatingPolicy("p", "object == null && oldObject.metadata.name != 'keep'"), bind("p"))
	v := NewValidating(cfg)
	for name, ok := range map[string]bool{"keep": false, "go": true} {
		err := v.Validate(ctx, admissiontest.Write(cfg.Catalog(), admission.Delete, "v1", "configmaps", nil, admissiontest.ConfigMap(name)))
		if (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type mapolicy = registrationv1.MutatingAdmissionPolicy

func mutatingPolicy(name string, mutations ...string) *mapolicy {
	p := &mapolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: registrationv1.MutatingAdmissionPolicySpec{
		FailurePolicy: new(registrationv1.Fail), MatchConstraints: constraints(), ReinvocationPolicy: registrationv1.NeverReinvocationPolicy,
	}}
	for _, m := range mutations {
		if strings.HasPrefix(m, "[") {
			p.Spec.Mutations = append(p.Spec.Mutations, registrationv1.Mutation{PatchType: registrationv1.PatchTypeJSONPatch, JSONPatch: &registrationv1.JSONPatch{Expression: m}})
		} else {
			p.Spec.Mutations = append(p.Spec.Mutations, registrationv1.Mutation{PatchType: registrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &registrationv1.ApplyConfiguration{Expression: m}})
		}
	}
	return p
}

func bindMutating(policy string) *registrationv1.MutatingAdmissionPolicyBinding {
	return &registrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b-" + policy}, Spec: registrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy}}
}

func TestMutating(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy *mapolicy
		want   string // data
		err    string
	}{
		{name: "apply", policy: mutatingPolicy("p", `Object{data: {"b": object.data.a}}`), want: "map[a:1 b:1 default:set]"},
		{name: "patch", policy: mutatingPolicy("p", `[JSONPatch{op: "add", path: "/data/" + jsonpatch.escapeKey("b/c"), value: "2"}]`), want: "map[a:1 b/c:2 default:set]"},
		{name: "two", policy: mutatingPolicy("p", `[JSONPatch{op: "add", path: "/data/b", value: "2"}]`, `Object{data: {"c": object.data.b}}`), want: "map[a:1 b:2 c:2 default:set]"},
		{name: "test", policy: mutatingPolicy("p", `[JSONPatch{op: "test", path: "/data/a", value: "2"}, JSONPatch{op: "remove", path: "/data/a"}]`), want: "map[a:1]"},
		{name: "wrong type", policy: mutatingPolicy("p", `[JSONPatch{op: "add", path: "/data/b", value: 2}]`), err: "Internal error occurred: json: cannot unmarshal number into Go struct field ConfigMap.data of type string"},
		{name: "unknown field", policy: mutatingPolicy("p", `[JSONPatch{op: "add", path: "/nonsense", value: 2}]`), err: `Internal error occurred: strict decoding error: unknown field "nonsense"`},
		{name: "missing", policy: mutatingPolicy("p", `[JSONPatch{op: "remove", path: "/data/b"}]`), err: "policy 'p' with binding 'b-p' denied request: JSON Patch: error in remove for path: '/data/b': Unable to remove nonexistent key: b: missing value"},
		{name: "bad fields", policy: mutatingPolicy("p", `Object{nonsense: 1}`), err: "policy 'p' with binding 'b-p' denied request: error applying patch: failed to convert patch object to typed object: .nonsense: field not declared in schema"},
		{name: "bad names", policy: mutatingPolicy("p", `Object{metadata: Object.spec{labels: {"a": "b"}}}`), err: "policy 'p' with binding 'b-p' denied request: type mismatch: unexpected type name \"Object.spec\", expected \"Object.metadata\", which matches field name path from root Object type"},
		{name: "evaluation", policy: mutatingPolicy("p", `Object{data: {"b": object.none}}`), err: "policy 'p' with binding 'b-p' denied request: expression 'Object{data: {\"b\": object.none}}' resulted in error: no such key: none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := config(test.policy, bindMutating("p"))
			obj := admissiontest.ConfigMap("x")
			err := admission.NewChain(NewMutating(cfg)).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", obj, nil))
			switch {
			case test.err == "" && err != nil, test.err != "" && (err == nil || err.Error() != test.err):
				t.Errorf("%v, want %s", err, test.err)
			case test.err == "" && fmt.Sprint(obj.Data) != test.want:
				t.Errorf("%v, want %s", obj.Data, test.want)
			}
			if strings.HasPrefix(test.err, "policy") {
				test.policy.Spec.FailurePolicy = new(registrationv1.Ignore)
				cfg := config(test.policy, bindMutating("p"))
				if err := NewMutating(cfg).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", obj, nil)); err != nil {
					t.Errorf("ignored: %v", err)
				}
			}
		})
	}
}

// TestMutatingWithPartsOfTheObject wants structs and lists of the object to be values of patches, also
// joined with what the expression makes.
func TestMutatingWithPartsOfTheObject(t *testing.T) {
	const another = `Object.metadata.ownerReferences{apiVersion: "v1", kind: "Pod", name: "b", uid: "2"}`
	patch := func(value string) string {
		return `[JSONPatch{op: "add", path: "/metadata/ownerReferences", value: ` + value + `}]`
	}
	for expression, want := range map[string]string{
		patch("object.metadata.ownerReferences"):                                              "a",
		patch("[object.metadata.ownerReferences[0]]"):                                         "a",
		patch("object.metadata.ownerReferences + [" + another + "]"):                          "ab",
		patch("[" + another + "] + object.metadata.ownerReferences"):                          "ba",
		patch("object.metadata.ownerReferences.filter(r, r.name != 'a')"):                     "",
		patch("oldObject == null ? object.metadata.ownerReferences : [1]"):                    "a",
		"Object{metadata: Object.metadata{finalizers: object.metadata.finalizers + ['x/b']}}": "a x/a x/b",
	} {
		cfg := config(mutatingPolicy("p", expression), bindMutating("p"))
		obj := admissiontest.ConfigMap("x")
		obj.Finalizers = []string{"x/a"}
		obj.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "a", UID: "1"}}
		if err := admission.NewChain(NewMutating(cfg)).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", obj, nil)); err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		got := ""
		for _, owner := range obj.OwnerReferences {
			got += owner.Name
		}
		for _, name := range obj.Finalizers[1:] {
			got += " x/a " + name
		}
		if got != want {
			t.Errorf("%s: got the owners and finalizers %q, want %q", expression, got, want)
		}
	}
}

// TestReinvocation has a policy that wants to see what later ones change.
func TestReinvocation(t *testing.T) {
	count := func(p string) *mapolicy {
		return mutatingPolicy(p, `Object{data: {"seen": string(size(object.data))}}`)
	}
	for _, again := range []bool{false, true} {
		first, second := count("1"), mutatingPolicy("2", `Object{data: {"b": "2"}}`)
		if again {
			first.Spec.ReinvocationPolicy = registrationv1.IfNeededReinvocationPolicy
		}
		cfg := config(first, second, bindMutating("1"), bindMutating("2"))
		obj := admissiontest.ConfigMap("x")
		if err := admission.NewChain(NewMutating(cfg)).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", obj, nil)); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{false: "1", true: "4"}[again]; obj.Data["seen"] != want {
			t.Errorf("again %v: %v", again, obj.Data)
		}
	}
}

func TestMutatingWidget(t *testing.T) {
	types := func(kind schema.GroupVersionKind) (typed.ParseableType, bool) {
		return typed.DeducedParseableType, true
	}
	p := mutatingPolicy("p", `Object{spec: Object.spec{width: 9}}`)
	p.Spec.MatchConstraints.ResourceRules[0].APIVersions = []string{"v1beta1"}
	cfg := config(p, bindMutating("p"))
	cfg.Types = types
	obj := admissiontest.Widget("w", 5)
	if err := NewMutating(cfg).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "widgets", obj, nil)); err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedInt64(obj.Object, "spec", "size"); size != 9 {
		t.Error(obj.Object)
	}
	cfg = config(p, bindMutating("p"))
	cfg.Types = nil
	err := NewMutating(cfg).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "widgets", obj, nil))
	if !apierrors.IsServiceUnavailable(err) {
		t.Error(err)
	}
}

// cpu returns the time that the process has had a processor for.
func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkHundred has a hundred policies that are not about the write: about
// another resource, another namespace, or under other conditions.
func BenchmarkHundred(b *testing.B) {
	for name, change := range map[string]func(*vap){
		"resource":  func(p *vap) { p.Spec.MatchConstraints.ResourceRules[0].Resources = []string{"widgets"} },
		"namespace": func(p *vap) { p.Spec.MatchConstraints.NamespaceSelector.MatchLabels = map[string]string{"env": "prod"} },
		"object":    func(p *vap) { p.Spec.MatchConstraints.ObjectSelector.MatchLabels = map[string]string{"env": "prod"} },
		"condition": func(p *vap) {
			p.Spec.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: fmt.Sprintf("object.metadata.name == '%s'", p.Name)}}
		},
		"guarded": func(p *vap) {
			p.Spec.MatchConditions = []registrationv1.MatchCondition{{Name: "a", Expression: "has(object.metadata.labels) && object.metadata.labels['a'] in ['x', 'y'] && request.userInfo.username != 'z'"}}
		},
		"holds": func(p *vap) {},
	} {
		b.Run(name, func(b *testing.B) {
			var objects []resource.Object
			for i := range 100 {
				n := fmt.Sprintf("p%d", i)
				binding := bind(n)
				binding.Name = n
				objects = append(objects, validatingPolicy(n, "object.data.a == '1'", change), binding)
			}
			cfg := config(objects...)
			v := NewValidating(cfg)
			a := admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", admissiontest.ConfigMap("x"), nil)
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				if err := v.Validate(ctx, a); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// TestReinvoked checks that a policy that wants it is asked once more after it has
// changed the object itself.
func TestReinvoked(t *testing.T) {
	for policy, want := range map[registrationv1.ReinvocationPolicyType]string{
		registrationv1.IfNeededReinvocationPolicy: "2", registrationv1.NeverReinvocationPolicy: "1",
	} {
		p := mutatingPolicy("p", `Object{data: {'size': string(object.data.size())}}`)
		p.Spec.ReinvocationPolicy = policy
		p.Spec.MatchConstraints.ResourceRules[0].APIVersions = []string{"*"}
		cfg := config(p, bindMutating("p"))
		cfg.Types = func(schema.GroupVersionKind) (typed.ParseableType, bool) { return typed.DeducedParseableType, true }
		obj := admissiontest.ConfigMap("x")
		obj.Data = map[string]string{"default": "set"}
		if err := admission.NewChain(NewMutating(cfg)).Admit(ctx, admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "configmaps", obj, nil)); err != nil {
			t.Fatal(err)
		}
		if obj.Data["size"] != want {
			t.Errorf("%s: %v", policy, obj.Data)
		}
	}
}
