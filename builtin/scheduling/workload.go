package scheduling

import (
	"context"
	"fmt"

	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/declared"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Feature gates of these kinds and of some of their fields.
const (
	GenericWorkload   = "GenericWorkload"
	CompositePodGroup = "CompositePodGroup"

	topologyAware    = "TopologyAwareWorkloadScheduling"
	sharedClaims     = "DRAWorkloadResourceClaims"
	preemptionPolicy = "PodGroupPreemptionPolicy"
)

// workload is the storage version of the kind.
type workload = schedulingv1beta1.Workload

// maxDepth bounds the nesting of templates.
const maxDepth = schedulingv1beta1.WorkloadMaxTreeDepth

// Workloads defines workloads.
func Workloads() resource.Definition {
	declaredRules := groupRules()
	validate := func(ctx context.Context, w, old *workload) field.ErrorList {
		path := field.NewPath("spec")
		var was *schedulingv1beta1.WorkloadSpec
		if old != nil {
			was = &old.Spec
		}
		return append(validateTemplates(&w.Spec, path), declaredRules().Judge(ctx, &w.Spec, was, path)...)
	}
	return resource.Definition{
		Group:      schedulingv1.GroupName,
		Resource:   "workloads",
		Gate:       GenericWorkload,
		Kind:       "Workload",
		Namespaced: true,
		StorageKey: "workloads",
		Versions:   groupVersions[workload, schedulingv1beta1.WorkloadList, schedulingv1alpha3.Workload, schedulingv1alpha3.WorkloadList]("Workload", nil),
		Strategy: resource.Rules[*workload]{
			RequireVersion: true,
			PrepareCreate:  func(ctx context.Context, w *workload) { dropWorkload(features.From(ctx), &w.Spec, nil) },
			PrepareUpdate:  func(ctx context.Context, w, old *workload) { dropWorkload(features.From(ctx), &w.Spec, &old.Spec) },
			Validate:       func(ctx context.Context, w *workload) field.ErrorList { return validate(ctx, w, nil) },
			ValidateUpdate: validate,
		}.Strategy(),
		Columns: []resource.Column{rules.NameColumn(), rules.AgeColumn()},
		Cells: resource.CellsFunc(func(w *workload) []any {
			return []any{w.Name, resource.Since(w.CreationTimestamp.Time)}
		}),
	}
}

// groupVersions returns the versions of a kind with the same fields in both.
func groupVersions[T, L, A, AL any, P interface {
	*T
	resource.Object
}, PL interface {
	*L
	runtime.Object
}, PA interface {
	*A
	resource.Object
}, PAL interface {
	*AL
	runtime.Object
}](kind string, defaults func(P)) []resource.Version {
	v1beta1 := resource.VersionOf[T, L, P, PL](schedulingv1beta1.SchemeGroupVersion.Version, defaults)
	v1beta1.Off = true
	v1beta1.Deprecation = resource.Deprecation(P(new(T)), schedulingv1beta1.SchemeGroupVersion.WithKind(kind))
	return []resource.Version{
		v1beta1,
		resource.AlikeVersion[A, AL, T, PA, PAL, P](schedulingv1alpha3.SchemeGroupVersion.WithKind(kind), defaults, nil, nil),
	}
}

type (
	podGroupTemplate  = schedulingv1beta1.PodGroupTemplate
	compositeTemplate = schedulingv1beta1.CompositePodGroupTemplate
)

// dropWorkload clears fields behind disabled feature gates, unless the old spec, nil on create,
// has them.
func dropWorkload(gates features.Gates, spec, old *schedulingv1beta1.WorkloadSpec) {
	if old == nil {
		old = &schedulingv1beta1.WorkloadSpec{}
	}
	dropTemplates(gates, spec.PodGroupTemplates, old.PodGroupTemplates)
	composite := spec.CompositePodGroupTemplates
	if !gates.Enabled(CompositePodGroup) && len(old.CompositePodGroupTemplates) == 0 {
		spec.CompositePodGroupTemplates = nil
	}
	dropComposite(gates, composite, old.CompositePodGroupTemplates)
}

// dropTemplates is dropWorkload for templates, compared by index.
func dropTemplates(gates features.Gates, templates, old []podGroupTemplate) {
	for i := range templates {
		t, was := &templates[i], podGroupTemplate{}
		if i < len(old) {
			was = old[i]
		}
		if !gates.Enabled(topologyAware) && was.SchedulingConstraints == nil {
			t.SchedulingConstraints = nil
		}
		if !gates.Enabled(sharedClaims) && len(was.ResourceClaims) == 0 {
			t.ResourceClaims = nil
		}
		if !gates.Enabled(preemptionPolicy) && was.PreemptionPolicy == nil {
			t.PreemptionPolicy = nil
		}
	}
}

// dropComposite is dropWorkload for composite templates, compared by name.
func dropComposite(gates features.Gates, templates, old []compositeTemplate) {
	byName := map[string]compositeTemplate{}
	for _, t := range old {
		byName[t.Name] = t
	}
	for i := range templates {
		t := &templates[i]
		was := byName[t.Name]
		if !gates.Enabled(preemptionPolicy) && was.PreemptionPolicy == nil {
			t.PreemptionPolicy = nil
		}
		below := t.CompositePodGroupTemplates
		if !gates.Enabled(CompositePodGroup) && len(was.CompositePodGroupTemplates) == 0 {
			t.CompositePodGroupTemplates = nil
		}
		dropComposite(gates, below, was.CompositePodGroupTemplates)
		dropTemplates(gates, t.PodGroupTemplates, was.PodGroupTemplates)
	}
}

// validateTemplates validates the tree of templates as a whole.
func validateTemplates(spec *schedulingv1beta1.WorkloadSpec, path *field.Path) field.ErrorList {
	names := map[string]bool{}
	for _, t := range spec.PodGroupTemplates {
		names[t.Name] = true
	}
	composite := path.Child("compositePodGroupTemplates")
	errs := uniqueNames(spec.CompositePodGroupTemplates, path, names)
	for i := range spec.CompositePodGroupTemplates {
		if t := &spec.CompositePodGroupTemplates[i]; depth(t) > maxDepth-1 {
			errs = append(errs, field.Invalid(composite.Index(i), rules.GoForm(t.CompositePodGroupTemplates),
				fmt.Sprintf("maximum template hierarchy depth is %d", maxDepth)))
		}
	}
	errs = append(errs, onePriority(spec, path)...)
	for i := range spec.CompositePodGroupTemplates {
		errs = append(errs, validateChildren(&spec.CompositePodGroupTemplates[i], composite.Index(i))...)
	}
	return errs
}

// uniqueNames checks that names are unique across lists of templates. Within a list that is a
// declared rule.
func uniqueNames(templates []compositeTemplate, path *field.Path, names map[string]bool) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("compositePodGroupTemplates")
	for i, t := range templates {
		if names[t.Name] {
			errs = append(errs, field.Duplicate(at.Index(i).Child("name"), t.Name))
		}
	}
	for _, t := range templates {
		names[t.Name] = true
	}
	for i, t := range templates {
		groups := at.Index(i).Child("podGroupTemplates")
		for j, g := range t.PodGroupTemplates {
			if names[g.Name] {
				errs = append(errs, field.Duplicate(groups.Index(j).Child("name"), g.Name))
			}
		}
		for _, g := range t.PodGroupTemplates {
			names[g.Name] = true
		}
		errs = append(errs, uniqueNames(t.CompositePodGroupTemplates, at.Index(i), names)...)
	}
	return errs
}

// depth returns the nesting depth of a composite template.
func depth(t *compositeTemplate) int {
	most := 0
	for i := range t.CompositePodGroupTemplates {
		most = max(most, depth(&t.CompositePodGroupTemplates[i]))
	}
	return most + 1
}

// onePriority checks that all templates have the same priority.
func onePriority(spec *schedulingv1beta1.WorkloadSpec, path *field.Path) field.ErrorList {
	type priority struct {
		class string
		given bool
		value int32
	}
	var first *priority
	same := func(class string, value *int32) bool {
		p := priority{class: class, given: value != nil}
		if p.given {
			p.value = *value
		}
		if first == nil {
			first = &p
		}
		return *first == p
	}
	groups := func(templates []podGroupTemplate) bool {
		for _, t := range templates {
			if !same(t.PriorityClassName, t.Priority) {
				return false
			}
		}
		return true
	}
	var composite func(templates []compositeTemplate) bool
	composite = func(templates []compositeTemplate) bool {
		for _, t := range templates {
			if !same(t.PriorityClassName, t.Priority) || !composite(t.CompositePodGroupTemplates) || !groups(t.PodGroupTemplates) {
				return false
			}
		}
		return true
	}
	switch {
	case !groups(spec.PodGroupTemplates):
		return field.ErrorList{field.Invalid(path, nil, "detected multiple priority configurations")}
	case !composite(spec.CompositePodGroupTemplates):
		return field.ErrorList{field.Invalid(path, nil, "all priority and priorityClassName values must be identical, detected multiple values")}
	}
	return nil
}

func validateChildren(t *compositeTemplate, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(t.PodGroupTemplates) == 0 && len(t.CompositePodGroupTemplates) == 0 {
		errs = append(errs, field.Invalid(path, t.Name, "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"))
	}
	for i := range t.CompositePodGroupTemplates {
		errs = append(errs, validateChildren(&t.CompositePodGroupTemplates[i], path.Child("compositePodGroupTemplates").Index(i))...)
	}
	return errs
}

// judgeParts validates spec and status by the declared rules; the old ones are empty on create.
func judgeParts(ctx context.Context, declaredRules declared.Rules, spec, oldSpec, status, oldStatus any) field.ErrorList {
	return append(declaredRules.Judge(ctx, spec, oldSpec, field.NewPath("spec")), declaredRules.Judge(ctx, status, oldStatus, field.NewPath("status"))...)
}
