package admissionregistration

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/admissionregistration/policycel"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/internal/boundedregexp"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
)

// hook is a webhook of either kind: validating ones have all fields of mutating ones but one.
type hook = admissionv1.MutatingWebhook

// MutatingWebhooks defines mutatingwebhookconfigurations.
func MutatingWebhooks(cfg Config) resource.Definition {
	type config = admissionv1.MutatingWebhookConfiguration
	d := define[config, admissionv1.MutatingWebhookConfigurationList](cfg, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration",
		func(c *config) {
			for i := range c.Webhooks {
				w := &c.Webhooks[i]
				defaultWebhook(w)
				rules.DefaultPointer(&w.ReinvocationPolicy, admissionv1.NeverReinvocationPolicy)
			}
		},
		resource.Rules[*config]{
			Validate: func(ctx context.Context, c *config) field.ErrorList {
				return validateWebhooks(ctx, c.Webhooks, nil, cfg.Expressions)
			},
			ValidateUpdate: func(ctx context.Context, c, old *config) field.ErrorList {
				return validateWebhooks(ctx, c.Webhooks, &old.Webhooks, cfg.Expressions)
			},
			Generation: func(c, old *config) bool { return !reflect.DeepEqual(c.Webhooks, old.Webhooks) },
			Warnings:   func(ctx context.Context, c, _ *config) []string { return excludedWarnings(ctx, c.Webhooks) },
		})
	d.Old = oldMutatingWebhooks()
	d.Columns = webhookColumns()
	d.Cells = resource.CellsFunc(func(c *config) []any {
		return []any{c.Name, int64(len(c.Webhooks)), resource.Since(c.CreationTimestamp.Time)}
	})
	return d
}

// ValidatingWebhooks defines validatingwebhookconfigurations.
func ValidatingWebhooks(cfg Config) resource.Definition {
	type config = admissionv1.ValidatingWebhookConfiguration
	d := define[config, admissionv1.ValidatingWebhookConfigurationList](cfg, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration",
		func(c *config) {
			for i := range c.Webhooks {
				w := toHook(c.Webhooks[i])
				defaultWebhook(&w)
				c.Webhooks[i] = fromHook(w)
			}
		},
		resource.Rules[*config]{
			Validate: func(ctx context.Context, c *config) field.ErrorList {
				return validateWebhooks(ctx, toHooks(c.Webhooks), nil, cfg.Expressions)
			},
			ValidateUpdate: func(ctx context.Context, c, old *config) field.ErrorList {
				before := toHooks(old.Webhooks)
				return validateWebhooks(ctx, toHooks(c.Webhooks), &before, cfg.Expressions)
			},
			Generation: func(c, old *config) bool { return !reflect.DeepEqual(c.Webhooks, old.Webhooks) },
			Warnings: func(ctx context.Context, c, _ *config) []string {
				return excludedWarnings(ctx, toHooks(c.Webhooks))
			},
		})
	d.Old = oldValidatingWebhooks()
	d.Columns = webhookColumns()
	d.Cells = resource.CellsFunc(func(c *config) []any {
		return []any{c.Name, int64(len(c.Webhooks)), resource.Since(c.CreationTimestamp.Time)}
	})
	return d
}

func webhookColumns() []resource.Column {
	return []resource.Column{
		rules.NameColumn(),
		{Name: "Webhooks", Type: "integer", Description: "Webhooks indicates the number of webhooks registered in this configuration"},
		rules.AgeColumn(),
	}
}

func toHook(w admissionv1.ValidatingWebhook) hook {
	return hook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
		NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
		TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
}

func toHooks(webhooks []admissionv1.ValidatingWebhook) []hook {
	hooks := make([]hook, len(webhooks))
	for i, w := range webhooks {
		hooks[i] = toHook(w)
	}
	return hooks
}

func fromHook(w hook) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules, FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy,
		NamespaceSelector: w.NamespaceSelector, ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects,
		TimeoutSeconds: w.TimeoutSeconds, AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions,
	}
}

func defaultWebhook(w *hook) {
	rules.DefaultPointer(&w.FailurePolicy, admissionv1.Fail)
	rules.DefaultPointer(&w.MatchPolicy, admissionv1.Equivalent)
	rules.DefaultPointer(&w.NamespaceSelector, metav1.LabelSelector{})
	rules.DefaultPointer(&w.ObjectSelector, metav1.LabelSelector{})
	rules.DefaultPointer(&w.TimeoutSeconds, 10)
	if s := w.ClientConfig.Service; s != nil {
		rules.DefaultPointer(&s.Port, 443)
	}
	for i := range w.Rules {
		defaultRule(&w.Rules[i].Rule)
	}
}

// excludedWarnings warns about rules for resources that are never sent to webhooks, because a
// webhook for them could lock everyone out.
func excludedWarnings(ctx context.Context, hooks []hook) []string {
	if !features.From(ctx).Enabled("ExcludeAdmissionWebhookVirtualResources") {
		return nil
	}
	excluded := map[schema.GroupResource]bool{
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       true,
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             true,
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: true,
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  true,
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   true,
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      true,
	}
	var warnings []string
	for i, w := range hooks {
		for j, rule := range w.Rules {
			if slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.Resources, "*") {
				continue
			}
			seen := map[schema.GroupResource]bool{}
			for _, group := range rule.APIGroups {
				for _, name := range rule.Resources {
					r := schema.GroupResource{Group: group, Resource: name}
					if excluded[r] && !seen[r] {
						path := field.NewPath("webhooks").Index(i).Child("rules").Index(j)
						warnings = append(warnings, fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no effect", path, r))
					}
					seen[r] = true
				}
			}
		}
	}
	return warnings
}

// leniency is which errors are tolerated because the old object has them.
type leniency struct {
	sideEffects, reviewVersions, names, selectors, conditions bool
	expressions                                               expressions
}

func lenientFor(hooks, old []hook) leniency {
	l := leniency{expressions: expressions{}, conditions: len(hooks) == len(old)}
	names := map[string]bool{}
	for i, w := range old {
		l.sideEffects = l.sideEffects || w.SideEffects == nil || !slices.Contains(harmless(), *w.SideEffects)
		l.reviewVersions = l.reviewVersions || len(w.AdmissionReviewVersions) > 0 && !reviewable(w.AdmissionReviewVersions)
		l.names = l.names || names[w.Name]
		names[w.Name] = true
		for _, s := range []*metav1.LabelSelector{w.NamespaceSelector, w.ObjectSelector} {
			l.selectors = l.selectors || s != nil && len(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0
		}
		l.conditions = l.conditions && reflect.DeepEqual(hooks[i].MatchConditions, w.MatchConditions)
		l.expressions.addConditions(w.MatchConditions)
	}
	return l
}

func harmless() []admissionv1.SideEffectClass {
	return []admissionv1.SideEffectClass{admissionv1.SideEffectClassNone, admissionv1.SideEffectClassNoneOnDryRun}
}

// reviewable reports whether a known version of AdmissionReview is listed.
func reviewable(versions []string) bool {
	return slices.Contains(versions, "v1") || slices.Contains(versions, "v1beta1")
}

// validateWebhooks validates the webhooks of a configuration; old is nil on create.
func validateWebhooks(ctx context.Context, hooks []hook, old *[]hook, env *policycel.Environment) field.ErrorList {
	var errs field.ErrorList
	var allowed leniency
	if old != nil {
		allowed = lenientFor(hooks, *old)
	}
	seen, work := map[string]bool{}, boundedregexp.NewWork(ctx, boundedregexp.MaxWork)
	for i := range hooks {
		w, path := &hooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, validateWebhook(w, allowed, path)...)
		if !allowed.conditions {
			c := compiler{work: work, plain: env.Compiler(), known: allowed.expressions}
			errs = append(errs, c.matchConditions(w.MatchConditions, path.Child("matchConditions"))...)
		}
		errs = append(errs, validateReviewVersions(w.AdmissionReviewVersions, allowed.reviewVersions, path.Child("admissionReviewVersions"))...)
		if w.Name != "" && seen[w.Name] && !allowed.names {
			errs = append(errs, field.Duplicate(path.Child("name"), w.Name))
		}
		seen[w.Name] = true
	}
	return errs
}

func validateWebhook(w *hook, allowed leniency, path *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(path.Child("name"), w.Name)
	for i := range w.Rules {
		errs = append(errs, validateRule(&w.Rules[i], path.Child("rules").Index(i))...)
	}
	errs = append(errs, supportedIfSet(w.FailurePolicy, path.Child("failurePolicy"), admissionv1.Fail, admissionv1.Ignore)...)
	errs = append(errs, supportedIfSet(w.MatchPolicy, path.Child("matchPolicy"), admissionv1.Equivalent, admissionv1.Exact)...)
	classes := harmless()
	if allowed.sideEffects {
		classes = append(classes, admissionv1.SideEffectClassSome, admissionv1.SideEffectClassUnknown)
	}
	if w.SideEffects == nil {
		names := make([]string, len(classes))
		for i, c := range classes {
			names[i] = string(c)
		}
		errs = append(errs, field.Required(path.Child("sideEffects"), "must specify one of "+strings.Join(names, ", ")))
	}
	errs = append(errs, supportedIfSet(w.SideEffects, path.Child("sideEffects"), classes...)...)
	if t := w.TimeoutSeconds; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(path.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	options := metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: allowed.selectors}
	if w.NamespaceSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(w.NamespaceSelector, options, path.Child("namespaceSelector"))...)
	}
	if w.ObjectSelector != nil {
		errs = append(errs, metavalidation.ValidateLabelSelector(w.ObjectSelector, options, path.Child("objectSelector"))...)
	}
	errs = append(errs, supportedIfSet(w.ReinvocationPolicy, path.Child("reinvocationPolicy"), admissionv1.IfNeededReinvocationPolicy, admissionv1.NeverReinvocationPolicy)...)
	path = path.Child("clientConfig")
	switch c := w.ClientConfig; {
	case (c.URL == nil) == (c.Service == nil):
		errs = append(errs, field.Required(path, "exactly one of url or service is required"))
	case c.URL != nil:
		errs = append(errs, webhook.ValidateURL(path.Child("url"), *c.URL)...)
	default:
		s := c.Service
		errs = append(errs, webhook.ValidateService(path.Child("service"), s.Namespace, s.Name, s.Path, ptr.Deref(s.Port, 443))...)
	}
	return errs
}

func validateReviewVersions(versions []string, allowUnknown bool, path *field.Path) field.ErrorList {
	if len(versions) == 0 {
		return field.ErrorList{field.Required(path, "must specify one of v1, v1beta1")}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	for i, v := range versions {
		if seen[v] {
			errs = append(errs, field.Invalid(path.Index(i), v, "duplicate version"))
			continue
		}
		seen[v] = true
		errs = append(errs, rules.Invalid(path.Index(i), v, validation.IsDNS1035Label(v))...)
	}
	if !allowUnknown && !reviewable(versions) {
		errs = append(errs, field.Invalid(path, versions, "must include at least one of v1, v1beta1"))
	}
	return errs
}
