// Package policy implements ValidatingAdmissionPolicy and MutatingAdmissionPolicy. Start at
// Config and the plugins Validating and Mutating; policy.go has what both share. Policies are
// compiled once, when a write first reaches them. A write that no policy matches costs one
// lookup in an index; policies must never be evaluated for it.
package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the plugins.
type Config struct {
	// Source has the policies and bindings of the plugin. Required.
	Source resource.Follower
	// Manifests returns policies and bindings from static manifests, which are applied
	// first; nil if there are none.
	Manifests func() *admission.Manifests
	// Objects reads namespaces and parameters. Required.
	Objects admission.Objects
	// Catalog resolves paramKind. Required.
	Catalog func() *resource.Catalog
	// Authorizer answers authorization checks of expressions; nil denies everything.
	Authorizer expression.Authorizer
	// Types returns the schema type of a kind, for apply configurations; false for an
	// unknown kind.
	Types func(kind schema.GroupVersionKind) (typed.ParseableType, bool)
	// Expressions compiles CEL; nil creates an environment for this plugin.
	Expressions *policycel.Environment
	// Metrics may be nil.
	Metrics admission.Metrics

	none []runtime.Object // a single nil parameter
}

func (c *Config) complete() {
	c.none = []runtime.Object{nil}
	if c.Authorizer == nil {
		c.Authorizer = func(context.Context, *expression.Check) (bool, string, error) { return false, "", nil }
	}
	if c.Expressions == nil {
		c.Expressions = new(policycel.Environment)
	}
	if c.Types == nil {
		c.Types = func(schema.GroupVersionKind) (typed.ParseableType, bool) { return typed.ParseableType{}, false }
	}
}

// handles excludes writes that a policy must not be able to block: policies and bindings,
// except for policies from manifests, and access reviews.
func (c *Config) handles(t admission.Target) bool {
	switch t.Group {
	case registrationv1.GroupName:
		return c.Manifests != nil || !isPolicy(t.Resource)
	case "authentication.k8s.io", "authorization.k8s.io":
		return false
	}
	return true
}

// isPolicy reports whether a resource is of policies or bindings.
func isPolicy(name string) bool {
	return slices.Contains([]string{
		"validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
	}, name)
}

// newIndex makes an index of policies by what they match.
func newIndex[P conditional](hooks []*hook[P]) *match.Index[*hook[P]] {
	return match.NewIndex(hooks, func(h *hook[P]) *match.Criteria { return h.criteria }, func(h *hook[P]) match.Needs {
		if !h.simple {
			return match.Needs{}
		}
		conditions := h.compiled().matchConditions()
		return match.Needs{All: conditions.Needs(), Excluded: func(op admission.Operation, n int) {
			conditions.Excluded(op, n*len(h.bindings)) // each binding counts
		}}
	})
}

// candidates returns the policies that may match a write.
func candidates[P conditional](index *match.Index[*hook[P]], w *match.Write) *match.Found[*hook[P]] {
	found := index.For(w)
	if gr := w.GroupResource(); gr.Group == registrationv1.GroupName && isPolicy(gr.Resource) {
		return found.Only(func(h *hook[P]) bool { return h.manifest })
	}
	return found
}

// binding binds a policy.
type binding struct {
	name     string
	criteria *match.Criteria // nil: no further restriction
	params   *registrationv1.ParamRef
	actions  []registrationv1.ValidationAction
}

func newBinding(name string, m *registrationv1.MatchResources, params *registrationv1.ParamRef, actions []registrationv1.ValidationAction) *binding {
	b := &binding{name: name, params: params, actions: actions}
	if m != nil {
		b.criteria = match.ForPolicy(m)
	}
	return b
}

func (b *binding) match(ctx context.Context, w *match.Write) (bool, error) {
	if b.criteria == nil {
		return true, nil
	}
	form, err := b.criteria.Match(ctx, w)
	return form != nil, err
}

// hook is a policy of either kind with its bindings.
type hook[P conditional] struct {
	name     string
	criteria *match.Criteria
	params   *registrationv1.ParamKind
	ignore   bool // failurePolicy is Ignore
	manifest bool // from a static manifest
	bindings []*binding
	// compiled returns the expressions, compiled on first use.
	compiled func() P
	// simple: no params and no criteria of bindings, so the conditions decide alone.
	simple bool
}

// conditional is the compiled expressions of a policy of either kind.
type conditional interface{ matchConditions() *expression.Conditions }

// bind sets the bindings of a policy.
func (h *hook[P]) bind(bindings []*binding) {
	h.bindings = bindings
	h.simple = h.params == nil && !slices.ContainsFunc(bindings, func(b *binding) bool { return b.criteria != nil || b.params != nil })
}

// excluded reports whether the conditions of a policy that matches the write are surely
// false.
func excluded[P conditional](ctx context.Context, w *match.Write, h *hook[P], form *match.Form) bool {
	if !h.simple {
		return false
	}
	conditions := h.compiled().matchConditions()
	for range h.bindings { // each binding counts
		if !conditions.Excludes(ctx, w, form) {
			return false
		}
	}
	return true
}

func newHook[P conditional](name string, m *registrationv1.MatchResources, params *registrationv1.ParamKind, failure *registrationv1.FailurePolicyType, compile func() P) *hook[P] {
	if m == nil {
		m = &registrationv1.MatchResources{}
	}
	return &hook[P]{
		name: name, criteria: match.ForPolicy(m), params: params,
		ignore: failure != nil && *failure == registrationv1.Ignore, compiled: compile,
	}
}

// invocations calls each for every binding that matches a write, in the order of policies
// and bindings, with the parameters. While early returns true, no policy can have changed the
// object yet, and policies whose conditions are false are skipped. fail is called with errors about
// which the failurePolicy decides.
func invocations[P conditional](ctx context.Context, cfg *Config, w *match.Write, found *match.Found[*hook[P]], early func() bool, fail func(*hook[P], *binding, error), each func(*hook[P], *binding, *match.Form, []runtime.Object) error) error {
	failed := func(h *hook[P], b *binding, err error) error {
		w.InterruptIfBusy(err)
		if err := w.Interrupted(ctx); err != nil {
			return err
		}
		fail(h, b, err)
		return nil
	}
	sieve, passed := found.Sieve(w), false
	for i := range found.Candidates {
		c := &found.Candidates[i]
		h := c.Item
		skip := early() && sieve.Excludes(i)
		var form *match.Form
		if !skip {
			var err error
			if form, err = c.Match(ctx, w); err != nil {
				if err := failed(h, nil, err); err != nil {
					return err
				}
				continue
			}
			if form == nil {
				continue
			}
			skip = early() && excluded(ctx, w, h, form)
		}
		if skip {
			if !passed { // expressions need the namespace
				if _, err := w.NamespaceObject(ctx); err != nil {
					return err
				}
				passed = true
			}
			continue
		}
		served, err := cfg.paramKind(h.params)
		if err != nil {
			fail(h, nil, err)
			continue
		}
		for _, b := range h.bindings {
			ok, err := b.match(ctx, w)
			var params []runtime.Object
			if ok {
				params, err = cfg.collect(ctx, served, b.params, w.Namespace)
			}
			switch {
			case err != nil:
				err = failed(h, b, err)
			case ok:
				err = each(h, b, form, params)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// paramKind returns the resource of a paramKind; nil for nil.
func (c *Config) paramKind(k *registrationv1.ParamKind) (*resource.Served, error) {
	if k == nil {
		return nil, nil
	}
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("failed to parse apiVersion of paramKind '%v' with error: %w", k, err)
	}
	kind := gv.WithKind(k.Kind)
	served, ok := c.Catalog().LookupKind(kind)
	if !ok {
		return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", kind)
	}
	return served, nil
}

// collect returns the parameters that a binding refers to: a single nil if there is no
// paramRef, and nothing if they are missing and parameterNotFoundAction is Allow.
func (c *Config) collect(ctx context.Context, served *resource.Served, r *registrationv1.ParamRef, namespace string) ([]runtime.Object, error) {
	if served == nil || r == nil {
		return c.none, nil
	}
	def := served.Definition
	switch {
	case !def.Namespaced && r.Namespace != "":
		return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case !def.Namespaced:
		namespace = ""
	case r.Namespace != "":
		namespace = r.Namespace
	case namespace == "":
		return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	}
	found, err := c.find(ctx, served, r, namespace)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 && r.ParameterNotFoundAction != nil && *r.ParameterNotFoundAction == registrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	var params []runtime.Object
	for _, obj := range found {
		if served.Version.FromHub != nil && !served.IsHub() {
			if obj, err = served.Version.FromHub(obj); err != nil {
				return nil, err
			}
		}
		params = append(params, match.WithKind(obj, served.GroupVersionKind()))
	}
	return params, nil
}

func (c *Config) find(ctx context.Context, served *resource.Served, r *registrationv1.ParamRef, namespace string) ([]resource.Object, error) {
	def := served.Definition
	if r.Name != "" {
		obj, err := c.Objects.Get(ctx, def.Group, def.Resource, namespace, r.Name)
		if apierrors.IsNotFound(err) {
			// The watch cache may not have it yet.
			obj, err = c.Objects.GetNewest(ctx, def.Group, def.Resource, namespace, r.Name)
		}
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return []resource.Object{obj}, err
	}
	if r.Selector == nil {
		return nil, errors.New("one of name or selector must be provided")
	}
	selector, err := metav1.LabelSelectorAsSelector(r.Selector)
	if err != nil {
		return nil, err
	}
	all, err := c.Objects.List(ctx, def.Group, def.Resource, namespace)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(obj resource.Object) bool {
		return !selector.Matches(labels.Set(obj.GetLabels()))
	}), nil
}

// composed returns a compiler that knows the variables of a policy, and the variables.
func (c *Config) composed(variables []registrationv1.Variable, vars policycel.Variables) (*policycel.Compiler, *expression.Variables) {
	if len(variables) == 0 {
		return c.Expressions.Compiler(), nil
	}
	compiler := c.Expressions.Composed()
	return compiler, expression.Define(compiler, variables, vars)
}

// once caches the compilation of policies while the set of policies changes. It is used by
// one goroutine at a time.
type once[P comparable, C any] struct{ last, next map[P]func() C }

// turn drops the policies that were not used since the last turn.
func (o *once[P, C]) turn() { o.last, o.next = o.next, map[P]func() C{} }

// of returns a function that compiles a policy on the first call.
func (o *once[P, C]) of(p P, compile func(P) C) func() C {
	f, ok := o.last[p]
	if !ok {
		f = sync.OnceValue(func() C { return compile(p) })
	}
	o.next[p] = f
	return f
}
