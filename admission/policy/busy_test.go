package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/admissiontest"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/resource"
)

// busyObjects are stored objects; busy is called with the resource before one is read.
type busyObjects struct {
	admissiontest.Objects
	busy func(resource string) error
}

func (o busyObjects) Get(ctx context.Context, group, name, namespace, object string) (resource.Object, error) {
	if err := o.busy(name); err != nil {
		return nil, err
	}
	return o.Objects.Get(ctx, group, name, namespace, object)
}

// busyMemory is an admission.Memory; busy is called with "memory" before an object is decoded.
type busyMemory struct{ busy func(of string) error }

func (busyMemory) HoldPatch(int64) error      { return nil }
func (busyMemory) HoldAnswer(int64) error     { return nil }
func (m busyMemory) HoldDecoded([]byte) error { return m.busy("memory") }
func (busyMemory) Settle(bool)                {}

// busyCase is a policy for widgets, and what the server is short of memory for when a widget is written.
type busyCase struct {
	name string
	// mutations are those of a MutatingAdmissionPolicy; without any it is a ValidatingAdmissionPolicy
	// that denies everything.
	mutations  []string
	conditions string // the only condition, if any
	params     bool
	// version is that of the rules; widgets are written in v1. selector and bindingSelector have the policy
	// and its binding select namespaces.
	version                   string
	selector, bindingSelector bool
	// of is what memory is asked for: "conversion" of a widget, "memory" to decode one, or the resource
	// of a stored object. There is none at the time of the index at.
	of string
	at int
}

func (c *busyCase) plugin(cfg func(...resource.Object) Config, failure registrationv1.FailurePolicyType) (admission.Plugin, Config) {
	selecting := func(m *registrationv1.MatchResources) {
		m.NamespaceSelector.MatchLabels = map[string]string{"env": "test"}
	}
	match := constraints(func(m *registrationv1.MatchResources) {
		m.ResourceRules[0].APIVersions = []string{c.version}
		if c.selector {
			selecting(m)
		}
	})
	var bound *registrationv1.MatchResources
	if c.bindingSelector {
		bound = constraints(selecting)
	}
	var conditions []registrationv1.MatchCondition
	if c.conditions != "" {
		conditions = []registrationv1.MatchCondition{{Name: "c", Expression: c.conditions}}
	}
	var kind *registrationv1.ParamKind
	var ref *registrationv1.ParamRef
	if c.params {
		kind = &registrationv1.ParamKind{APIVersion: "example.com/v1beta1", Kind: "Widget"}
		ref = &registrationv1.ParamRef{Name: "limit", Namespace: "default", ParameterNotFoundAction: new(registrationv1.DenyAction)}
	}
	if len(c.mutations) > 0 {
		p, b := mutatingPolicy("p", c.mutations...), bindMutating("p")
		p.Spec.FailurePolicy, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.ParamKind = &failure, match, conditions, kind
		b.Spec.MatchResources, b.Spec.ParamRef = bound, ref
		with := cfg(p, b)
		return NewMutating(with), with
	}
	p, b := validatingPolicy("p", "false"), bind("p")
	p.Spec.FailurePolicy, p.Spec.MatchConstraints, p.Spec.MatchConditions, p.Spec.ParamKind = &failure, match, conditions, kind
	b.Spec.MatchResources, b.Spec.ParamRef = bound, ref
	b.Spec.ValidationActions = []registrationv1.ValidationAction{registrationv1.Deny, registrationv1.Audit}
	with := cfg(p, b)
	return NewValidating(with), with
}

// TestShortMemoryIsNoFaultOfAPolicy: when the server is short of memory for what a policy has to know,
// the write is refused with budget.ErrBusy whatever the failurePolicy is, and the policy is not blamed.
// It is short once: what is tried again succeeds.
func TestShortMemoryIsNoFaultOfAPolicy(t *testing.T) {
	const beta = "v1beta1"
	apply, patch := `Object{spec: Object.spec{width: 9}}`, `[JSONPatch{op: "replace", path: "/spec/width", value: 9}]`
	var cases []busyCase
	for _, kind := range []struct {
		name      string
		mutations []string
	}{{"validating", nil}, {"mutating", []string{`Object{spec: Object.spec{size: 9, width: 9}}`}}} {
		for _, c := range []busyCase{
			{name: "the object", version: beta, of: "conversion"},
			{name: "a condition", version: beta, of: "conversion", conditions: "object.spec.width + 1 > 0"},
			{name: "a quick condition", version: beta, of: "conversion", conditions: "object.spec.width > 1"},
			{name: "a needed value", version: beta, of: "conversion", conditions: "object.metadata.name == 'w'"},
			{name: "a parameter", version: "v1", of: "conversion", params: true},
			{name: "a stored parameter", version: "v1", of: "widgets", params: true},
			{name: "the namespace", version: "v1", of: "namespaces"},
			{name: "the namespace of a selector", version: "v1", of: "namespaces", selector: true},
			{name: "the namespace of a binding", version: "v1", of: "namespaces", bindingSelector: true},
		} {
			c.name, c.mutations = kind.name+": "+c.name, kind.mutations
			cases = append(cases, c)
		}
	}
	cases = append(cases,
		busyCase{name: "mutating: the changed object", mutations: []string{apply}, version: beta, of: "conversion", at: 1},
		busyCase{name: "mutating: the second patch", mutations: []string{apply, patch}, version: beta, of: "conversion", at: 2},
		busyCase{name: "mutating: decoding", mutations: []string{patch}, version: beta, of: "memory"},
	)
	for _, c := range cases {
		for _, failure := range []registrationv1.FailurePolicyType{registrationv1.Ignore, registrationv1.Fail} {
			t.Run(fmt.Sprintf("%s, %s", c.name, failure), func(t *testing.T) {
				counts, notes := &admissiontest.Counts{}, &admissiontest.Notes{}
				try := func(short bool) (changed bool, err error) {
					times := 0
					busy := func(of string) error {
						if of != c.of {
							return nil
						}
						if times++; short && times == c.at+1 {
							return fmt.Errorf("who asks: %w", budget.ErrBusy)
						}
						return nil
					}
					plugin, cfg := c.plugin(func(objects ...resource.Object) Config {
						cfg := config(objects...)
						cfg.Objects = busyObjects{cfg.Objects.(admissiontest.Objects), busy}
						cfg.Types = func(schema.GroupVersionKind) (typed.ParseableType, bool) { return typed.DeducedParseableType, true }
						if short {
							cfg.Metrics = counts
						}
						return cfg
					}, failure)
					admissiontest.OnConversion(cfg.Catalog(), func() error { return busy("conversion") })
					obj := admissiontest.Widget("w", 5)
					a := admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "widgets", obj, nil)
					a.Memory = busyMemory{busy}
					if short {
						a.Request.Audit = notes
					}
					chain := admission.NewChain(plugin)
					if err = chain.Admit(ctx, a); err == nil {
						err = chain.Validate(ctx, a)
					}
					size, _, _ := unstructured.NestedInt64(obj.Object, "spec", "size")
					return size != 5, err
				}
				changed, err := try(false)
				if applied := changed && err == nil || !changed && apierrors.IsInvalid(err); !applied {
					t.Fatalf("with memory: changed %v, %v, so the policy does not apply", changed, err)
				}
				if _, err = try(true); !errors.Is(err, budget.ErrBusy) {
					t.Fatalf("got %v, want budget.ErrBusy", err)
				}
				if text := err.Error(); strings.Contains(text, "policy") || strings.Contains(text, "denied") || strings.Contains(text, "failed") {
					t.Errorf("the policy is blamed: %s", text)
				}
				if n := counts.Of(admission.ValidatingChecks, admission.ConditionErrors, admission.ConditionExclusions); n != 0 {
					t.Errorf("%d failures of the policy are counted", n)
				}
				patched := c.at / 2 // the object is converted before and after each patch
				if n := counts.Of(admission.MutatingChecks); n != patched {
					t.Errorf("%d patches are counted, want %d", n, patched)
				}
				if note := notes.Get("validation.policy.admission.k8s.io/validation_failure"); note != "" {
					t.Errorf("the audit is told of a failure: %s", note)
				}
			})
		}
	}
}

// TestAPolicyIsNotAskedWithoutAClient: an expression that is interrupted because the client has gone is
// no failure that failurePolicy Ignore ignores.
func TestAPolicyIsNotAskedWithoutAClient(t *testing.T) {
	gone, cancel := context.WithCancel(ctx)
	cancel()
	p := validatingPolicy("p", "object.spec.list.all(i, i * i >= 0)", func(p *vap) { p.Spec.FailurePolicy = new(registrationv1.Ignore) })
	cfg := config(p, bind("p"))
	obj := admissiontest.Widget("w", 5)
	obj.Object["spec"] = map[string]any{"list": slices.Repeat([]any{int64(1)}, 5000)}
	a := admissiontest.Write(cfg.Catalog(), admission.Create, "v1", "widgets", obj, nil)
	if err := NewValidating(cfg).Validate(gone, a); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
