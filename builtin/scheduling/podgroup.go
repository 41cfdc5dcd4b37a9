package scheduling

import (
	"context"
	"slices"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// podGroup is the storage version of the kind.
type podGroup = schedulingv1beta1.PodGroup

// PodGroups defines podgroups: pods that are scheduled together.
func PodGroups(gates features.Gates) resource.Definition {
	declaredRules := groupRules()
	judge := func(ctx context.Context, g, old *podGroup) field.ErrorList {
		if old == nil {
			return judgeParts(ctx, declaredRules(), &g.Spec, (*schedulingv1beta1.PodGroupSpec)(nil), &g.Status, (*schedulingv1beta1.PodGroupStatus)(nil))
		}
		return judgeParts(ctx, declaredRules(), &g.Spec, &old.Spec, &g.Status, &old.Status)
	}
	status := resource.Rules[*podGroup]{
		RequireVersion: true,
		PrepareUpdate: func(ctx context.Context, g, old *podGroup) {
			g.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&g.ObjectMeta, &old.ObjectMeta)
			if !features.From(ctx).Enabled(sharedClaims) && len(old.Spec.ResourceClaims) == 0 {
				g.Status.ResourceClaimStatuses = nil
			}
		},
		ValidateUpdate: func(ctx context.Context, g, old *podGroup) field.ErrorList {
			return append(validateGroupStatus(g, field.NewPath("status")), judge(ctx, g, old)...)
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	defaults := func(g *podGroup) {
		if gates.Enabled(preemptionPolicy) && g.Spec.PreemptionPolicy == nil {
			g.Spec.PreemptionPolicy = new(schedulingv1beta1.PreemptLowerPriority)
		}
		if g.Spec.DisruptionMode == nil {
			g.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{Single: &schedulingv1beta1.SingleDisruptionMode{}}
		}
	}
	return resource.Definition{
		Group:      schedulingv1.GroupName,
		Resource:   "podgroups",
		Gate:       GenericWorkload,
		Kind:       "PodGroup",
		Namespaced: true,
		StorageKey: "podgroups",
		GatedFields: []resource.GatedField{
			{Path: "spec.schedulingConstraints", Gate: topologyAware},
			{Path: "spec.resourceClaims", Gate: sharedClaims},
			{Path: "spec.preemptionPolicy", Gate: preemptionPolicy},
			{Path: "spec.parentCompositePodGroupName", Gate: CompositePodGroup},
		},
		Versions: groupVersions[podGroup, schedulingv1beta1.PodGroupList, schedulingv1alpha3.PodGroup, schedulingv1alpha3.PodGroupList]("PodGroup", defaults),
		Strategy: resource.Rules[*podGroup]{
			RequireVersion: true,
			PrepareCreate:  func(_ context.Context, g *podGroup) { g.Status = schedulingv1beta1.PodGroupStatus{} },
			PrepareUpdate:  func(_ context.Context, g, old *podGroup) { g.Status = old.Status },
			Validate: func(ctx context.Context, g *podGroup) field.ErrorList {
				var errs field.ErrorList
				if g.Spec.ParentCompositePodGroupName != nil && g.Spec.WorkloadRef == nil {
					errs = append(errs, field.Required(field.NewPath("spec", "workloadRef"), "must be set when parentCompositePodGroupName is set"))
				}
				return append(errs, judge(ctx, g, nil)...)
			},
			ValidateUpdate: judge,
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Policy", Type: "string", Description: schedulingv1beta1.PodGroupSpec{}.SwaggerDoc()["schedulingPolicy"]},
			{Name: "Workload", Type: "string", Description: "Name of the referenced Workload object"},
			{Name: "Status", Type: "string", Description: "Status of the PodGroup"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(g *podGroup) []any {
			workload := "<none>"
			if ref := g.Spec.WorkloadRef; ref != nil {
				workload = ref.WorkloadName
			}
			return []any{g.Name, policyName(g.Spec.SchedulingPolicy.Gang != nil), workload, groupState(g.Status.Conditions), resource.Since(g.CreationTimestamp.Time)}
		}),
	}
}

func policyName(gang bool) string {
	if gang {
		return "Gang"
	}
	return "Basic"
}

func groupState(conditions []metav1.Condition) string {
	state, target := "Pending", ""
	for _, c := range conditions {
		switch {
		case c.Type == schedulingv1beta1.DisruptionTarget:
			target = c.Reason
		case c.Type != schedulingv1beta1.PodGroupInitiallyScheduled:
		case c.Status == metav1.ConditionTrue:
			state = "Scheduled"
		default:
			state = "Unschedulable"
		}
	}
	if target != "" {
		return target
	}
	return state
}

func validateGroupStatus(g *podGroup, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateConditions(g.Status.Conditions, path.Child("conditions"))
	for i, s := range g.Status.ResourceClaimStatuses {
		if !slices.ContainsFunc(g.Spec.ResourceClaims, func(c schedulingv1beta1.PodGroupResourceClaim) bool { return c.Name == s.Name }) {
			errs = append(errs, field.Invalid(path.Child("resourceClaimStatuses").Index(i).Child("name"), s.Name,
				"must match the name of an entry in `spec.resourceClaims`"))
		}
	}
	return errs
}
