// Package authorization is the API group authorization.k8s.io: access reviews, which an
// authorizer answers. Start at Group and Config.
package authorization

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Config are the dependencies of the group.
type Config struct {
	// Authorizer answers reviews. The default allows everything, as a server without
	// authorization does.
	Authorizer authz.Authorizer
	// Rules enumerates the rules of a user; the default is Authorizer, if it can.
	Rules authz.Rules
}

// Group returns the group.
func Group(cfg Config) resource.Group {
	if cfg.Authorizer == nil {
		cfg.Authorizer = authz.AlwaysAllow{}
	}
	if cfg.Rules == nil {
		cfg.Rules, _ = cfg.Authorizer.(authz.Rules)
	}
	return resource.Group{Name: authorizationv1.GroupName, Resources: []resource.Definition{
		LocalSubjectAccessReviews(cfg),
		SelfSubjectAccessReviews(cfg),
		SelfSubjectRulesReviews(cfg),
		SubjectAccessReviews(cfg),
	}}
}

// review defines a kind of review.
func review[T any, P interface {
	*T
	resource.Object
}](plural, kind string, namespaced bool, answer func(ctx context.Context, review P) (P, error)) resource.Definition {
	return resource.Definition{
		Group:      authorizationv1.GroupName,
		Resource:   plural,
		Kind:       kind,
		Namespaced: namespaced,
		Versions:   []resource.Version{{Name: "v1", New: func() resource.Object { return P(new(T)) }}},
		Answer: func(ctx context.Context, obj resource.Object) (resource.Object, error) {
			return answer(ctx, obj.(P))
		},
	}
}

// invalid is what is wrong with a review. Clients know it without the kind.
func invalid(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return problems.Invalid(schema.GroupKind{Group: authorizationv1.GroupName}, "", errs)
}

// decide asks the authorizer.
func (cfg Config) decide(ctx context.Context, user *request.User, r *authorizationv1.ResourceAttributes, p *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := attributes(user, r, p)
	decision, reason, err := cfg.Authorizer.Authorize(ctx, a)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed: decision == authz.Allow, Denied: decision == authz.Deny,
		Reason: reason, EvaluationError: evaluationError(a, err),
	}
}

// evaluationError returns status.evaluationError of a decision.
func evaluationError(a *authz.Attributes, err error) string {
	var texts []string
	if err != nil {
		texts = append(texts, err.Error())
	}
	ignored := func(name string, err error, left int) {
		if err == nil {
			return
		}
		how := "ignored"
		if left > 0 {
			how = "partially ignored"
		}
		texts = append(texts, fmt.Sprintf("spec.resourceAttributes.%s %s due to parse error", name, how))
	}
	ignored("fieldSelector", a.FieldsErr, len(a.Fields))
	ignored("labelSelector", a.LabelsErr, len(a.Labels))
	return strings.Join(texts, "; ")
}

// attributes returns the authorizer attributes of a review.
func attributes(user *request.User, r *authorizationv1.ResourceAttributes, p *authorizationv1.NonResourceAttributes) *authz.Attributes {
	if r == nil {
		return &authz.Attributes{User: user, Verb: p.Verb, Path: p.Path}
	}
	a := &authz.Attributes{
		User: user, Verb: r.Verb, IsResource: true, Group: r.Group, Version: r.Version, Namespace: r.Namespace,
		Resource: r.Resource, Subresource: r.Subresource, Name: r.Name,
	}
	if a.Version == "" {
		a.Version = "*"
	}
	if s := r.FieldSelector; s != nil {
		if len(s.Requirements) > 0 {
			a.Fields, a.FieldsErr = fieldRequirements(s.Requirements)
		} else if selector, err := fields.ParseSelector(s.RawSelector); err != nil {
			a.FieldsErr = err
		} else {
			a.Fields = selector.Requirements()
		}
	}
	if s := r.LabelSelector; s != nil {
		if len(s.Requirements) > 0 {
			a.Labels, a.LabelsErr = labelRequirements(s.Requirements)
		} else if selector, err := labels.Parse(s.RawSelector); err != nil {
			a.LabelsErr = err
		} else {
			a.Labels, _ = selector.Requirements()
		}
	}
	return a
}

// fieldRequirements converts field selector requirements. Those that cannot be converted are
// dropped, which only widens the check.
func fieldRequirements(in []metav1.FieldSelectorRequirement) (out fields.Requirements, _ error) {
	var errs []error
	for _, r := range in {
		operator := selection.Equals
		switch r.Operator {
		case metav1.FieldSelectorOpIn:
		case metav1.FieldSelectorOpNotIn:
			operator = selection.NotEquals
		case metav1.FieldSelectorOpExists, metav1.FieldSelectorOpDoesNotExist:
			errs = append(errs, fmt.Errorf("fieldSelectors do not yet support %v", r.Operator))
			continue
		default:
			errs = append(errs, fmt.Errorf("%q is not a valid field selector operator", r.Operator))
			continue
		}
		if len(r.Values) != 1 {
			errs = append(errs, errors.New("fieldSelectors must have one value"))
			continue
		}
		out = append(out, fields.Requirement{Field: r.Key, Operator: operator, Value: r.Values[0]})
	}
	return out, aggregate(errs)
}

func labelRequirements(in []metav1.LabelSelectorRequirement) (out labels.Requirements, _ error) {
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var errs []error
	for _, r := range in {
		operator, ok := operators[r.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", r.Operator))
			continue
		}
		requirement, err := labels.NewRequirement(r.Key, operator, r.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *requirement)
	}
	return out, aggregate(errs)
}

func aggregate(errs []error) error {
	if len(errs) == 0 {
		return nil
	}
	return problems.Join(errs)
}

// path is NonResourceAttributes as error messages print it.
type path struct{ Path, Verb string }

func pathOf(p *authorizationv1.NonResourceAttributes) *path { return (*path)(p) }

// validateQuestion checks what a review asks about.
func validateQuestion(r *authorizationv1.ResourceAttributes, p *authorizationv1.NonResourceAttributes) (errs field.ErrorList) {
	if (r == nil) == (p == nil) {
		errs = append(errs, field.Invalid(field.NewPath("spec"), pathOf(p), "exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	}
	return errs
}

// validateSelectors checks the selectors of a resource.
func validateSelectors(r *authorizationv1.ResourceAttributes) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	at := field.NewPath("spec.resourceAttributes")
	either := func(path *field.Path, raw string, requirements int) {
		switch {
		case raw != "" && requirements > 0:
			errs = append(errs, field.Invalid(path.Child("rawSelector"), raw, "may not specified at the same time as requirements"))
		case raw == "" && requirements == 0:
			errs = append(errs, field.Required(path.Child("requirements"), fmt.Sprintf("when %s is specified, requirements or rawSelector is required", path)))
		}
	}
	if s, path := r.FieldSelector, at.Child("fieldSelector"); s != nil {
		either(path, s.RawSelector, len(s.Requirements))
		for i, requirement := range s.Requirements {
			opts := metav1validation.FieldSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metav1validation.ValidateFieldSelectorRequirement(requirement, opts, path.Child("requirements").Index(i))...)
		}
	}
	if s, path := r.LabelSelector, at.Child("labelSelector"); s != nil {
		either(path, s.RawSelector, len(s.Requirements))
		for i, requirement := range s.Requirements {
			opts := metav1validation.LabelSelectorValidationOptions{AllowUnknownOperatorInRequirement: true}
			errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(requirement, opts, path.Child("requirements").Index(i))...)
		}
	}
	return errs
}

// validateSubject checks a SubjectAccessReview.
func validateSubject(spec *authorizationv1.SubjectAccessReviewSpec) field.ErrorList {
	errs := validateQuestion(spec.ResourceAttributes, spec.NonResourceAttributes)
	if spec.User == "" && len(spec.Groups) == 0 {
		errs = append(errs, field.Invalid(field.NewPath("spec", "user"), spec.User, "at least one of user or group must be specified"))
	}
	return append(errs, validateSelectors(spec.ResourceAttributes)...)
}

// validateMeta checks that metadata is empty, apart from fields that kept clears.
func validateMeta(meta metav1.ObjectMeta, rule string, kept func(*metav1.ObjectMeta)) field.ErrorList {
	rest := meta
	rest.ManagedFields = nil
	if kept != nil {
		kept(&rest)
	}
	if equality.Semantic.DeepEqual(rest, metav1.ObjectMeta{}) {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata"), meta, rule)}
}

// subjectOf returns the user that a review is about.
func subjectOf(spec *authorizationv1.SubjectAccessReviewSpec) *request.User {
	user := &request.User{Name: spec.User, UID: spec.UID, Groups: spec.Groups}
	for k, v := range spec.Extra {
		if user.Extra == nil {
			user.Extra = map[string][]string{}
		}
		user.Extra[k] = v
	}
	return user
}
