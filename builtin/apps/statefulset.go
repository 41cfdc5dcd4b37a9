package apps

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// recreate is behind a feature gate; objects that use it may keep it.
const (
	recreate     = appsv1.RecreateStatefulSetStrategyType
	recreateGate = "StatefulSetRecreateStrategy"
)

// StatefulSets defines statefulsets.
func StatefulSets() resource.Definition {
	status := resource.Rules[*appsv1.StatefulSet]{
		PrepareUpdate: func(_ context.Context, s, old *appsv1.StatefulSet) { s.Spec = old.Spec },
		ValidateUpdate: func(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
			path := field.NewPath("status")
			errs := validateStatefulSetStatus(&s.Status, path)
			errs = append(errs, rules.ValidateFinalizers(s.Finalizers, field.NewPath("metadata", "finalizers"))...)
			return append(errs, validateCollisions(s.Status.CollisionCount, old.Status.CollisionCount, path.Child("collisionCount"))...)
		},
	}.Strategy()
	return resource.Definition{
		Group:      appsv1.GroupName,
		Resource:   "statefulsets",
		Kind:       "StatefulSet",
		ShortNames: []string{"sts"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "statefulsets",
		GatedFields: []resource.GatedField{
			{Path: "spec.updateStrategy.rollingUpdate.maxUnavailable", Gate: "MaxUnavailableStatefulSet"},
		},
		Bookmark: func(obj resource.Object) { obj.(*appsv1.StatefulSet).Spec.Replicas = new(int32) },
		Versions: append([]resource.Version{resource.VersionOf[appsv1.StatefulSet, appsv1.StatefulSetList]("v1", defaultStatefulSet)}, oldStatefulSets()...),
		Strategy: resource.Rules[*appsv1.StatefulSet]{
			ValidateName: validation.NameIsDNSLabel,
			PrepareCreate: func(ctx context.Context, s *appsv1.StatefulSet) {
				s.Status = appsv1.StatefulSetStatus{}
				podspec.DropDisabledTemplateFields(ctx, &s.Spec.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, s, old *appsv1.StatefulSet) {
				s.Status = old.Status
				podspec.DropDisabledTemplateFields(ctx, &s.Spec.Template, &old.Spec.Template)
			},
			Validate: func(ctx context.Context, s *appsv1.StatefulSet) field.ErrorList {
				return validateStatefulSet(ctx, &s.Spec, field.NewPath("spec"), statefulSetRules{recreate: features.From(ctx).Enabled(recreateGate)})
			},
			ValidateUpdate: func(ctx context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
				return validateStatefulSetUpdate(ctx, &s.Spec, &old.Spec, field.NewPath("spec"))
			},
			Generation: statefulSetChanged,
			Warnings:   statefulSetWarnings,
		}.Strategy(),
		Subresources: []resource.Subresource{
			{Name: "status", Part: &status},
			scale(func(s *appsv1.StatefulSet) scalable {
				return scalable{wanted: &s.Spec.Replicas, seen: s.Status.Replicas, selector: s.Spec.Selector}
			}),
		},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Ready", Type: "string", Description: "Number of the pod with ready state"},
			rules.AgeColumn(),
		}, podspec.TemplateColumns("")[:2]...),
		Cells: resource.CellsFunc(func(s *appsv1.StatefulSet) []any {
			names, images := podspec.ContainerCells(s.Spec.Template.Spec.Containers)
			return []any{
				s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, deref(s.Spec.Replicas)),
				resource.Since(s.CreationTimestamp.Time), names, images,
			}
		}),
	}
}

func statefulSetChanged(s, old *appsv1.StatefulSet) bool {
	return !equality.Semantic.DeepEqual(s.Spec, old.Spec)
}

func statefulSetWarnings(_ context.Context, s, old *appsv1.StatefulSet) []string {
	var w []string
	path := field.NewPath("spec")
	switch {
	case old == nil:
		w = podspec.TemplateWarnings(&s.Spec.Template, nil, path.Child("template"))
	case statefulSetChanged(s, old):
		w = podspec.TemplateWarnings(&s.Spec.Template, &old.Spec.Template, path.Child("template"))
	}
	for i := range s.Spec.VolumeClaimTemplates {
		at := path.Child("volumeClaimTemplates").Index(i)
		if old != nil {
			at = at.Child("Spec")
		}
		w = append(w, podspec.ClaimWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, at)...)
	}
	if deref(s.Spec.RevisionHistoryLimit) < 0 {
		w = append(w, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return w
}

func defaultStatefulSet(s *appsv1.StatefulSet) {
	spec := &s.Spec
	rules.Default(&spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	if spec.UpdateStrategy.Type == "" {
		spec.UpdateStrategy.Type = appsv1.RollingUpdateStatefulSetStrategyType
		rules.DefaultPointer(&spec.UpdateStrategy.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if r := spec.UpdateStrategy.RollingUpdate; r != nil && spec.UpdateStrategy.Type == appsv1.RollingUpdateStatefulSetStrategyType {
		rules.DefaultPointer(&r.Partition, 0)
		rules.DefaultPointer(&r.MaxUnavailable, intstr.FromInt32(1))
	}
	rules.DefaultPointer(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	rules.Default(&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	rules.Default(&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled, appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	rules.DefaultPointer(&spec.Replicas, 1)
	rules.DefaultPointer(&spec.RevisionHistoryLimit, 10)
	defaultClaimTemplates(spec.VolumeClaimTemplates)
	podspec.DefaultTemplate(&spec.Template)
}

// defaultClaimTemplates sets apiVersion, kind, phase and the claim defaults of claim
// templates, which are stored as whole objects.
func defaultClaimTemplates(claims []corev1.PersistentVolumeClaim) {
	for i := range claims {
		claims[i].APIVersion, claims[i].Kind = "v1", "PersistentVolumeClaim"
		rules.Default(&claims[i].Status.Phase, corev1.ClaimPending)
		podspec.DefaultClaimSpec(&claims[i].Spec)
	}
}

// statefulSetRules selects validation rules: on update some are skipped, so that objects that
// were once accepted can be updated.
type statefulSetRules struct {
	// old is the template before an update.
	old *corev1.PodTemplateSpec
	// update skips immutable fields.
	update bool
	// recreate allows the strategy Recreate.
	recreate bool
	// anyTemplate validates only the metadata of the template.
	anyTemplate bool
}

func validateStatefulSetUpdate(ctx context.Context, spec, old *appsv1.StatefulSetSpec, path *field.Path) field.ErrorList {
	apply := statefulSetRules{old: &old.Template, update: true, recreate: old.UpdateStrategy.Type == recreate || features.From(ctx).Enabled(recreateGate)}
	apply.anyTemplate = len(validateStatefulSet(ctx, old, path, apply)) > 0
	errs := validateStatefulSet(ctx, spec, path, apply)
	errs = append(errs, validation.ValidateImmutableField(spec.Selector, old.Selector, path.Child("selector"))...)
	if !equality.Semantic.DeepEqual(spec.VolumeClaimTemplates, old.VolumeClaimTemplates) {
		shown := slices.Clone(spec.VolumeClaimTemplates)
		for i := range shown {
			shown[i].TypeMeta = metav1.TypeMeta{}
		}
		errs = append(errs, field.Invalid(path.Child("volumeClaimTemplates"), rules.GoForm(shown), validation.FieldImmutableErrorMsg))
	}
	errs = append(errs, validation.ValidateImmutableField(spec.ServiceName, old.ServiceName, path.Child("serviceName"))...)
	return append(errs, validation.ValidateImmutableField(spec.PodManagementPolicy, old.PodManagementPolicy, path.Child("podManagementPolicy"))...)
}

func validateStatefulSet(ctx context.Context, spec *appsv1.StatefulSetSpec, path *field.Path, apply statefulSetRules) field.ErrorList {
	var errs field.ErrorList
	switch p := spec.PodManagementPolicy; p {
	case "":
		errs = append(errs, field.Required(path.Child("podManagementPolicy"), ""))
	case appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement:
	default:
		errs = append(errs, field.Invalid(path.Child("podManagementPolicy"), p, "must be 'OrderedReady' or 'Parallel'"))
	}
	errs = append(errs, validateStatefulSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"), apply.recreate)...)
	if p := spec.PersistentVolumeClaimRetentionPolicy; p != nil {
		at := path.Child("persistentVolumeClaimRetentionPolicy")
		errs = append(errs, validateRetention(p.WhenDeleted, at.Child("whenDeleted"))...)
		errs = append(errs, validateRetention(p.WhenScaled, at.Child("whenScaled"))...)
	}
	if !apply.update {
		for i := range spec.VolumeClaimTemplates {
			at := path.Child("volumeClaimTemplates").Index(i).Child("spec")
			errs = append(errs, podspec.ValidateClaimSpec(&spec.VolumeClaimTemplates[i].Spec, at, podspec.ClaimAllowances{})...)
		}
	}
	errs = append(errs, nonnegative(deref(spec.Replicas), path.Child("replicas"))...)
	errs = append(errs, nonnegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	if spec.Ordinals != nil {
		errs = append(errs, nonnegative(spec.Ordinals.Start, path.Child("ordinals.start"))...)
	}
	if spec.ServiceName != "" && !apply.update {
		for _, m := range utilvalidation.IsDNS1123Label(spec.ServiceName) {
			errs = append(errs, field.Invalid(path.Child("serviceName"), spec.ServiceName, m))
		}
	}
	errs = append(errs, validateStatefulSetTemplate(ctx, spec, path, apply)...)
	return append(errs, validateAlwaysRestart(&spec.Template.Spec, "StatefulSet", path.Child("template", "spec"))...)
}

// validateStatefulSetTemplate validates the selector and the template.
func validateStatefulSetTemplate(ctx context.Context, spec *appsv1.StatefulSetSpec, path *field.Path, apply statefulSetRules) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("selector")
	if spec.Selector == nil {
		errs = append(errs, field.Required(at, ""))
	} else {
		errs = append(errs, metavalidation.ValidateLabelSelector(spec.Selector, metavalidation.LabelSelectorValidationOptions{}, at)...)
		if len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
			errs = append(errs, field.Invalid(at, spec.Selector, "empty selector is invalid for statefulset"))
		}
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if err != nil {
		return append(errs, field.Invalid(at, spec.Selector, ""))
	}
	at = path.Child("template")
	if !selector.Empty() && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(at.Child("metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	if apply.anyTemplate {
		errs = append(errs, metavalidation.ValidateLabels(spec.Template.Labels, at.Child("labels"))...)
		return append(errs, validation.ValidateAnnotations(spec.Template.Annotations, at.Child("annotations"))...)
	}
	return append(errs, podspec.ValidateTemplate(ctx, claimedTemplate(spec), at, apply.old)...)
}

// claimedTemplate returns the template as its pods will be: with hostname and subdomain
// cleared, which the controller sets, and a volume for each claim template.
func claimedTemplate(spec *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	template := spec.Template
	template.Spec.Hostname, template.Spec.Subdomain = "", ""
	if len(spec.VolumeClaimTemplates) == 0 {
		return &template
	}
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for _, claim := range spec.VolumeClaimTemplates {
		if !claimed[claim.Name] {
			claimed[claim.Name] = true
			source := corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}
			volumes = append(volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &source}})
		}
	}
	for _, v := range template.Spec.Volumes {
		if !claimed[v.Name] {
			volumes = append(volumes, v)
		}
	}
	template.Spec.Volumes = volumes
	return &template
}

func validateRetention(p appsv1.PersistentVolumeClaimRetentionPolicyType, path *field.Path) field.ErrorList {
	known := []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType}
	if slices.Contains(known, p) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, p, known)}
}

func validateStatefulSetStrategy(s *appsv1.StatefulSetUpdateStrategy, path *field.Path, allowRecreate bool) field.ErrorList {
	var errs field.ErrorList
	// Errors print the defaults of unset numbers.
	shown := s.DeepCopy()
	if shown.RollingUpdate != nil {
		rules.DefaultPointer(&shown.RollingUpdate.Partition, 0)
	}
	switch {
	case s.Type == "":
		errs = append(errs, field.Required(path, ""))
	case s.Type == appsv1.OnDeleteStatefulSetStrategyType, s.Type == recreate && allowRecreate:
		if s.RollingUpdate != nil {
			errs = append(errs, field.Invalid(path.Child("rollingUpdate"), rules.GoForm(shown.RollingUpdate), "only allowed for updateStrategy 'RollingUpdate'"))
		}
	case s.Type == appsv1.RollingUpdateStatefulSetStrategyType:
		if s.RollingUpdate == nil {
			break
		}
		errs = append(errs, nonnegativeIfSet(s.RollingUpdate.Partition, path.Child("rollingUpdate", "partition"))...)
		if v, at := s.RollingUpdate.MaxUnavailable, path.Child("rollingUpdate", "maxUnavailable"); v != nil {
			errs = append(errs, ValidateIntOrPercent(*v, at)...)
			if n, _ := percent(*v); n == 0 {
				errs = append(errs, field.Invalid(at, *v, "cannot be 0"))
			}
			errs = append(errs, ValidateAtMostAll(*v, at)...)
		}
	case allowRecreate:
		errs = append(errs, field.Invalid(path, rules.GoForm(shown), "must be 'RollingUpdate', 'OnDelete', or 'Recreate'"))
	default:
		errs = append(errs, field.Invalid(path, rules.GoForm(shown), "must be 'RollingUpdate' or 'OnDelete'"))
	}
	return errs
}

func validateStatefulSetStatus(s *appsv1.StatefulSetStatus, path *field.Path) field.ErrorList {
	errs := nonnegative(s.Replicas, path.Child("replicas"))
	errs = append(errs, nonnegative(s.ReadyReplicas, path.Child("readyReplicas"))...)
	errs = append(errs, nonnegative(s.CurrentReplicas, path.Child("currentReplicas"))...)
	errs = append(errs, nonnegative(s.UpdatedReplicas, path.Child("updatedReplicas"))...)
	errs = append(errs, nonnegative(s.AvailableReplicas, path.Child("availableReplicas"))...)
	errs = append(errs, nonnegative(s.ObservedGeneration, path.Child("observedGeneration"))...)
	errs = append(errs, nonnegativeIfSet(s.CollisionCount, path.Child("collisionCount"))...)
	errs = append(errs, atMost(s.ReadyReplicas, s.Replicas, "status.replicas", path.Child("readyReplicas"))...)
	errs = append(errs, atMost(s.CurrentReplicas, s.Replicas, "status.replicas", path.Child("currentReplicas"))...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, "status.replicas", path.Child("updatedReplicas"))...)
	errs = append(errs, atMost(s.AvailableReplicas, s.Replicas, "status.replicas", path.Child("availableReplicas"))...)
	return append(errs, atMost(s.AvailableReplicas, s.ReadyReplicas, "status.readyReplicas", path.Child("availableReplicas"))...)
}
