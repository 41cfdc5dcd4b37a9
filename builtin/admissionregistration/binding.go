package admissionregistration

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// ValidatingPolicyBindings defines validatingadmissionpolicybindings.
func ValidatingPolicyBindings(cfg Config) resource.Definition {
	type binding = validatingBinding
	judge := func(ctx context.Context, b, _ *binding) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, path)
		if b.Spec.PolicyName == "" { // a declared rule only for validating bindings
			errs = append(resource.DeclaredBeta(errs[0]), errs[1:]...)
		}
		errs = append(errs, validateActions(b.Spec.ValidationActions, path.Child("validationActions"))...)
		return mayReadParams(ctx, cfg, b, b.Spec.ParamRef != nil, "paramRef", errs)
	}
	d := define[binding, admissionv1.ValidatingAdmissionPolicyBindingList](cfg, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding",
		defaultValidatingBinding,
		resource.Rules[*binding]{
			Validate:       func(ctx context.Context, b *binding) field.ErrorList { return judge(ctx, b, nil) },
			ValidateUpdate: judge,
			Generation:     func(b, old *binding) bool { return !equality.Semantic.DeepEqual(b.Spec, old.Spec) },
		})
	d.Old = oldValidatingBindings()
	d.Columns = bindingColumns()
	d.Cells = resource.CellsFunc(func(b *binding) []any { return bindingCells(b, b.Spec.PolicyName, b.Spec.ParamRef) })
	return d
}

func defaultValidatingBinding(b *validatingBinding) { defaultMatch(b.Spec.MatchResources) }

// MutatingPolicyBindings defines mutatingadmissionpolicybindings.
func MutatingPolicyBindings(cfg Config) resource.Definition {
	type binding = mutatingBinding
	judge := func(ctx context.Context, b, _ *binding) field.ErrorList {
		path := field.NewPath("spec")
		errs := validateBinding(b.Spec.PolicyName, b.Spec.ParamRef, b.Spec.MatchResources, path)
		errs = append(errs, validateMutable(b.Spec.MatchResources, path.Child("matchResources"))...)
		return mayReadParams(ctx, cfg, b, b.Spec.ParamRef != nil, "paramRef", errs)
	}
	d := define[binding, admissionv1.MutatingAdmissionPolicyBindingList](cfg, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding",
		defaultMutatingBinding,
		resource.Rules[*binding]{
			Validate:       func(ctx context.Context, b *binding) field.ErrorList { return judge(ctx, b, nil) },
			ValidateUpdate: judge,
			Generation:     func(b, old *binding) bool { return !equality.Semantic.DeepEqual(b.Spec, old.Spec) },
		})
	d.Versions = append(d.Versions, oldMutatingBindings()...)
	d.Columns = bindingColumns()
	d.Cells = resource.CellsFunc(func(b *binding) []any { return bindingCells(b, b.Spec.PolicyName, b.Spec.ParamRef) })
	return d
}

func bindingColumns() []resource.Column {
	return []resource.Column{
		rules.NameColumn(),
		{Name: "PolicyName", Type: "string", Description: "PolicyName indicates the policy definition which the policy binding binded to"},
		{Name: "ParamRef", Type: "string", Description: "ParamRef indicates the param resource which sets the configuration param"},
		rules.AgeColumn(),
	}
}

func bindingCells(obj resource.Object, policy string, params *admissionv1.ParamRef) []any {
	cell := "<unset>"
	switch {
	case params == nil:
	case params.Name != "" && params.Namespace != "":
		cell = params.Namespace + "/" + params.Name
	case params.Name != "":
		cell = "*/" + params.Name
	case params.Selector != nil:
		cell = params.Selector.String()
	}
	return []any{obj.GetName(), policy, cell, resource.Since(obj.GetCreationTimestamp().Time)}
}

func validateBinding(policy string, params *admissionv1.ParamRef, match *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if policy == "" {
		errs = append(errs, field.Required(path.Child("policyName"), ""))
	} else {
		errs = append(errs, rules.Invalid(path.Child("policyName"), policy, apivalidation.NameIsDNSSubdomain(policy, false))...)
	}
	errs = append(errs, validateParamRef(params, path.Child("paramRef"))...)
	return append(errs, validateMatch(match, path.Child("matchResources"))...)
}

// validateActions validates what a failed validation leads to.
func validateActions(actions []admissionv1.ValidationAction, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var seen rules.Seen[admissionv1.ValidationAction]
	for i, a := range actions {
		errs = append(errs, supported(a, path.Index(i), admissionv1.Audit, admissionv1.Deny, admissionv1.Warn)...)
		if seen.Again(a) {
			errs = append(errs, field.Duplicate(path.Index(i), a))
		}
	}
	if slices.Contains(actions, admissionv1.Deny) && slices.Contains(actions, admissionv1.Warn) {
		errs = append(errs, field.Invalid(path, actions, "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)"))
	}
	if len(actions) == 0 {
		errs = append(errs, resource.BetaInstead(field.ErrorList{field.Required(path, "")}, field.ErrorList{field.Required(path, "at least one validation action is required")})...)
	}
	return errs
}
