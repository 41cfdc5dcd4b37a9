package admissionregistration

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

func defaultRule(r *admissionv1.Rule) { rules.DefaultPointer(&r.Scope, admissionv1.AllScopes) }

func defaultMatch(m *admissionv1.MatchResources) {
	if m == nil {
		return
	}
	rules.DefaultPointer(&m.MatchPolicy, admissionv1.Equivalent)
	rules.DefaultPointer(&m.NamespaceSelector, metav1.LabelSelector{})
	rules.DefaultPointer(&m.ObjectSelector, metav1.LabelSelector{})
	for i := range m.ResourceRules {
		defaultRule(&m.ResourceRules[i].Rule)
	}
	for i := range m.ExcludeResourceRules {
		defaultRule(&m.ExcludeResourceRules[i].Rule)
	}
}

// validateRule validates the operations and resources of a rule.
func validateRule(r *admissionv1.RuleWithOperations, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	// some checks for a list of names, or "*" alone.
	some := func(list []string, name, names string) {
		if len(list) == 0 {
			errs = append(errs, field.Required(path.Child(name), ""))
		}
		if len(list) > 1 && slices.Contains(list, "*") {
			errs = append(errs, field.Invalid(path.Child(name), list, "if '*' is present, must not specify other "+names))
		}
	}
	operations := make([]string, len(r.Operations))
	for i, o := range r.Operations {
		operations[i] = string(o)
	}
	some(operations, "operations", "operations")
	for i, o := range r.Operations {
		errs = append(errs, supported(o, path.Child("operations").Index(i),
			admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Delete, admissionv1.Update)...)
	}
	some(r.APIGroups, "apiGroups", "API groups")
	some(r.APIVersions, "apiVersions", "API versions")
	for i, v := range r.APIVersions {
		if v == "" {
			errs = append(errs, field.Required(path.Child("apiVersions").Index(i), ""))
		}
	}
	errs = append(errs, validateResources(r.Resources, path.Child("resources"))...)
	return append(errs, supportedIfSet(r.Scope, path.Child("scope"), admissionv1.AllScopes, admissionv1.ClusterScope, admissionv1.NamespacedScope)...)
}

// validateResources validates names of resources and subresources; a wildcard must not cover
// others in the list.
func validateResources(resources []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(resources) == 0 {
		errs = append(errs, field.Required(path, ""))
	}
	allOf, ofAll := map[string]bool{}, map[string]bool{}
	lastPlain := false
	for i, r := range resources {
		if r == "" {
			errs = append(errs, field.Required(path.Index(i), ""))
			continue
		}
		res, sub, isSub := strings.Cut(r, "/")
		if !isSub {
			lastPlain = r != "*"
			continue
		}
		if allOf[res] {
			errs = append(errs, field.Invalid(path.Index(i), r, fmt.Sprintf("if '%s/*' is present, must not specify %s", res, r)))
		}
		if ofAll[sub] {
			errs = append(errs, field.Invalid(path.Index(i), r, fmt.Sprintf("if '*/%s' is present, must not specify %s", sub, r)))
		}
		allOf[res] = allOf[res] || sub == "*"
		ofAll[sub] = ofAll[sub] || res == "*"
	}
	if len(resources) > 1 && slices.Contains(resources, "*/*") {
		errs = append(errs, field.Invalid(path, resources, "if '*/*' is present, must not specify other resources"))
	}
	// As in kube-apiserver, only the last resource without a subresource counts.
	if lastPlain && slices.Contains(resources, "*") {
		errs = append(errs, field.Invalid(path, resources, "if '*' is present, must not specify other resources without subresources"))
	}
	return errs
}

// validateMatch validates matchConstraints or matchResources; nil matches everything.
func validateMatch(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	if m.MatchPolicy == nil {
		errs = append(errs, field.Required(path.Child("matchPolicy"), ""))
	}
	errs = append(errs, supportedIfSet(m.MatchPolicy, path.Child("matchPolicy"), admissionv1.Equivalent, admissionv1.Exact)...)
	selector := func(s *metav1.LabelSelector, name string) {
		if s == nil {
			errs = append(errs, field.Required(path.Child(name), ""))
			return
		}
		errs = append(errs, metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, path.Child(name))...)
	}
	selector(m.NamespaceSelector, "namespaceSelector")
	selector(m.ObjectSelector, "objectSelector")
	each := func(list []admissionv1.NamedRuleWithOperations, path *field.Path) {
		for i := range list {
			seen := map[string]bool{}
			for j, name := range list[i].ResourceNames {
				at := path.Index(i).Child("resourceNames").Index(j)
				errs = append(errs, rules.Invalid(at, name, content.IsPathSegmentName(name))...)
				if seen[name] {
					errs = append(errs, field.Duplicate(at, name))
				}
				seen[name] = true
			}
			errs = append(errs, validateRule(&list[i].RuleWithOperations, path.Index(i))...)
		}
	}
	each(m.ResourceRules, path.Child("resourceRules"))
	each(m.ExcludeResourceRules, path.Child("excludeResourceRules"))
	return errs
}

// validateMutable refuses operations without an object to mutate.
func validateMutable(m *admissionv1.MatchResources, path *field.Path) field.ErrorList {
	if m == nil {
		return nil
	}
	var errs field.ErrorList
	for _, rule := range m.ResourceRules {
		for _, o := range rule.Operations {
			errs = append(errs, supported(o, path.Child("resourceRules", "operations"),
				admissionv1.OperationAll, admissionv1.Connect, admissionv1.Create, admissionv1.Update)...)
		}
	}
	return errs
}

func validateParamKind(k *admissionv1.ParamKind, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("apiVersion")
	group, version, _ := strings.Cut(k.APIVersion, "/")
	if !strings.Contains(k.APIVersion, "/") {
		group, version = "", k.APIVersion
	}
	joined := func(value string, messages []string) {
		if len(messages) > 0 {
			errs = append(errs, field.Invalid(at, value, strings.Join(messages, ",")))
		}
	}
	switch {
	case k.APIVersion == "":
		errs = append(errs, field.Required(at, ""))
	case strings.Contains(version, "/"):
		errs = append(errs, field.Invalid(at, k.APIVersion, "unexpected GroupVersion string: "+k.APIVersion))
	default:
		if group != "" {
			joined(group, validation.IsDNS1123Subdomain(group))
		}
		if version == "" {
			errs = append(errs, field.Invalid(at, k.APIVersion, "version must be specified"))
		} else {
			joined(version, validation.IsDNS1035Label(version))
		}
	}
	if k.Kind == "" {
		errs = append(errs, field.Required(path.Child("kind"), ""))
	} else if messages := validation.IsDNS1035Label(strings.ToLower(k.Kind)); len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("kind"), k.Kind, "may have mixed case, but should otherwise match: "+strings.Join(messages, ",")))
	}
	return errs
}

func validateParamRef(r *admissionv1.ParamRef, path *field.Path) field.ErrorList {
	if r == nil {
		return nil
	}
	var errs field.ErrorList
	const exclusive = "name and selector are mutually exclusive"
	if r.Name != "" {
		errs = append(errs, rules.Invalid(path.Child("name"), r.Name, content.IsPathSegmentName(r.Name))...)
		if r.Selector != nil {
			errs = append(errs, field.Forbidden(path.Child("name"), exclusive))
		}
	}
	if r.Selector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(r.Selector, metavalidation.LabelSelectorValidationOptions{}, path.Child("selector"))...)
		if r.Name != "" {
			errs = append(errs, field.Forbidden(path.Child("selector"), exclusive))
		}
	}
	if r.Name == "" && r.Selector == nil {
		errs = append(errs, field.Required(path, "one of name or selector must be specified"))
	}
	if a := r.ParameterNotFoundAction; a == nil || *a == "" {
		return append(errs, field.Required(path.Child("parameterNotFoundAction"), ""))
	}
	return append(errs, supportedIfSet(r.ParameterNotFoundAction, path.Child("parameterNotFoundAction"), admissionv1.DenyAction, admissionv1.AllowAction)...)
}
