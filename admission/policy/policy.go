// Package policy applies admission policies: expressions that judge writes
// (ValidatingAdmissionPolicy) or change them (MutatingAdmissionPolicy), put into
// force by bindings.
//
// Policies are compiled when a write first reaches them, and once. A write that
// no policy is about costs a look into an index.
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

// Config is what policies need from outside.
type Config struct {
	// Source tells of the policies and the bindings of a plugin. Required.
	Source resource.Follower
	// Manifests returns the policies and bindings that come from files, which are
	// applied first; nil if there never are any.
	Manifests func() *admission.Manifests
	// Objects are namespaces and parameters. Required.
	Objects admission.Objects
	// Catalog finds the kinds of parameters. Required.
	Catalog func() *resource.Catalog
	// Authorizer answers the questions of expressions; without one everything is
	// denied.
	Authorizer expression.Authorizer
	// Types of kinds, for changes that are apply configurations; it says false for
	// a kind that it does not know.
	Types func(kind schema.GroupVersionKind) (typed.ParseableType, bool)
	// Expressions compiles; the default is an environment of the plugin's own.
	Expressions *policycel.Environment
	// Metrics measures; nil does not.
	Metrics admission.Metrics

	none []runtime.Object // no parameters, which is one set of them
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

// handles leaves alone what must not be locked up by a policy: policies, unless
// it comes from a file, and the questions by which a cluster finds out who may do
// what.
func (c *Config) handles(t admission.Target) bool {
	switch t.Group {
	case registrationv1.GroupName:
		return c.Manifests != nil || !isPolicy(t.Resource)
	case "authentication.k8s.io", "authorization.k8s.io":
		return false
	}
	return true
}

// isPolicy reports whether a resource of the group is of policies.
func isPolicy(name string) bool {
	return slices.Contains([]string{
		"validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
	}, name)
}

// newIndex makes an index of policies.
func newIndex[P conditional](hooks []*hook[P]) *match.Index[*hook[P]] {
	return match.NewIndex(hooks, func(h *hook[P]) *match.Criteria { return h.criteria }, func(h *hook[P]) match.Needs {
		if !h.simple {
			return match.Needs{}
		}
		conditions := h.compiled().matchConditions()
		return match.Needs{All: conditions.Needs(), Excluded: func(op admission.Operation, n int) {
			conditions.Excluded(op, n*len(h.bindings)) // each counts
		}}
	})
}

// candidates returns the policies that may be about a write.
func candidates[P conditional](index *match.Index[*hook[P]], w *match.Write) *match.Found[*hook[P]] {
	found := index.For(w)
	if gr := w.GroupResource(); gr.Group == registrationv1.GroupName && isPolicy(gr.Resource) {
		return found.Only(func(h *hook[P]) bool { return h.manifest })
	}
	return found
}

// binding puts a policy into force.
type binding struct {
	name     string
	criteria *match.Criteria // nil: whatever the policy is about
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

// hook is a policy of either kind with what is bound to it.
type hook[P conditional] struct {
	name     string
	criteria *match.Criteria
	params   *registrationv1.ParamKind
	ignore   bool // failures
	manifest bool // from a file
	bindings []*binding
	// compiled returns the expressions.
	compiled func() P
	// simple: the conditions alone tell whether it is applied.
	simple bool
}

// conditional is the expressions of a policy of either kind.
type conditional interface{ matchConditions() *expression.Conditions }

// bind gives a policy its bindings.
func (h *hook[P]) bind(bindings []*binding) {
	h.bindings = bindings
	h.simple = h.params == nil && !slices.ContainsFunc(bindings, func(b *binding) bool { return b.criteria != nil || b.params != nil })
}

// excluded reports whether the conditions of a policy, which is about the write,
// are known not to be met.
func excluded[P conditional](ctx context.Context, w *match.Write, h *hook[P], form *match.Form) bool {
	if !h.simple {
		return false
	}
	conditions := h.compiled().matchConditions()
	for range h.bindings { // each counts
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

// invocations finds out what is to be applied to a write, in the order of the
// policies and their bindings. each is called for every binding that matches,
// with the parameters. While early says so, nothing can change the object before
// a policy is applied: those whose conditions are not met are passed over.
func invocations[P conditional](ctx context.Context, cfg *Config, w *match.Write, found *match.Found[*hook[P]], early func() bool, fail func(*hook[P], *binding, error), each func(*hook[P], *binding, *match.Form, []runtime.Object) error) error {
	sieve, passed := found.Sieve(w), false
	for i := range found.Candidates {
		c := &found.Candidates[i]
		h := c.Item
		skip := early() && sieve.Excludes(i)
		var form *match.Form
		if !skip {
			var err error
			if form, err = c.Match(ctx, w); err != nil {
				fail(h, nil, err)
				continue
			}
			if form == nil {
				continue
			}
			skip = early() && excluded(ctx, w, h, form)
		}
		if skip {
			if !passed { // who is evaluated needs the namespace
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
			if err != nil {
				fail(h, b, err)
				continue
			}
			if !ok {
				continue
			}
			params, err := cfg.collect(ctx, served, b.params, w.Namespace)
			if err != nil {
				fail(h, b, err)
				continue
			}
			if err := each(h, b, form, params); err != nil {
				return err
			}
		}
	}
	return nil
}

// paramKind finds the resource of a kind of parameters; nil if there are none.
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

// collect returns the parameters that a binding refers to: one that is nil if
// there are none to be had, nothing if those that are not there do not matter.
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
			// It may have been made a moment ago.
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

// composed returns the compiler of a policy, and its variables, which it knows.
func (c *Config) composed(variables []registrationv1.Variable, vars policycel.Variables) (*policycel.Compiler, *expression.Variables) {
	if len(variables) == 0 {
		return c.Expressions.Compiler(), nil
	}
	compiler := c.Expressions.Composed()
	return compiler, expression.Define(compiler, variables, vars)
}

// once compiles policies once, however often the set of them changes. It is used
// by one goroutine at a time.
type once[P comparable, C any] struct{ last, next map[P]func() C }

// turn forgets the policies that were not asked for since the last turn.
func (o *once[P, C]) turn() { o.last, o.next = o.next, map[P]func() C{} }

// of returns what compiles a policy when it is first called.
func (o *once[P, C]) of(p P, compile func(P) C) func() C {
	f, ok := o.last[p]
	if !ok {
		f = sync.OnceValue(func() C { return compile(p) })
	}
	o.next[p] = f
	return f
}
