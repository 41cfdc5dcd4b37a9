package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/expression"
	"github.com/apikeel/kelson/admission/match"
	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/resource"
)

const (
	maxMessage    = 5 << 10
	maxAnnotation = 10 << 10
	// maxFailures bounds the failures in the audit annotation of a request.
	maxFailures = 50
)

// Validating is the plugin ValidatingAdmissionPolicy.
type Validating struct {
	cfg      Config
	followed admission.Followed[*match.Index[*hook[*validations]]]
	compiled once[*registrationv1.ValidatingAdmissionPolicy, *validations]
}

var _ admission.Validator = (*Validating)(nil)

// NewValidating returns the plugin.
func NewValidating(cfg Config) *Validating {
	cfg.complete()
	v := &Validating{cfg: cfg}
	v.followed.Source, v.followed.Manifests, v.followed.Make = cfg.Source, cfg.Manifests, v.index
	return v
}

// Name implements admission.Plugin.
func (v *Validating) Name() string { return "ValidatingAdmissionPolicy" }

// Handles implements admission.Plugin.
func (v *Validating) Handles(t admission.Target) bool { return v.cfg.handles(t) }

// index makes hooks of all policies. Unchanged ones are not compiled again.
func (v *Validating) index(manifests, objects []resource.Object) *match.Index[*hook[*validations]] {
	v.compiled.turn()
	return newIndex(append(v.hooks(manifests, true), v.hooks(objects, false)...))
}

// hooks makes a hook of each bound policy. Policies of manifests are bound only by bindings
// of manifests, stored ones only by stored ones.
func (v *Validating) hooks(objects []resource.Object, manifest bool) []*hook[*validations] {
	bindings := map[string][]*binding{}
	for _, obj := range objects {
		if b, ok := obj.(*registrationv1.ValidatingAdmissionPolicyBinding); ok {
			bindings[b.Spec.PolicyName] = append(bindings[b.Spec.PolicyName], newBinding(b.Name, b.Spec.MatchResources, b.Spec.ParamRef, b.Spec.ValidationActions))
		}
	}
	var hooks []*hook[*validations]
	for _, obj := range objects {
		p, ok := obj.(*registrationv1.ValidatingAdmissionPolicy)
		if !ok || len(bindings[p.Name]) == 0 {
			continue
		}
		h := newHook(p.Name, p.Spec.MatchConstraints, p.Spec.ParamKind, p.Spec.FailurePolicy, v.compiled.of(p, v.compile))
		h.bind(bindings[p.Name])
		h.manifest = manifest
		hooks = append(hooks, h)
	}
	return hooks
}

// validations are the compiled expressions of a policy.
type validations struct {
	conditions  *expression.Conditions
	rules       []*expression.Program
	messages    []*expression.Program // messageExpressions, nil where there is none
	annotations []*expression.Program
	variables   *expression.Variables
	policy      *registrationv1.ValidatingAdmissionPolicy
}

func (p *validations) matchConditions() *expression.Conditions { return p.conditions }

func (v *Validating) compile(p *registrationv1.ValidatingAdmissionPolicy) *validations {
	vars := policycel.Variables{Params: p.Spec.ParamKind != nil, Authorizer: true}
	out := &validations{policy: p}
	var c *policycel.Compiler
	c, out.variables = v.cfg.composed(p.Spec.Variables, vars)
	out.conditions = expression.CompileConditions(c, p.Spec.MatchConditions, vars,
		expression.Owner{Name: p.Name, Kind: "policy", Type: admission.StepValidate}, v.cfg.Metrics)
	for i := range p.Spec.Validations {
		rule := &p.Spec.Validations[i]
		out.rules = append(out.rules, expression.Compile(c, rule.Expression, vars, cel.BoolType))
		var message *expression.Program
		if rule.MessageExpression != "" {
			message = expression.Compile(c, rule.MessageExpression, policycel.Variables{Params: vars.Params}, cel.StringType)
		}
		out.messages = append(out.messages, message)
	}
	for _, a := range p.Spec.AuditAnnotations {
		out.annotations = append(out.annotations, expression.Compile(c, a.ValueExpression, vars, cel.StringType, cel.NullType))
	}
	return out
}

// denial is why a write is refused, or would be.
type denial struct {
	message string
	reason  metav1.StatusReason
	index   int // of the rule
	// ignored: an error with failurePolicy Ignore.
	ignored bool
	took    time.Duration
}

// errorKind returns the metric label of an error.
func errorKind(message string) string {
	switch {
	case strings.HasPrefix(message, "compilation"):
		return "compile_error"
	case strings.HasPrefix(message, expression.ErrOutOfBudget.Error()):
		return "out_of_budget"
	}
	return "invalid_error"
}

// measure records the result of a validation.
func (v *Validating) measure(h *hook[*validations], b *binding, d *denial, action string) {
	labels := []string{h.name, b.name, errorKind(d.message), action}
	admission.SeriesOf(v.cfg.Metrics, admission.ValidatingChecks, labels...).Observe(1)
	admission.SeriesOf(v.cfg.Metrics, admission.ValidatingDuration, labels...).Observe(d.took.Seconds())
}

// judgement collects the results for one write.
type judgement struct {
	a *admission.Attributes
	// refused is the first refusal.
	refused *refusal
	audited []audited
}

type refusal struct {
	policy, binding string
	bound           bool
	denial
}

// audited is a failure in the audit annotation.
type audited struct {
	Message           string                            `json:"message"`
	Policy            string                            `json:"policy"`
	Binding           string                            `json:"binding"`
	ExpressionIndex   int                               `json:"expressionIndex"`
	ValidationActions []registrationv1.ValidationAction `json:"validationActions"`
}

// Validate implements admission.Validator.
func (v *Validating) Validate(ctx context.Context, a *admission.Attributes) error {
	index, err := v.followed.Get(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(index.All()) == 0 {
		return nil
	}
	w := match.New(a, v.cfg.Objects)
	hooks := candidates(index, w)
	if len(hooks.Candidates) == 0 {
		return nil
	}
	j := &judgement{a: a}
	notes := annotations{}
	err = invocations(ctx, &v.cfg, w, hooks, func() bool { return true },
		func(h *hook[*validations], b *binding, err error) { j.misconfigured(h, b, err) },
		func(h *hook[*validations], b *binding, form *match.Form, params []runtime.Object) error {
			if len(params) == 0 {
				return nil
			}
			if _, _, err := form.Objects(); err != nil {
				j.misconfigured(h, b, fmt.Errorf("failed to convert object version: %w", err))
				return w.Interrupted(ctx)
			}
			ns, err := w.NamespaceObject(ctx)
			if err != nil {
				return err
			}
			for _, p := range params {
				in := expression.Input{Write: w, Form: form, Resource: form.Resource, Params: p, Namespace: ns, Authorizer: v.cfg.Authorizer}
				if err := v.apply(ctx, j, h, b, notes, in); err != nil {
					return err
				}
			}
			return nil
		})
	if err != nil {
		return err
	}
	notes.publish(a)
	return j.end()
}

func (j *judgement) misconfigured(h *hook[*validations], b *binding, err error) {
	if h.ignore {
		return
	}
	if b == nil {
		j.refuse(h.name, nil, denial{message: "failed to configure policy: " + err.Error()})
	} else {
		j.refuse(h.name, b, denial{message: "failed to configure binding: " + err.Error()})
	}
}

func (j *judgement) refuse(policy string, b *binding, d denial) {
	if j.refused != nil {
		return
	}
	j.refused = &refusal{policy: policy, denial: d}
	if b != nil {
		j.refused.binding, j.refused.bound = b.name, true
	}
}

// apply evaluates a policy with one parameter object.
func (v *Validating) apply(ctx context.Context, j *judgement, h *hook[*validations], b *binding, notes annotations, in expression.Input) error {
	began := time.Now()
	denials, values, failed := h.compiled().evaluate(ctx, in, h.ignore)
	if err := j.a.Interrupted(ctx); err != nil {
		return err
	}
	if j.a.Trace != nil {
		v.trace(ctx, j.a, h, b, in, denials, time.Since(began))
	}
	for _, d := range denials {
		if d.ignored {
			v.measure(h, b, &d, "allow")
			continue
		}
		for _, action := range b.actions {
			v.measure(h, b, &d, strings.ToLower(string(action)))
			switch action {
			case registrationv1.Deny:
				j.refuse(h.name, b, d)
			case registrationv1.Audit:
				j.audited = append(j.audited, audited{
					Message: d.message, Policy: h.name, Binding: b.name, ExpressionIndex: d.index, ValidationActions: b.actions,
				})
			case registrationv1.Warn:
				j.a.Request.Warn(fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy '%s' with binding '%s': %s", h.name, b.name, d.message))
			}
		}
	}
	for _, d := range failed {
		v.measure(h, b, &d, "deny")
		j.refuse(h.name, b, d)
	}
	for key, value := range values {
		notes.add(h.name+"/"+key, value)
	}
	return nil
}

// trace records the result of a policy: one part for each validation that failed, with the
// values that it had, or one for all.
func (v *Validating) trace(ctx context.Context, a *admission.Attributes, h *hook[*validations], b *binding, in expression.Input, denials []denial, took time.Duration) {
	p := h.compiled().policy
	part := admission.Part{
		Resource: "validatingadmissionpolicies", Config: h.name, Binding: b.name, Answer: admission.PartAdmitted, UsesParams: p.Spec.ParamKind != nil,
	}
	if len(denials) == 0 {
		a.Trace.Part(a, part, took)
		return
	}
	vars := policycel.Variables{Params: part.UsesParams, Authorizer: true}
	compiler, variables := v.cfg.composed(p.Spec.Variables, vars)
	in.Variables = variables
	for _, d := range denials {
		part.Message, part.Answer = d.message, admission.PartWarned
		switch {
		case d.ignored:
			part.Answer = admission.PartIgnored
		case slices.Contains(b.actions, registrationv1.Deny):
			part.Answer = admission.PartRefused
		}
		part.Expression, part.Values = "", nil
		if d.reason != "" && d.index < len(p.Spec.Validations) { // else a match condition failed
			part.Expression = strings.TrimSpace(p.Spec.Validations[d.index].Expression)
			part.Values = expression.Values(ctx, compiler, part.Expression, vars, in)
		}
		a.Trace.Part(a, part, took)
		took = 0
	}
}

// evaluate returns the denials, the audit annotations, and audit annotations that failed.
// ignore is failurePolicy Ignore.
func (p *validations) evaluate(ctx context.Context, in expression.Input, ignore bool) (denials []denial, values map[string]string, failed []denial) {
	in.Variables = p.variables
	fails := func(err error) []denial { return []denial{{message: err.Error(), ignored: ignore}} }
	met, err := p.conditions.Match(ctx, in)
	if err != nil {
		return fails(err), nil, nil
	}
	if !met {
		return nil, nil, nil
	}
	if denials, err = p.rulesOn(ctx, in, ignore); err != nil {
		return fails(err), nil, nil
	}
	if len(p.annotations) == 0 {
		return denials, nil, nil
	}
	in.Authorizer = nil
	if values, failed, err = p.annotate(ctx, in); err != nil {
		return fails(err), nil, nil
	}
	if ignore {
		failed = nil
	}
	return denials, values, failed
}

func (p *validations) rulesOn(ctx context.Context, in expression.Input, ignore bool) ([]denial, error) {
	e, err := in.Begin(expression.Budget)
	if err != nil {
		return nil, err
	}
	var denials []denial
	denied := false
	began := time.Now()
	for i, rule := range p.rules {
		v, failed, err := e.Eval(ctx, rule)
		switch {
		case err != nil:
			return nil, err
		case failed != nil:
			denials = append(denials, denial{message: failed.Error(), index: i, reason: metav1.StatusReasonInvalid, ignored: ignore, took: time.Since(began)})
		case v != types.True:
			denied = true
			denials = append(denials, denial{index: i, reason: metav1.StatusReasonInvalid, took: time.Since(began)})
		default:
			continue
		}
		began = time.Now()
	}
	if !denied {
		return denials, nil
	}
	messages, err := p.evalMessages(ctx, in, e.Rest(ctx))
	for i := range denials {
		d := &denials[i]
		if d.message != "" {
			continue
		}
		rule := &p.policy.Spec.Validations[d.index]
		if err != nil {
			d.message, d.ignored = "failed messageExpression: "+err.Error(), ignore
			continue
		}
		if rule.Reason != nil {
			d.reason = *rule.Reason
		}
		switch {
		case messages[d.index] != "":
			d.message = messages[d.index]
		case rule.Message != "":
			d.message = strings.TrimSpace(rule.Message)
		}
		if d.message == "" {
			d.message = "failed expression: " + strings.TrimSpace(rule.Expression)
		}
	}
	return denials, nil
}

// evalMessages evaluates the messageExpressions of failed validations; "" where one has no usable
// result.
func (p *validations) evalMessages(ctx context.Context, in expression.Input, left int64) ([]string, error) {
	in.Authorizer = nil
	e, err := in.Begin(left)
	if err != nil {
		return nil, err
	}
	messages := make([]string, len(p.messages))
	for i, m := range p.messages {
		if m == nil {
			continue
		}
		v, failed, err := e.Eval(ctx, m)
		if err != nil {
			return nil, err
		}
		if failed != nil {
			continue
		}
		text, _ := v.Value().(string)
		if text = strings.TrimSpace(text); len(text) <= maxMessage && !strings.Contains(text, "\n") {
			messages[i] = text
		}
	}
	return messages, nil
}

func (p *validations) annotate(ctx context.Context, in expression.Input) (values map[string]string, failed []denial, err error) {
	e, err := in.Begin(expression.Budget)
	if err != nil {
		return nil, nil, err
	}
	values = map[string]string{}
	for i, program := range p.annotations {
		v, fault, err := e.Eval(ctx, program)
		if err != nil {
			return nil, nil, err
		}
		text, fault := annotationText(v, fault, program.Text)
		if fault != nil {
			failed = append(failed, denial{message: fault.Error()})
		} else if text != "" {
			values[p.policy.Spec.AuditAnnotations[i].Key] = text[:min(len(text), maxAnnotation)]
		}
	}
	return values, failed, nil
}

func annotationText(v ref.Val, failed error, program string) (string, error) {
	switch {
	case failed != nil:
		return "", failed
	case v.Type() == types.StringType:
		return strings.TrimSpace(v.Value().(string)), nil
	case v.Type() == types.NullType:
		return "", nil
	}
	return "", errors.New(fmt.Sprint("valueExpression '", program, "' resulted in unsupported return type: ", v.Type(), ". Return type must be either string or null."))
}

// annotations are audit annotations by key; bindings may have different values.
type annotations map[string][]string

func (n annotations) add(key, value string) {
	if !slices.Contains(n[key], value) {
		n[key] = append(n[key], value)
	}
}

func (n annotations) publish(a *admission.Attributes) {
	for key, values := range n {
		a.Request.Annotate(key, strings.Join(values, ", "))
	}
}

// end writes the audit annotation of failures, and returns the refusal.
func (j *judgement) end() error {
	if len(j.audited) > 0 {
		if text, err := json.Marshal(j.audited[:min(len(j.audited), maxFailures)]); err == nil {
			j.a.Request.Annotate("validation.policy.admission.k8s.io/validation_failure", string(text))
		}
	}
	r := j.refused
	if r == nil {
		return nil
	}
	message := fmt.Sprintf("ValidatingAdmissionPolicy '%s' denied request: %s", r.policy, r.message)
	if r.bound {
		message = fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: %s", r.policy, r.binding, r.message)
	}
	err := j.a.Forbidden(errors.New(message))
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return err
	}
	if r.reason == "" {
		r.reason = metav1.StatusReasonInvalid
	}
	status.ErrStatus.Reason, status.ErrStatus.Code = r.reason, codeOf(r.reason)
	status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Message: message})
	return status
}

func codeOf(reason metav1.StatusReason) int32 {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonUnauthorized:
		return http.StatusUnauthorized
	case metav1.StatusReasonRequestEntityTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}
