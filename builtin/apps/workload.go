package apps

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
)

// deref returns what p points to, the zero value if it is nil.
func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// nonnegative validates a number that cannot be below zero.
func nonnegative[T ~int32 | ~int64](value T, path *field.Path) field.ErrorList {
	return validation.ValidateNonnegativeField(int64(value), path)
}

// nonnegativeIfSet is nonnegative for a number that may be left out.
func nonnegativeIfSet(value *int32, path *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	return nonnegative(*value, path)
}

// atMost checks that a number of replicas does not exceed limit, which errors call name.
func atMost(value, limit int32, name string, path *field.Path) field.ErrorList {
	if value <= limit {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "cannot be greater than "+name)}
}

// validateSelected validates selector and template of a workload whose pods always restart;
// path is that of the spec. old is the template before an update, nil on create.
func validateSelected(ctx context.Context, selector *metav1.LabelSelector, template, old *corev1.PodTemplateSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("selector")
	if selector == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, metavalidation.ValidateLabelSelector(selector, metavalidation.LabelSelectorValidationOptions{}, at)...)
		if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
			// kube-apiserver has this text for every kind.
			errs = append(errs, field.Invalid(at, selector, "empty selector is invalid for deployment"))
		}
	}
	matcher, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		// Without a selector the template cannot be checked.
		return append(errs, field.Invalid(at, selector, "invalid label selector"))
	}
	at = path.Child("template")
	if !matcher.Empty() && !matcher.Matches(labels.Set(template.Labels)) {
		errs = append(errs, field.Invalid(at.Child("metadata", "labels"), template.Labels, "`selector` does not match template `labels`"))
	}
	errs = append(errs, podspec.ValidateTemplate(ctx, template, at, old)...)
	return append(errs, validateAlwaysRestart(&template.Spec, "ReplicaSet", at.Child("spec"))...)
}

// validateAlwaysRestart checks that pods have restartPolicy Always and no deadline.
func validateAlwaysRestart(spec *corev1.PodSpec, kind string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p := spec.RestartPolicy; p != corev1.RestartPolicyAlways {
		errs = append(errs, field.NotSupported(path.Child("restartPolicy"), p, []corev1.RestartPolicy{corev1.RestartPolicyAlways}))
	}
	if spec.ActiveDeadlineSeconds != nil {
		errs = append(errs, field.Forbidden(path.Child("activeDeadlineSeconds"), "activeDeadlineSeconds in "+kind+" is not Supported"))
	}
	return errs
}

// validateCollisions checks that collisionCount does not decrease.
func validateCollisions(count, old *int32, path *field.Path) field.ErrorList {
	if old != nil && (count == nil || *count < *old) {
		return field.ErrorList{field.Invalid(path, deref(count), "cannot be decremented")}
	}
	return nil
}

// ValidateIntOrPercent checks for a non-negative number or a percentage.
func ValidateIntOrPercent(v intstr.IntOrString, path *field.Path) field.ErrorList {
	if v.Type == intstr.Int {
		return nonnegative(v.IntVal, path)
	}
	var errs field.ErrorList
	for _, m := range utilvalidation.IsValidPercent(v.StrVal) {
		errs = append(errs, field.Invalid(path, v, m))
	}
	return errs
}

// percent returns the value of a percentage, and false if v is none.
func percent(v intstr.IntOrString) (value int, isPercent bool) {
	if v.Type == intstr.String && len(utilvalidation.IsValidPercent(v.StrVal)) == 0 {
		value, _ = strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
		return value, true
	}
	return v.IntValue(), false
}

// ValidateAtMostAll checks that a percentage is at most 100.
func ValidateAtMostAll(v intstr.IntOrString, path *field.Path) field.ErrorList {
	if share, isPercent := percent(v); isPercent && share > 100 {
		return field.ErrorList{field.Invalid(path, v, "must not be greater than 100%")}
	}
	return nil
}
