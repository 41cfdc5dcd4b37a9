package scheduling

import (
	"context"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

type compositeGroup = schedulingv1alpha3.CompositePodGroup

// CompositePodGroups defines compositepodgroups: groups of pod groups.
func CompositePodGroups(gates features.Gates) resource.Definition {
	declaredRules := groupRules()
	path := field.NewPath("spec")
	status := resource.Rules[*compositeGroup]{
		RequireVersion: true,
		PrepareUpdate: func(_ context.Context, g, old *compositeGroup) {
			g.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&g.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, g, _ *compositeGroup) field.ErrorList {
			return metavalidation.ValidateConditions(g.Status.Conditions, field.NewPath("status", "conditions"))
		},
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	v1alpha3 := resource.VersionOf[compositeGroup, schedulingv1alpha3.CompositePodGroupList]("v1alpha3", func(g *compositeGroup) {
		if gates.Enabled(preemptionPolicy) && g.Spec.PreemptionPolicy == nil {
			g.Spec.PreemptionPolicy = new(schedulingv1alpha3.PreemptLowerPriority)
		}
		if g.Spec.DisruptionMode == nil {
			g.Spec.DisruptionMode = &schedulingv1alpha3.CompositeDisruptionMode{Single: &schedulingv1alpha3.SingleCompositeDisruptionMode{}}
		}
	})
	v1alpha3.Off = true
	return resource.Definition{
		Group:      schedulingv1.GroupName,
		Resource:   "compositepodgroups",
		Gate:       CompositePodGroup,
		Kind:       "CompositePodGroup",
		Namespaced: true,
		StorageKey: "compositepodgroups",
		GatedFields: []resource.GatedField{
			{Path: "spec.preemptionPolicy", Gate: preemptionPolicy},
		},
		Versions: []resource.Version{v1alpha3},
		Strategy: resource.Rules[*compositeGroup]{
			RequireVersion: true,
			PrepareCreate: func(_ context.Context, g *compositeGroup) {
				g.Status = schedulingv1alpha3.CompositePodGroupStatus{}
			},
			PrepareUpdate: func(_ context.Context, g, old *compositeGroup) { g.Status = old.Status },
			Validate: func(ctx context.Context, g *compositeGroup) field.ErrorList {
				return declaredRules().Judge(ctx, &g.Spec, (*schedulingv1alpha3.CompositePodGroupSpec)(nil), path)
			},
			ValidateUpdate: func(ctx context.Context, g, old *compositeGroup) field.ErrorList {
				return declaredRules().Judge(ctx, &g.Spec, &old.Spec, path)
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", NoTable: true, Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Policy", Type: "string", Description: schedulingv1alpha3.CompositePodGroupSpec{}.SwaggerDoc()["schedulingPolicy"]},
			{Name: "Workload", Type: "string", Description: "Name of the referenced Workload object"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(g *compositeGroup) []any {
			workload := "<none>"
			if ref := g.Spec.WorkloadRef; ref != nil {
				workload = ref.WorkloadName
			}
			return []any{g.Name, policyName(g.Spec.SchedulingPolicy.Gang != nil), workload, resource.Since(g.CreationTimestamp.Time)}
		}),
	}
}
