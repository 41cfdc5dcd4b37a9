package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// ResourceQuotas defines resourcequotas.
func ResourceQuotas() resource.Definition {
	return resource.Definition{
		Resource:   "resourcequotas",
		Kind:       "ResourceQuota",
		ShortNames: []string{"quota"},
		Namespaced: true,
		Versions: []resource.Version{resource.VersionOf[corev1.ResourceQuota, corev1.ResourceQuotaList]("v1", func(q *corev1.ResourceQuota) {
			rules.RoundUp(q.Spec.Hard)
			rules.RoundUp(q.Status.Hard)
			rules.RoundUp(q.Status.Used)
		})},
		Strategy: resource.Rules[*corev1.ResourceQuota]{
			ReturnDeleted: true,
			PrepareCreate: func(_ context.Context, q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
			PrepareUpdate: func(_ context.Context, q, old *corev1.ResourceQuota) { q.Status = old.Status },
			Validate:      func(_ context.Context, q *corev1.ResourceQuota) field.ErrorList { return validateQuota(q) },
			ValidateUpdate: func(_ context.Context, q, old *corev1.ResourceQuota) field.ErrorList {
				errs := validateQuota(q)
				if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
					errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, apivalidation.FieldImmutableErrorMsg))
				}
				return errs
			},
			Warnings: func(_ context.Context, q, old *corev1.ResourceQuota) []string {
				if old != nil {
					return nil
				}
				return quotaWarnings(q.Spec.Hard)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{
			Name: "status",
			Part: new(resource.Rules[*corev1.ResourceQuota]{
				PrepareUpdate: func(_ context.Context, q, old *corev1.ResourceQuota) { q.Spec = old.Spec },
				ValidateUpdate: func(_ context.Context, q, _ *corev1.ResourceQuota) field.ErrorList {
					var e rules.Errors
					checkQuotaAmounts(&e, q.Status.Hard, field.NewPath("status", "hard"))
					checkQuotaAmounts(&e, q.Status.Used, field.NewPath("status", "used"))
					return field.ErrorList(e)
				},
			}.Strategy()),
		}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Request", Type: "string", Description: "Request represents a minimum amount of cpu/memory that a container may consume."},
			{Name: "Limit", Type: "string", Description: "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(q *corev1.ResourceQuota) []any {
			var requests, limits []string
			for _, name := range rules.SortedResourceNames(q.Status.Hard) {
				used, hard := q.Status.Used[name], q.Status.Hard[name]
				text := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
				if strings.HasPrefix(string(name), "limits.") {
					limits = append(limits, text)
				} else {
					requests = append(requests, text)
				}
			}
			return []any{q.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), resource.Since(q.CreationTimestamp.Time)}
		}),
	}
}

func validateQuota(q *corev1.ResourceQuota) field.ErrorList {
	var e rules.Errors
	spec, p := &q.Spec, field.NewPath("spec")
	checkQuotaAmounts(&e, spec.Hard, p.Child("hard"))

	sp := p.Child("scopes")
	for _, scope := range spec.Scopes {
		if !knownScope(scope) {
			e.Invalid(sp, spec.Scopes, "unsupported scope")
		}
		for range unscopable(scope, spec.Hard) {
			e.Invalid(sp, spec.Scopes, "unsupported scope applied to resource")
		}
	}
	checkScopePairs(&e, spec.Scopes, spec.Scopes, sp)

	if spec.ScopeSelector == nil {
		return field.ErrorList(e)
	}
	sp = p.Child("scopeSelector", "matchExpressions")
	var scopes []corev1.ResourceQuotaScope
	for i := range spec.ScopeSelector.MatchExpressions {
		r := &spec.ScopeSelector.MatchExpressions[i]
		scopes = append(scopes, r.ScopeName)
		if !knownScope(r.ScopeName) {
			e.Invalid(sp.Child("scopeName"), r.ScopeName, "unsupported scope")
		}
		for range unscopable(r.ScopeName, spec.Hard) {
			e.Invalid(sp, rules.GoForm(spec.ScopeSelector), "unsupported scope applied to resource")
		}
		checkScopeOperator(&e, r, sp)
	}
	checkScopePairs(&e, scopes, spec.Scopes, sp)
	return field.ErrorList(e)
}

// checkQuotaAmounts validates the names and quantities of hard and used.
func checkQuotaAmounts(e *rules.Errors, list corev1.ResourceList, p *field.Path) {
	for _, name := range rules.SortedResourceNames(list) {
		np := p.Key(string(name))
		rules.CheckResourceName(e, name, np)
		if !strings.Contains(string(name), "/") && !isQuotaName(name) {
			e.Invalid(np, name, "must be a standard resource for quota")
		}
		rules.CheckQuantity(e, name, list[name], np)
	}
}

// isQuotaName reports whether a name without a domain is one that quotas can limit: all
// standard ones but storage.
func isQuotaName(name corev1.ResourceName) bool {
	return rules.IsStandardResource(name) && name != corev1.ResourceStorage
}

func knownScope(s corev1.ResourceQuotaScope) bool {
	switch s {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort,
		corev1.ResourceQuotaScopePriorityClass, corev1.ResourceQuotaScopeVolumeAttributesClass,
		corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return true
	}
	return false
}

// unscopable returns the resources in hard that a scope does not apply to.
func unscopable(s corev1.ResourceQuotaScope, hard corev1.ResourceList) []corev1.ResourceName {
	if !knownScope(s) {
		return nil
	}
	fits := []corev1.ResourceName{corev1.ResourcePods}
	switch s {
	case corev1.ResourceQuotaScopeBestEffort:
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		fits = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}
	default:
		fits = append(fits, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory,
			corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory)
	}
	return slices.DeleteFunc(rules.SortedResourceNames(hard), func(name corev1.ResourceName) bool {
		return !isQuotaName(name) || slices.Contains(fits, name)
	})
}

// checkScopePairs refuses a scope together with its opposite.
func checkScopePairs(e *rules.Errors, scopes, shown []corev1.ResourceQuotaScope, p *field.Path) {
	for _, pair := range [][2]corev1.ResourceQuotaScope{
		{corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort},
		{corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating},
	} {
		if slices.Contains(scopes, pair[0]) && slices.Contains(scopes, pair[1]) {
			e.Invalid(p, shown, "conflicting scopes")
		}
	}
}

func checkScopeOperator(e *rules.Errors, r *corev1.ScopedResourceSelectorRequirement, p *field.Path) {
	switch r.ScopeName {
	case corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopeTerminating,
		corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		if r.Operator != corev1.ScopeSelectorOpExists {
			e.Invalid(p.Child("operator"), r.Operator, "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "+
				"ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity")
		}
	}
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			e.Required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			e.Invalid(p.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
		}
	default:
		e.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
	}
}

// quotaWarnings warns about requests that cannot reach their limit because the quota of
// limits is lower.
func quotaWarnings(hard corev1.ResourceList) []string {
	var w []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage, corev1.ResourceEphemeralStorage} {
		requests, limits := "requests."+name, "limits."+name
		request, ok := hard[requests]
		if !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			requests = name
			request, ok = hard[requests]
		}
		if limit, both := hard[limits]; ok && both && request.Cmp(limit) > 0 {
			w = append(w, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)", requests, request.String(), limits, limit.String()))
		}
	}
	return w
}
