package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

// Mutating is the plugin MutatingAdmissionPolicy.
type Mutating struct {
	cfg      Config
	followed admission.Followed[*match.Index[*hook[*mutations]]]
	compiled once[*registrationv1.MutatingAdmissionPolicy, *mutations]
}

var _ admission.Mutator = (*Mutating)(nil)

// NewMutating returns the plugin.
func NewMutating(cfg Config) *Mutating {
	cfg.complete()
	m := &Mutating{cfg: cfg}
	m.followed.Source, m.followed.Manifests, m.followed.Make = cfg.Source, cfg.Manifests, m.index
	return m
}

// Name implements admission.Plugin.
func (m *Mutating) Name() string { return "MutatingAdmissionPolicy" }

// Handles implements admission.Plugin: there is nothing to change in a deletion.
func (m *Mutating) Handles(t admission.Target) bool {
	return t.Operation != admission.Delete && m.cfg.handles(t)
}

func (m *Mutating) index(manifests, objects []resource.Object) *match.Index[*hook[*mutations]] {
	m.compiled.turn()
	return newIndex(append(m.hooks(manifests, true), m.hooks(objects, false)...))
}

// hooks makes a hook of each bound policy. Policies of manifests are bound only by bindings
// of manifests, stored ones only by stored ones.
func (m *Mutating) hooks(objects []resource.Object, manifest bool) []*hook[*mutations] {
	bindings := map[string][]*binding{}
	for _, obj := range objects {
		if b, ok := obj.(*registrationv1.MutatingAdmissionPolicyBinding); ok {
			bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName], newBinding(b.Name, b.Spec.MatchResources, b.Spec.ParamRef, nil))
		}
	}
	var hooks []*hook[*mutations]
	for _, obj := range objects {
		p, ok := obj.(*registrationv1.MutatingAdmissionPolicy)
		if !ok || len(bindings[p.Name]) == 0 {
			continue
		}
		h := newHook(p.Name, p.Spec.MatchConstraints, p.Spec.ParamKind, p.Spec.FailurePolicy, m.compiled.of(p, m.compile))
		h.bind(bindings[p.Name])
		h.manifest = manifest
		hooks = append(hooks, h)
	}
	return hooks
}

// mutations are the compiled expressions of a policy.
type mutations struct {
	conditions *expression.Conditions
	patches    []patch
	variables  *expression.Variables
	again      bool // reinvocationPolicy is IfNeeded
}

func (p *mutations) matchConditions() *expression.Conditions { return p.conditions }

// patch is one mutation: a JSON patch or an apply configuration.
type patch struct {
	program *expression.Program
	json    bool
}

func (m *Mutating) compile(p *registrationv1.MutatingAdmissionPolicy) *mutations {
	vars := policycel.Variables{Params: p.Spec.ParamKind != nil, Authorizer: true}
	out := &mutations{again: p.Spec.ReinvocationPolicy == registrationv1.IfNeededReinvocationPolicy}
	var c *policycel.Compiler
	c, out.variables = m.cfg.composed(p.Spec.Variables, vars)
	out.conditions = expression.CompileConditions(c, p.Spec.MatchConditions, vars,
		expression.Owner{Name: p.Name, Kind: "policy", Type: admission.StepValidate}, m.cfg.Metrics)
	vars.Patch = true
	for _, mutation := range p.Spec.Mutations {
		switch {
		case mutation.PatchType == registrationv1.PatchTypeJSONPatch && mutation.JSONPatch != nil:
			out.patches = append(out.patches, patch{
				expression.Compile(c, mutation.JSONPatch.Expression, vars, cel.ListType(cel.ObjectType("JSONPatch"))), true,
			})
		case mutation.PatchType == registrationv1.PatchTypeApplyConfiguration && mutation.ApplyConfiguration != nil:
			out.patches = append(out.patches, patch{
				expression.Compile(c, mutation.ApplyConfiguration.Expression, vars, cel.ObjectType("Object")), false,
			})
		}
	}
	return out
}

// invocation is a policy that applies to a write, by one binding and with one parameter
// object or none.
type invocation struct {
	hook    *hook[*mutations]
	binding *binding
	form    *match.Form
	params  runtime.Object
}

// invocationKey identifies an invocation across rounds.
type invocationKey struct{ policy, binding, namespace, name string }

func (i *invocation) key() invocationKey {
	k := invocationKey{policy: i.hook.name, binding: i.binding.name}
	if p, ok := i.params.(metav1.Object); ok {
		k.namespace, k.name = p.GetNamespace(), p.GetName()
	}
	return k
}

// part returns what a trace says about a patch of the policy.
func (i *invocation) part(p patch, err error) admission.Part {
	part := admission.Part{
		Resource: "mutatingadmissionpolicies", Config: i.hook.name, Binding: i.binding.name, Answer: admission.PartAdmitted, Expression: p.program.Text,
	}
	if err != nil {
		part.Answer, part.Message = admission.PartRefused, err.Error()
		if i.hook.ignore {
			part.Answer = admission.PartIgnored
		}
	}
	return part
}

// failure is an error of a policy.
type failure struct {
	text   string
	reason metav1.StatusReason
}

// failures are the errors of policies with failurePolicy Fail.
type failures []failure

func (f *failures) add(h *hook[*mutations], b *binding, err error, reason metav1.StatusReason) {
	switch {
	case h.ignore:
	case b == nil:
		*f = append(*f, failure{fmt.Sprintf("policy %q denied request: %s", h.name, err), reason})
	default:
		*f = append(*f, failure{fmt.Sprintf("policy '%s' with binding '%s' denied request: %s", h.name, b.name, err), reason})
	}
}

// Admit implements admission.Mutator.
func (m *Mutating) Admit(ctx context.Context, a *admission.Attributes) error {
	index, err := m.followed.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(index.All()) == 0 {
		return nil
	}
	w := match.New(a, m.cfg.Objects)
	hooks := candidates(index, w)
	if len(hooks.Candidates) == 0 {
		return nil
	}
	var failed failures
	var found []invocation
	err = invocations(ctx, &m.cfg, w, hooks, func() bool { return len(found) == 0 },
		func(h *hook[*mutations], b *binding, err error) {
			what := "failed to configure policy: %w"
			if b != nil {
				what = "failed to configure binding: %w"
			}
			failed.add(h, b, fmt.Errorf(what, err), "")
		},
		func(h *hook[*mutations], b *binding, form *match.Form, params []runtime.Object) error {
			if _, _, err := form.Objects(); err != nil {
				failed.add(h, nil, fmt.Errorf("failed to configure policy: %w", err), "")
				return w.Interrupted(ctx)
			}
			for _, p := range params {
				found = append(found, invocation{h, b, form, p})
			}
			return nil
		})
	if err == nil && len(found) > 0 {
		err = m.invoke(ctx, w, found, &failed)
	}
	if err != nil {
		return err
	}
	return failed.status(a)
}

// status makes one error of all failures; the message is that of the first.
func (f failures) status(a *admission.Attributes) error {
	if len(f) == 0 {
		return nil
	}
	err := a.Forbidden(errors.New("admission request denied by policy"))
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	status.ErrStatus.Message = f[0].text
	if f[0].reason != "" {
		status.ErrStatus.Reason = f[0].reason
	}
	for _, failure := range f {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: failure.text})
	}
	return status
}

// invoke applies policies one after the other.
func (m *Mutating) invoke(ctx context.Context, w *match.Write, found []invocation, failed *failures) error {
	rounds := admission.RoundsOf[invocationKey](w.Attributes, m.Name())
	defer rounds.End(w.Attributes)
	ns, err := w.NamespaceObject(ctx)
	if err != nil {
		return err
	}
	var last *match.Form // form of the last patch that was applied
	applied := map[*match.Form]bool{}
	for i := range found {
		tried, err := m.invokeOne(ctx, w, &found[i], ns, rounds, failed, applied)
		if err != nil {
			return err
		}
		if tried {
			last = found[i].form
		}
	}
	if applied[last] {
		// Even the policy that made the last change is reinvoked.
		rounds.Changed(w.Attributes)
	}
	return nil
}

// measure records the result of an invocation.
func (m *Mutating) measure(i *invocation, err error, took time.Duration) {
	kind := "no_error"
	if err != nil {
		kind = errorKind(err.Error())
	}
	admission.SeriesOf(m.cfg.Metrics, admission.MutatingChecks, i.hook.name, i.binding.name, kind).Observe(1)
	admission.SeriesOf(m.cfg.Metrics, admission.MutatingDuration, i.hook.name, i.binding.name, kind).Observe(took.Seconds())
}

// invokeOne applies one policy. It sets applied to the form of a patch, whether or not the
// patch changed anything, and reports whether one was tried.
func (m *Mutating) invokeOne(ctx context.Context, w *match.Write, i *invocation, ns *corev1.Namespace, rounds *admission.Rounds[invocationKey], failed *failures, applied map[*match.Form]bool) (tried bool, _ error) {
	p := i.hook.compiled()
	in := expression.Input{
		Write: w, Form: i.form, Resource: i.form.Resource, Params: i.params, Namespace: ns,
		Authorizer: m.cfg.Authorizer, Variables: p.variables,
	}
	met, err := p.conditions.Match(ctx, in)
	if err != nil {
		failed.add(i.hook, i.binding, err, metav1.StatusReasonInvalid)
		return false, w.Interrupted(ctx)
	}
	if !met || w.Round > 0 && !rounds.Again(i.key()) {
		return false, nil
	}
	before, _, err := i.form.Objects()
	if err != nil {
		return false, match.InternalError(err)
	}
	for _, patch := range p.patches {
		if before == nil {
			break // no patch
		}
		tried = true
		began := time.Now()
		err := m.apply(ctx, in, patch)
		took := time.Since(began)
		if err := w.Interrupted(ctx); err != nil {
			return tried, err
		}
		m.measure(i, err, took)
		if w.Trace != nil {
			w.Trace.Part(w.Attributes, i.part(patch, err), took)
		}
		if err != nil {
			var status *apierrors.StatusError
			if errors.As(err, &status) {
				return tried, status
			}
			failed.add(i.hook, i.binding, err, metav1.StatusReasonInvalid)
		} else {
			applied[i.form] = true
		}
	}
	after, _, err := i.form.Objects()
	if err != nil {
		return tried, match.InternalError(err)
	}
	if !equality.Semantic.DeepEqual(before, after) {
		rounds.Changed(w.Attributes)
	}
	if p.again {
		rounds.Asked(i.key())
	}
	return tried, nil
}
