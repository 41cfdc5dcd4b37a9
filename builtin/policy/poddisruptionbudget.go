package policy

import (
	"context"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/apps"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// PodDisruptionBudgets defines poddisruptionbudgets.
func PodDisruptionBudgets() resource.Definition {
	status := resource.Rules[*policyv1.PodDisruptionBudget]{
		PrepareUpdate: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) { b.Spec = old.Spec },
		ValidateUpdate: func(ctx context.Context, b, _ *policyv1.PodDisruptionBudget) field.ErrorList {
			return validateStatus(&b.Status, field.NewPath("status"), request.From(ctx).Version == oldVersion)
		},
		RequireVersion: true,
	}.Strategy()
	return resource.Definition{
		Group:      policyv1.GroupName,
		Resource:   "poddisruptionbudgets",
		Kind:       "PodDisruptionBudget",
		ShortNames: []string{"pdb"},
		Namespaced: true,
		StorageKey: "poddisruptionbudgets",
		Versions:   []resource.Version{resource.VersionOf[policyv1.PodDisruptionBudget, policyv1.PodDisruptionBudgetList]("v1", nil), budgetsV1beta1()},
		Strategy: resource.Rules[*policyv1.PodDisruptionBudget]{
			ValidateName: validateName,
			// Nothing is said of the metadata while the rest is wrong.
			JudgesMetadata: true,
			PrepareCreate: func(_ context.Context, b *policyv1.PodDisruptionBudget) {
				b.Status = policyv1.PodDisruptionBudgetStatus{}
				removeReserved(b.Spec.Selector)
			},
			PrepareUpdate: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) {
				b.Status = old.Status
				if !equality.Semantic.DeepEqual(b.Spec.Selector, old.Spec.Selector) {
					removeReserved(b.Spec.Selector)
				}
			},
			Validate: func(_ context.Context, b *policyv1.PodDisruptionBudget) field.ErrorList {
				return validateSpec(&b.Spec, field.NewPath("spec"), metavalidation.LabelSelectorValidationOptions{})
			},
			ValidateUpdate: func(_ context.Context, b, old *policyv1.PodDisruptionBudget) field.ErrorList {
				var opts metavalidation.LabelSelectorValidationOptions
				opts.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(old.Spec.Selector, opts, nil)) > 0
				return validateSpec(&b.Spec, field.NewPath("spec"), opts)
			},
			Generation: func(b, old *policyv1.PodDisruptionBudget) bool {
				return !equality.Semantic.DeepEqual(b.Spec, old.Spec)
			},
			RequireVersion: true,
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Min Available", Type: "string", Description: "The minimum number of pods that must be available."},
			{Name: "Max Unavailable", Type: "string", Description: "The maximum number of pods that may be unavailable."},
			{Name: "Allowed Disruptions", Type: "integer", Description: "Calculated number of pods that may be disrupted at this time."},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(b *policyv1.PodDisruptionBudget) []any {
			return []any{
				b.Name, orNone(b.Spec.MinAvailable), orNone(b.Spec.MaxUnavailable), int64(b.Status.DisruptionsAllowed),
				resource.Since(b.CreationTimestamp.Time),
			}
		}),
	}
}

// validateName checks only that a name is a valid path segment.
func validateName(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

func orNone(v *intstr.IntOrString) string {
	if v == nil {
		return "N/A"
	}
	return v.String()
}

// reservedLabel is used in selectors that match nothing in v1 or everything in v1beta1: an
// empty selector means the opposite in each. No pod has this label.
const reservedLabel = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

// oldVersion is the version in which an empty selector matches nothing.
const oldVersion = "v1beta1"

// matchNothing returns the v1 form of an empty v1beta1 selector.
func matchNothing() *metav1.LabelSelector { return onReserved(metav1.LabelSelectorOpExists) }

// matchEverything returns the v1beta1 form of an empty v1 selector.
func matchEverything() *metav1.LabelSelector { return onReserved(metav1.LabelSelectorOpDoesNotExist) }

func onReserved(op metav1.LabelSelectorOperator) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: reservedLabel, Operator: op}}}
}

// budgetsV1beta1 returns the version v1beta1.
func budgetsV1beta1() resource.Version {
	kind := policyv1beta1.SchemeGroupVersion.WithKind("PodDisruptionBudget")
	return resource.AlikeVersion[policyv1beta1.PodDisruptionBudget, policyv1beta1.PodDisruptionBudgetList](kind, nil,
		func(old *policyv1beta1.PodDisruptionBudget, b *policyv1.PodDisruptionBudget) {
			switch s := old.Spec.Selector; {
			case equality.Semantic.DeepEqual(s, &metav1.LabelSelector{}):
				b.Spec.Selector = matchNothing()
			case equality.Semantic.DeepEqual(s, matchEverything()):
				b.Spec.Selector = &metav1.LabelSelector{}
			default:
				b.Spec.Selector = s.DeepCopy()
				dropReserved(b.Spec.Selector)
			}
		},
		func(b *policyv1.PodDisruptionBudget, old *policyv1beta1.PodDisruptionBudget) {
			switch s := b.Spec.Selector; {
			case equality.Semantic.DeepEqual(s, matchNothing()):
				old.Spec.Selector = &metav1.LabelSelector{}
			case equality.Semantic.DeepEqual(s, &metav1.LabelSelector{}):
				old.Spec.Selector = matchEverything()
			}
		})
}

// removeReserved removes the reserved label from selectors that have other requirements too.
func removeReserved(s *metav1.LabelSelector) {
	if !equality.Semantic.DeepEqual(s, matchNothing()) {
		dropReserved(s)
	}
}

func dropReserved(s *metav1.LabelSelector) {
	if s != nil {
		s.MatchExpressions = slices.DeleteFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == reservedLabel })
	}
}

func validateSpec(spec *policyv1.PodDisruptionBudgetSpec, path *field.Path, opts metavalidation.LabelSelectorValidationOptions) field.ErrorList {
	var errs field.ErrorList
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		errs = append(errs, field.Invalid(path, rules.GoForm(spec), "minAvailable and maxUnavailable cannot be both set"))
	}
	amount := func(v *intstr.IntOrString, path *field.Path) {
		if v != nil {
			errs = append(errs, apps.ValidateIntOrPercent(*v, path)...)
			errs = append(errs, apps.ValidateAtMostAll(*v, path)...)
		}
	}
	amount(spec.MinAvailable, path.Child("minAvailable"))
	amount(spec.MaxUnavailable, path.Child("maxUnavailable"))
	errs = append(errs, metavalidation.ValidateLabelSelector(spec.Selector, opts, path.Child("selector"))...)
	known := []policyv1.UnhealthyPodEvictionPolicyType{policyv1.AlwaysAllow, policyv1.IfHealthyBudget}
	if p := spec.UnhealthyPodEvictionPolicy; p != nil && !slices.Contains(known, *p) {
		errs = append(errs, field.NotSupported(path.Child("unhealthyPodEvictionPolicy"), *p, known))
	}
	return errs
}

// validateStatus validates a status; v1beta1 (old) does not check the numbers.
func validateStatus(s *policyv1.PodDisruptionBudgetStatus, path *field.Path, old bool) field.ErrorList {
	errs := metavalidation.ValidateConditions(s.Conditions, path.Child("conditions"))
	if old {
		return errs
	}
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.DisruptionsAllowed), path.Child("disruptionsAllowed"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.CurrentHealthy), path.Child("currentHealthy"))...)
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(s.DesiredHealthy), path.Child("desiredHealthy"))...)
	return append(errs, apivalidation.ValidateNonnegativeField(int64(s.ExpectedPods), path.Child("expectedPods"))...)
}
