package apps

import (
	"context"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// DaemonSets defines daemonsets.
func DaemonSets() resource.Definition {
	status := resource.Rules[*appsv1.DaemonSet]{
		PrepareUpdate: func(_ context.Context, d, old *appsv1.DaemonSet) {
			d.Spec = old.Spec
			setTemplateGeneration(d, templateGeneration(old))
		},
		ValidateUpdate: func(_ context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
			return validateDaemonSetStatus(&d.Status, &old.Status, field.NewPath("status"))
		},
	}.Strategy()
	observed := appsv1.DaemonSetStatus{}.SwaggerDoc()
	return resource.Definition{
		Group:            appsv1.GroupName,
		Resource:         "daemonsets",
		Kind:             "DaemonSet",
		ShortNames:       []string{"ds"},
		Categories:       []string{"all"},
		Namespaced:       true,
		StorageKey:       "daemonsets",
		Bookmark:         func(obj resource.Object) { setTemplateGeneration(obj.(*appsv1.DaemonSet), 0) },
		FieldAnnotations: []string{appsv1.DeprecatedTemplateGeneration},
		Versions:         daemonSetVersions(),
		Strategy: resource.Rules[*appsv1.DaemonSet]{
			PrepareCreate: func(ctx context.Context, d *appsv1.DaemonSet) {
				d.Status = appsv1.DaemonSetStatus{}
				setTemplateGeneration(d, max(templateGeneration(d), 1))
				podspec.DropDisabledTemplateFields(ctx, &d.Spec.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, d, old *appsv1.DaemonSet) {
				d.Status = old.Status
				podspec.DropDisabledTemplateFields(ctx, &d.Spec.Template, &old.Spec.Template)
				generation := templateGeneration(old)
				if !equality.Semantic.DeepEqual(d.Spec.Template, old.Spec.Template) {
					generation++
				}
				setTemplateGeneration(d, generation)
			},
			Validate: func(ctx context.Context, d *appsv1.DaemonSet) field.ErrorList { return validateDaemonSet(ctx, d, nil) },
			ValidateUpdate: func(ctx context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
				errs := validation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))
				return append(errs, validateDaemonSet(ctx, d, old)...)
			},
			Generation: func(d, old *appsv1.DaemonSet) bool { return !equality.Semantic.DeepEqual(d.Spec, old.Spec) },
			Warnings: func(_ context.Context, d, old *appsv1.DaemonSet) []string {
				path := field.NewPath("spec", "template")
				switch {
				case old == nil:
					return podspec.TemplateWarnings(&d.Spec.Template, nil, path)
				case templateGeneration(d) != templateGeneration(old):
					return podspec.TemplateWarnings(&d.Spec.Template, &old.Spec.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Desired", Type: "integer", Description: observed["desiredNumberScheduled"]},
			{Name: "Current", Type: "integer", Description: observed["currentNumberScheduled"]},
			{Name: "Ready", Type: "integer", Description: observed["numberReady"]},
			{Name: "Up-to-date", Type: "integer", Description: observed["updatedNumberScheduled"]},
			{Name: "Available", Type: "integer", Description: observed["numberAvailable"]},
			{Name: "Node Selector", Type: "string", Description: corev1.PodSpec{}.SwaggerDoc()["nodeSelector"]},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(appsv1.DaemonSetSpec{}.SwaggerDoc()["selector"])...),
		Cells: resource.CellsFunc(func(d *appsv1.DaemonSet) []any {
			s := &d.Status
			names, images := podspec.ContainerCells(d.Spec.Template.Spec.Containers)
			return []any{
				d.Name, int64(s.DesiredNumberScheduled), int64(s.CurrentNumberScheduled), int64(s.NumberReady),
				int64(s.UpdatedNumberScheduled), int64(s.NumberAvailable), labels.FormatLabels(d.Spec.Template.Spec.NodeSelector),
				resource.Since(d.CreationTimestamp.Time), names, images, metav1.FormatLabelSelector(d.Spec.Selector),
			}
		}),
	}
}

func daemonSetVersions() []resource.Version {
	v1 := resource.VersionOf[appsv1.DaemonSet, appsv1.DaemonSetList]("v1", defaultDaemonSet)
	v1.Check = func(obj resource.Object) error {
		_, err := annotatedNumber(obj, appsv1.DeprecatedTemplateGeneration)
		return err
	}
	return append([]resource.Version{v1}, oldDaemonSets()...)
}

// annotatedNumber parses a number in an annotation, 0 if there is none.
func annotatedNumber(obj resource.Object, name string) (int64, error) {
	text, ok := obj.GetAnnotations()[name]
	if !ok {
		return 0, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// templateGeneration returns the template generation, a former field that is now an
// annotation and still a label of pods.
func templateGeneration(d *appsv1.DaemonSet) int64 {
	n, _ := annotatedNumber(d, appsv1.DeprecatedTemplateGeneration)
	return n
}

func setTemplateGeneration(d *appsv1.DaemonSet, n int64) {
	annotations := maps.Clone(d.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appsv1.DeprecatedTemplateGeneration] = strconv.FormatInt(n, 10)
	d.Annotations = annotations
}

func defaultDaemonSet(d *appsv1.DaemonSet) {
	s := &d.Spec.UpdateStrategy
	if s.Type == "" {
		s.Type = appsv1.RollingUpdateDaemonSetStrategyType
	}
	if s.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		rules.DefaultPointer(&s.RollingUpdate, appsv1.RollingUpdateDaemonSet{})
		rules.DefaultPointer(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		rules.DefaultPointer(&s.RollingUpdate.MaxSurge, intstr.FromInt32(0))
	}
	rules.DefaultPointer(&d.Spec.RevisionHistoryLimit, 10)
	podspec.DefaultTemplate(&d.Spec.Template)
	setTemplateGeneration(d, templateGeneration(d))
}

// validateDaemonSet validates the specification; old is nil on create.
func validateDaemonSet(ctx context.Context, d, old *appsv1.DaemonSet) field.ErrorList {
	spec, path := &d.Spec, field.NewPath("spec")
	var template *corev1.PodTemplateSpec
	var opts metavalidation.LabelSelectorValidationOptions
	if old != nil {
		template = &old.Spec.Template
		opts.AllowInvalidLabelValueInSelector = metavalidation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector)
	}
	errs := metavalidation.ValidateLabelSelector(spec.Selector, opts, path.Child("selector"))
	if selector, err := metav1.LabelSelectorAsSelector(spec.Selector); err == nil && !selector.Matches(labels.Set(spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	if s := spec.Selector; s != nil && len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		errs = append(errs, field.Invalid(path.Child("selector"), s, "empty selector is invalid for daemonset"))
	}
	errs = append(errs, podspec.ValidateTemplate(ctx, &spec.Template, path.Child("template"), template)...)
	errs = append(errs, validateAlwaysRestart(&spec.Template.Spec, "DaemonSet", path.Child("template", "spec"))...)
	errs = append(errs, nonnegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	errs = append(errs, validateDaemonSetStrategy(&spec.UpdateStrategy, path.Child("updateStrategy"))...)
	return append(errs, nonnegativeIfSet(spec.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
}

func validateDaemonSetStrategy(s *appsv1.DaemonSetUpdateStrategy, path *field.Path) field.ErrorList {
	switch s.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
		return nil
	case appsv1.RollingUpdateDaemonSetStrategyType:
	default:
		shown := s.DeepCopy()
		if r := shown.RollingUpdate; r != nil {
			rules.DefaultPointer(&r.MaxUnavailable, intstr.IntOrString{})
			rules.DefaultPointer(&r.MaxSurge, intstr.IntOrString{})
		}
		return field.ErrorList{field.NotSupported(path, rules.GoForm(shown),
			[]appsv1.DaemonSetUpdateStrategyType{appsv1.RollingUpdateDaemonSetStrategyType, appsv1.OnDeleteDaemonSetStrategyType})}
	}
	at := path.Child("rollingUpdate")
	if s.RollingUpdate == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	unavailable, surge := deref(s.RollingUpdate.MaxUnavailable), deref(s.RollingUpdate.MaxSurge)
	errs := ValidateIntOrPercent(unavailable, at.Child("maxUnavailable"))
	errs = append(errs, ValidateIntOrPercent(surge, at.Child("maxSurge"))...)
	errs = append(errs, ValidateAtMostAll(unavailable, at.Child("maxUnavailable"))...)
	errs = append(errs, ValidateAtMostAll(surge, at.Child("maxSurge"))...)
	share, _ := percent(unavailable)
	surgeShare, _ := percent(surge)
	switch {
	case share != 0 && surgeShare != 0:
		errs = append(errs, field.Invalid(at.Child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero"))
	case share == 0 && surgeShare == 0:
		errs = append(errs, field.Required(at.Child("maxUnavailable"), "cannot be 0 when maxSurge is 0"))
	}
	return errs
}

func validateDaemonSetStatus(s, old *appsv1.DaemonSetStatus, path *field.Path) field.ErrorList {
	errs := nonnegative(s.CurrentNumberScheduled, path.Child("currentNumberScheduled"))
	errs = append(errs, nonnegative(s.NumberMisscheduled, path.Child("numberMisscheduled"))...)
	errs = append(errs, nonnegative(s.DesiredNumberScheduled, path.Child("desiredNumberScheduled"))...)
	errs = append(errs, nonnegative(s.NumberReady, path.Child("numberReady"))...)
	errs = append(errs, nonnegative(s.ObservedGeneration, path.Child("observedGeneration"))...)
	errs = append(errs, nonnegative(s.UpdatedNumberScheduled, path.Child("updatedNumberScheduled"))...)
	errs = append(errs, nonnegative(s.NumberAvailable, path.Child("numberAvailable"))...)
	errs = append(errs, nonnegative(s.NumberUnavailable, path.Child("numberUnavailable"))...)
	errs = append(errs, nonnegativeIfSet(s.CollisionCount, path.Child("collisionCount"))...)
	return append(errs, validateCollisions(s.CollisionCount, old.CollisionCount, path.Child("collisionCount"))...)
}
