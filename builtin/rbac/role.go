package rbac

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// Roles defines roles.
func Roles() resource.Definition {
	d := define[rbacv1.Role, rbacv1.RoleList]("roles", "Role", nil, resource.Rules[*rbacv1.Role]{
		Validate: func(_ context.Context, r *rbacv1.Role) field.ErrorList { return validateRules(r.Rules, true) },
	})
	d.Namespaced, d.Old = true, oldRoles()
	return d
}

// ClusterRoles defines clusterroles.
func ClusterRoles() resource.Definition {
	d := define[rbacv1.ClusterRole, rbacv1.ClusterRoleList]("clusterroles", "ClusterRole", nil, resource.Rules[*rbacv1.ClusterRole]{
		Validate: func(_ context.Context, r *rbacv1.ClusterRole) field.ErrorList {
			return append(validateRules(r.Rules, false), validateAggregation(r.AggregationRule, false)...)
		},
		ValidateUpdate: func(_ context.Context, r, old *rbacv1.ClusterRole) field.ErrorList {
			return append(validateRules(r.Rules, false), validateAggregation(r.AggregationRule, hasBadSelector(old.AggregationRule))...)
		},
	})
	d.Old = oldClusterRoles()
	return d
}

func validateRules(rules []rbacv1.PolicyRule, namespaced bool) field.ErrorList {
	var errs field.ErrorList
	for i := range rules {
		rule, path := &rules[i], field.NewPath("rules").Index(i)
		if len(rule.Verbs) == 0 {
			errs = append(errs, resource.BetaInstead(field.ErrorList{field.Required(path.Child("verbs"), "")},
				field.ErrorList{field.Required(path.Child("verbs"), "verbs must contain at least one value")})...)
		}
		if len(rule.NonResourceURLs) > 0 {
			if namespaced {
				errs = append(errs, field.Invalid(path.Child("nonResourceURLs"), rule.NonResourceURLs, "namespaced rules cannot apply to non-resource URLs"))
			}
			if len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0 {
				errs = append(errs, field.Invalid(path.Child("nonResourceURLs"), rule.NonResourceURLs, "rules cannot apply to both regular resources and non-resource URLs"))
			}
			continue
		}
		if len(rule.APIGroups) == 0 {
			errs = append(errs, field.Required(path.Child("apiGroups"), "resource rules must supply at least one api group"))
		}
		if len(rule.Resources) == 0 {
			errs = append(errs, field.Required(path.Child("resources"), "resource rules must supply at least one resource"))
		}
	}
	return errs
}

// validateAggregation validates aggregationRule. anyValue accepts selector values that are not
// valid labels, because the old object has some.
func validateAggregation(rule *rbacv1.AggregationRule, anyValue bool) field.ErrorList {
	if rule == nil {
		return nil
	}
	var errs field.ErrorList
	path := field.NewPath("aggregationRule", "clusterRoleSelectors")
	if len(rule.ClusterRoleSelectors) == 0 {
		errs = append(errs, field.Required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
	}
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: anyValue}
	for i := range rule.ClusterRoleSelectors {
		s := &rule.ClusterRoleSelectors[i]
		errs = append(errs, metavalidation.ValidateLabelSelector(s, options, path.Index(i))...)
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), nil, "invalid label selector."))
		}
	}
	return errs
}

func hasBadSelector(rule *rbacv1.AggregationRule) bool {
	if rule == nil {
		return false
	}
	for i := range rule.ClusterRoleSelectors {
		if len(metavalidation.ValidateLabelSelector(&rule.ClusterRoleSelectors[i], metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
			return true
		}
	}
	return false
}
