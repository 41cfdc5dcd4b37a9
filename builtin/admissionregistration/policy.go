package admissionregistration

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/jsonpath"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/resource"
)

const (
	maxAnnotations          = 20
	maxAnnotationExpression = 5 << 10
)

type validatingPolicy = admissionv1.ValidatingAdmissionPolicy
type mutatingPolicy = admissionv1.MutatingAdmissionPolicy

// ValidatingPolicies defines validatingadmissionpolicies.
func ValidatingPolicies(cfg Config) resource.Definition {
	judge := func(ctx context.Context, p, old *validatingPolicy) field.ErrorList {
		errs := validateValidatingPolicy(ctx, p, old, cfg.Expressions)
		changed := old == nil || !equality.Semantic.DeepEqual(p.Spec.ParamKind, old.Spec.ParamKind)
		return mayReadParams(ctx, cfg, p, p.Spec.ParamKind != nil && changed, "paramKind", errs)
	}
	prepare := func(_ context.Context, p *validatingPolicy) { p.Status = admissionv1.ValidatingAdmissionPolicyStatus{} }
	validate := func(ctx context.Context, p *validatingPolicy) field.ErrorList { return judge(ctx, p, nil) }
	d := define[validatingPolicy, admissionv1.ValidatingAdmissionPolicyList](cfg, "validatingadmissionpolicies", "ValidatingAdmissionPolicy",
		defaultValidatingPolicy,
		resource.Rules[*validatingPolicy]{
			PrepareCreate:  prepare,
			PrepareUpdate:  func(_ context.Context, p, old *validatingPolicy) { p.Status = old.Status },
			Validate:       validate,
			ValidateUpdate: judge,
			Generation:     func(p, old *validatingPolicy) bool { return !equality.Semantic.DeepEqual(p.Spec, old.Spec) },
		})
	status := resource.Rules[*validatingPolicy]{
		RequireVersion: true,
		// As in kube-apiserver, an apply to the status can create a policy.
		CreateOnApply: true,
		PrepareCreate: prepare,
		Validate:      validate,
		Generation:    func(p, old *validatingPolicy) bool { return !equality.Semantic.DeepEqual(p.Spec, old.Spec) },
		PrepareUpdate: func(_ context.Context, p, old *validatingPolicy) {
			p.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&p.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, p, _ *validatingPolicy) field.ErrorList {
			return validatePolicyStatus(&p.Status)
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	d.Old = oldValidatingPolicies()
	d.Subresources = []resource.Subresource{{Name: "status", Part: &status}}
	d.Columns = policyColumns("Validations", "Validations indicates the number of validation rules defined in this configuration")
	d.Cells = resource.CellsFunc(func(p *validatingPolicy) []any {
		return []any{p.Name, int64(len(p.Spec.Validations)), paramKindCell(p.Spec.ParamKind), resource.Since(p.CreationTimestamp.Time)}
	})
	return d
}

func defaultValidatingPolicy(p *validatingPolicy) {
	rules.DefaultPointer(&p.Spec.FailurePolicy, admissionv1.Fail)
	defaultMatch(p.Spec.MatchConstraints)
}

// MutatingPolicies defines mutatingadmissionpolicies.
func MutatingPolicies(cfg Config) resource.Definition {
	judge := func(ctx context.Context, p, old *mutatingPolicy) field.ErrorList {
		errs := validateMutatingPolicy(ctx, p, old, cfg.Expressions)
		changed := old == nil || !equality.Semantic.DeepEqual(p.Spec.ParamKind, old.Spec.ParamKind)
		return mayReadParams(ctx, cfg, p, p.Spec.ParamKind != nil && changed, "paramKind", errs)
	}
	d := define[mutatingPolicy, admissionv1.MutatingAdmissionPolicyList](cfg, "mutatingadmissionpolicies", "MutatingAdmissionPolicy",
		defaultMutatingPolicy,
		resource.Rules[*mutatingPolicy]{
			Validate:       func(ctx context.Context, p *mutatingPolicy) field.ErrorList { return judge(ctx, p, nil) },
			ValidateUpdate: judge,
			Generation:     func(p, old *mutatingPolicy) bool { return !equality.Semantic.DeepEqual(p.Spec, old.Spec) },
		})
	d.Versions = append(d.Versions, oldMutatingPolicies()...)
	d.Columns = policyColumns("Mutations", "Mutation indicates the number of mutations rules defined in this configuration")
	d.Cells = resource.CellsFunc(func(p *mutatingPolicy) []any {
		return []any{p.Name, int64(len(p.Spec.Mutations)), paramKindCell(p.Spec.ParamKind), resource.Since(p.CreationTimestamp.Time)}
	})
	return d
}

func policyColumns(name, description string) []resource.Column {
	return []resource.Column{
		rules.NameColumn(),
		{Name: name, Type: "integer", Description: description},
		{Name: "ParamKind", Type: "string", Description: "ParamKind specifies the kind of resources used to parameterize this policy"},
		rules.AgeColumn(),
	}
}

func paramKindCell(k *admissionv1.ParamKind) string {
	if k == nil {
		return "<unset>"
	}
	return k.APIVersion + "/" + k.Kind
}

// mayReadParams checks, if there are no other errors, whether the writer may read the
// parameters.
func mayReadParams(ctx context.Context, cfg Config, obj resource.Object, refers bool, name string, errs field.ErrorList) field.ErrorList {
	if !refers || len(errs) > 0 {
		return errs
	}
	if err := cfg.Params(ctx, obj); err != nil {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", name), err.Error())}
	}
	return nil
}

// validatePolicy validates the fields that policies of both kinds share.
func validatePolicy(failure *admissionv1.FailurePolicyType, params *admissionv1.ParamKind, match *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if failure == nil {
		errs = append(errs, field.Required(path.Child("failurePolicy"), ""))
	}
	errs = append(errs, supportedIfSet(failure, path.Child("failurePolicy"), admissionv1.Fail, admissionv1.Ignore)...)
	if params != nil {
		errs = append(errs, validateParamKind(params, path.Child("paramKind"))...)
	}
	path = path.Child("matchConstraints")
	if match == nil {
		return append(errs, field.Required(path, ""))
	}
	errs = append(errs, validateMatch(match, path)...)
	if len(match.ResourceRules) == 0 {
		errs = append(errs, field.Required(path.Child("resourceRules"), ""))
	}
	return errs
}

func validateValidatingPolicy(ctx context.Context, p, old *validatingPolicy, env *policycel.Environment) field.ErrorList {
	spec, path := &p.Spec, field.NewPath("spec")
	errs := validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, path)
	c := compiler{work: boundedregexp.NewWork(ctx, boundedregexp.MaxWork), plain: env.Compiler(), known: expressions{}, params: spec.ParamKind != nil}
	c.policy = c.plain
	sameConditions := false
	if old != nil {
		sameConditions = equality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) &&
			equality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions)
		c.known.addConditions(old.Spec.MatchConditions)
		for _, v := range old.Spec.Validations {
			c.known.add("validation", v.Expression)
			c.known.add("message", v.MessageExpression)
		}
		for _, a := range old.Spec.AuditAnnotations {
			c.known.add("audit", a.ValueExpression)
		}
	}
	if !sameConditions {
		errs = append(errs, c.matchConditions(spec.MatchConditions, path.Child("matchConditions"))...)
	}
	if len(spec.Variables) > 0 {
		c.policy = env.Composed()
		errs = append(errs, c.define(spec.Variables, path.Child("variables"))...)
	}
	if len(spec.Validations)+len(spec.AuditAnnotations) == 0 {
		const either = "validations or auditAnnotations must contain at least one item"
		return append(errs, field.Required(path.Child("validations"), either), field.Required(path.Child("auditAnnotations"), either))
	}
	for i := range spec.Validations {
		errs = append(errs, c.validation(&spec.Validations[i], path.Child("validations").Index(i))...)
	}
	return append(errs, c.annotations(spec.AuditAnnotations, p.Name, path.Child("auditAnnotations"))...)
}

func (c *compiler) validation(v *admissionv1.Validation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if strings.TrimSpace(v.Expression) == "" {
		errs = append(errs, field.Required(path.Child("expression"), "expression is not specified"))
	} else {
		errs = append(errs, c.check(c.policy, "validation", v.Expression, v.Expression, policycel.Variables{Authorizer: true}, path.Child("expression"), cel.BoolType)...)
	}
	if m := v.MessageExpression; m != "" {
		path := path.Child("messageExpression")
		if strings.TrimSpace(m) == "" {
			errs = append(errs, field.Invalid(path, m, "must be non-empty if specified"))
		} else {
			errs = append(errs, c.check(c.policy, "message", m, m, policycel.Variables{}, path, cel.StringType)...)
		}
	}
	switch m := strings.TrimSpace(v.Message); {
	case v.Message != "" && m == "":
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must be non-empty if specified"))
	case strings.ContainsAny(m, "\n\r"):
		errs = append(errs, field.Invalid(path.Child("message"), v.Message, "must not contain line breaks"))
	}
	return append(errs, supportedIfSet(v.Reason, path.Child("reason"),
		metav1.StatusReasonForbidden, metav1.StatusReasonInvalid, metav1.StatusReasonRequestEntityTooLarge)...)
}

func (c *compiler) annotations(annotations []admissionv1.AuditAnnotation, policy string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(annotations) > maxAnnotations {
		errs = append(errs, field.Invalid(path, rules.GoForm(annotations), fmt.Sprintf("must not have more than %d auditAnnotations", maxAnnotations)))
	}
	seen := map[string]bool{}
	for i, a := range annotations {
		key, value := path.Index(i).Child("key"), path.Index(i).Child("valueExpression")
		if policy == "" {
			errs = append(errs, field.Invalid(key, a.Key, "requires metadata.name be non-empty"))
		} else {
			full := policy + "/" + a.Key
			errs = append(errs, rules.Invalid(key, full, validation.IsQualifiedName(full))...)
		}
		switch text := strings.TrimSpace(a.ValueExpression); {
		case text == "":
			errs = append(errs, field.Required(value, "valueExpression is not specified"))
		case len(text) > maxAnnotationExpression:
			errs = append(errs, field.Required(value, fmt.Sprintf("must not exceed %d bytes in length", maxAnnotationExpression)))
		default:
			errs = append(errs, c.check(c.policy, "audit", text, a.ValueExpression, policycel.Variables{Authorizer: true}, value, cel.StringType, cel.NullType)...)
		}
		if seen[a.Key] {
			errs = append(errs, field.Duplicate(key, a.Key))
		}
		seen[a.Key] = true
	}
	return errs
}

func validateMutatingPolicy(ctx context.Context, p, old *mutatingPolicy, env *policycel.Environment) field.ErrorList {
	spec, path := &p.Spec, field.NewPath("spec")
	errs := validatePolicy(spec.FailurePolicy, spec.ParamKind, spec.MatchConstraints, path)
	errs = append(errs, validateMutable(spec.MatchConstraints, path.Child("matchConstraints"))...)
	c := compiler{work: boundedregexp.NewWork(ctx, boundedregexp.MaxWork), plain: env.Compiler(), policy: env.Composed(), known: expressions{}, params: spec.ParamKind != nil}
	sameConditions := false
	if old != nil {
		sameConditions = equality.Semantic.DeepEqual(spec.ParamKind, old.Spec.ParamKind) &&
			equality.Semantic.DeepEqual(spec.MatchConditions, old.Spec.MatchConditions)
		c.known.addConditions(old.Spec.MatchConditions)
		for _, m := range old.Spec.Mutations {
			if m.ApplyConfiguration != nil {
				c.known.add("patch", m.ApplyConfiguration.Expression)
			}
		}
	}
	if !sameConditions {
		errs = append(errs, c.matchConditions(spec.MatchConditions, path.Child("matchConditions"))...)
	}
	errs = append(errs, c.define(spec.Variables, path.Child("variables"))...)
	if len(spec.Mutations) == 0 {
		errs = append(errs, field.Required(path.Child("mutations"), "mutations must contain at least one item"))
	}
	for i := range spec.Mutations {
		errs = append(errs, c.mutation(&spec.Mutations[i], path.Child("mutations").Index(i))...)
	}
	if spec.ReinvocationPolicy == "" {
		return append(errs, field.Required(path.Child("reinvocationPolicy"), ""))
	}
	return append(errs, supported(spec.ReinvocationPolicy, path.Child("reinvocationPolicy"), admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
}

// mutation checks that the expression of the patch type, and no other, is set.
func (c *compiler) mutation(m *admissionv1.Mutation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	wanted := func(set bool, expression func() string, name string, result *cel.Type) {
		path := path.Child(name)
		if !set {
			errs = append(errs, field.Required(path, "must be specified when patchType is "+string(m.PatchType)))
			return
		}
		shown := expression()
		text := strings.TrimSpace(shown)
		if text == "" {
			errs = append(errs, field.Required(path.Child("expression"), ""))
			return
		}
		vars := policycel.Variables{Params: c.params, Authorizer: true, Patch: true}
		_, err := c.policy.Compile(c.work, text, vars, c.known.has("patch", shown), result)
		errs = append(errs, problem(err, text, path.Child("expression"))...)
	}
	unwanted := func(set bool, name string) {
		if set {
			errs = append(errs, field.Invalid(path.Child(name), "{"+name+"}", "must not be specified when patchType is "+string(m.PatchType)))
		}
	}
	switch m.PatchType {
	case admissionv1.PatchTypeJSONPatch:
		wanted(m.JSONPatch != nil, func() string { return m.JSONPatch.Expression }, "jsonPatch", cel.ListType(cel.ObjectType("JSONPatch")))
		unwanted(m.ApplyConfiguration != nil, "applyConfiguration")
	case admissionv1.PatchTypeApplyConfiguration:
		wanted(m.ApplyConfiguration != nil, func() string { return m.ApplyConfiguration.Expression }, "applyConfiguration", cel.ObjectType("Object"))
		unwanted(m.JSONPatch != nil, "jsonPatch")
	case "":
		errs = append(errs, field.Required(path.Child("patchType"), ""))
	default:
		errs = supported(m.PatchType, path.Child("patchType"), admissionv1.PatchTypeApplyConfiguration, admissionv1.PatchTypeJSONPatch)
	}
	return errs
}

func validatePolicyStatus(s *admissionv1.ValidatingAdmissionPolicyStatus) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	if s.TypeChecking != nil {
		for i, w := range s.TypeChecking.ExpressionWarnings {
			path := path.Child("typeChecking", "expressionWarnings").Index(i)
			if w.Warning == "" {
				errs = append(errs, field.Required(path.Child("warning"), ""))
			}
			ref := strings.TrimSpace(w.FieldRef)
			if ref == "" {
				errs = append(errs, field.Required(path.Child("fieldRef"), ""))
			} else if err := jsonpath.New("spec").Parse("{" + ref + "}"); err != nil {
				errs = append(errs, field.Invalid(path.Child("fieldRef"), ref, fmt.Sprintf("invalid JSONPath: %v", err)))
			}
		}
	}
	return append(errs, metavalidation.ValidateConditions(s.Conditions, path.Child("conditions"))...)
}
