package apps

import (
	"context"
	"fmt"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Deployments defines deployments.
func Deployments() resource.Definition {
	status := resource.Rules[*appsv1.Deployment]{
		PrepareUpdate: func(_ context.Context, d, old *appsv1.Deployment) {
			d.Spec, d.Labels = old.Spec, old.Labels
		},
		ValidateUpdate: func(_ context.Context, d, old *appsv1.Deployment) field.ErrorList {
			return validateDeploymentStatus(&d.Status, &old.Status, field.NewPath("status"))
		},
		Resets: []string{"spec", "metadata.labels"},
	}.Strategy()
	return resource.Definition{
		Group:      appsv1.GroupName,
		Resource:   "deployments",
		Kind:       "Deployment",
		ShortNames: []string{"deploy"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "deployments",
		GatedFields: []resource.GatedField{
			{Path: "status.terminatingReplicas", Gate: "DeploymentReplicaSetTerminatingReplicas"},
		},
		Bookmark:         func(obj resource.Object) { obj.(*appsv1.Deployment).Spec.Replicas = new(int32) },
		FieldAnnotations: []string{appsv1.DeprecatedRollbackTo},
		Versions:         deploymentVersions(),
		Strategy: resource.Rules[*appsv1.Deployment]{
			PrepareCreate: func(ctx context.Context, d *appsv1.Deployment) {
				d.Status = appsv1.DeploymentStatus{}
				podspec.DropDisabledTemplateFields(ctx, &d.Spec.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, d, old *appsv1.Deployment) {
				d.Status = old.Status
				podspec.DropDisabledTemplateFields(ctx, &d.Spec.Template, &old.Spec.Template)
			},
			Validate: func(ctx context.Context, d *appsv1.Deployment) field.ErrorList {
				return validateDeployment(ctx, d, nil)
			},
			ValidateUpdate: func(ctx context.Context, d, old *appsv1.Deployment) field.ErrorList {
				errs := validateDeployment(ctx, d, old)
				return append(errs, validation.ValidateImmutableField(d.Spec.Selector, old.Spec.Selector, field.NewPath("spec", "selector"))...)
			},
			Generation: deploymentChanged,
			Warnings: func(_ context.Context, d, old *appsv1.Deployment) []string {
				path := field.NewPath("spec", "template")
				switch {
				case old == nil:
					return append(podspec.NameWarnings(d.Name), podspec.TemplateWarnings(&d.Spec.Template, nil, path)...)
				case deploymentChanged(d, old):
					return podspec.TemplateWarnings(&d.Spec.Template, &old.Spec.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{
			{Name: "status", Part: &status},
			scale(func(d *appsv1.Deployment) scalable {
				return scalable{wanted: &d.Spec.Replicas, seen: d.Status.Replicas, selector: d.Spec.Selector}
			}),
		},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Ready", Type: "string", Description: "Number of the pod with ready state"},
			{Name: "Up-to-date", Type: "string", Description: appsv1.DeploymentStatus{}.SwaggerDoc()["updatedReplicas"]},
			{Name: "Available", Type: "string", Description: appsv1.DeploymentStatus{}.SwaggerDoc()["availableReplicas"]},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(appsv1.DeploymentSpec{}.SwaggerDoc()["selector"])...),
		Cells: resource.CellsFunc(func(d *appsv1.Deployment) []any {
			names, images := podspec.ContainerCells(d.Spec.Template.Spec.Containers)
			pods := "<invalid>"
			if selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector); err == nil {
				pods = selector.String()
			}
			return []any{
				d.Name, fmt.Sprintf("%d/%d", d.Status.ReadyReplicas, deref(d.Spec.Replicas)),
				int64(d.Status.UpdatedReplicas), int64(d.Status.AvailableReplicas),
				resource.Since(d.CreationTimestamp.Time), names, images, pods,
			}
		}),
	}
}

func deploymentVersions() []resource.Version {
	v1 := resource.VersionOf[appsv1.Deployment, appsv1.DeploymentList]("v1", defaultDeployment)
	v1.Check = func(obj resource.Object) error {
		text := obj.GetAnnotations()[appsv1.DeprecatedRollbackTo]
		if text == "" {
			return nil
		}
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return fmt.Errorf("failed to parse annotation[%s]=%s as int64: %w", appsv1.DeprecatedRollbackTo, text, err)
		}
		return nil
	}
	return append([]resource.Version{v1}, oldDeployments()...)
}

// deploymentChanged reports whether spec or annotations differ: annotations are copied to the
// ReplicaSets, so they change the generation too.
func deploymentChanged(d, old *appsv1.Deployment) bool {
	return !equality.Semantic.DeepEqual(d.Spec, old.Spec) || !equality.Semantic.DeepEqual(d.Annotations, old.Annotations)
}

func defaultDeployment(d *appsv1.Deployment) {
	spec := &d.Spec
	rules.DefaultPointer(&spec.Replicas, 1)
	if spec.Strategy.Type == "" {
		spec.Strategy.Type = appsv1.RollingUpdateDeploymentStrategyType
	}
	if spec.Strategy.Type == appsv1.RollingUpdateDeploymentStrategyType {
		rules.DefaultPointer(&spec.Strategy.RollingUpdate, appsv1.RollingUpdateDeployment{})
		rules.DefaultPointer(&spec.Strategy.RollingUpdate.MaxUnavailable, intstr.FromString("25%"))
		rules.DefaultPointer(&spec.Strategy.RollingUpdate.MaxSurge, intstr.FromString("25%"))
	}
	rules.DefaultPointer(&spec.RevisionHistoryLimit, 10)
	rules.DefaultPointer(&spec.ProgressDeadlineSeconds, 600)
	podspec.DefaultTemplate(&spec.Template)
	normalizeRollback(d)
}

// normalizeRollback normalizes the number in the rollback annotation, a former field, or removes
// the annotation if it is empty.
func normalizeRollback(d *appsv1.Deployment) {
	text, ok := d.Annotations[appsv1.DeprecatedRollbackTo]
	if !ok {
		return
	}
	if text == "" {
		delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	} else if revision, err := strconv.ParseInt(text, 10, 64); err == nil {
		d.Annotations[appsv1.DeprecatedRollbackTo] = strconv.FormatInt(revision, 10)
	}
}

// validateDeployment validates the specification; old is nil on create.
func validateDeployment(ctx context.Context, d, old *appsv1.Deployment) field.ErrorList {
	spec, path := &d.Spec, field.NewPath("spec")
	errs := nonnegative(deref(spec.Replicas), path.Child("replicas"))
	if old == nil {
		errs = append(errs, validateSelected(ctx, spec.Selector, &spec.Template, nil, path)...)
	} else {
		errs = append(errs, validateSelected(ctx, spec.Selector, &spec.Template, &old.Spec.Template, path)...)
	}
	errs = append(errs, validateStrategy(&spec.Strategy, path.Child("strategy"))...)
	errs = append(errs, nonnegative(spec.MinReadySeconds, path.Child("minReadySeconds"))...)
	errs = append(errs, nonnegativeIfSet(spec.RevisionHistoryLimit, path.Child("revisionHistoryLimit"))...)
	if text := d.Annotations[appsv1.DeprecatedRollbackTo]; text != "" {
		revision, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(appsv1.DeprecatedRollbackTo), text, "must be an integer"))
		}
		errs = append(errs, nonnegative(revision, path.Child("rollback", "version"))...)
	}
	if limit := spec.ProgressDeadlineSeconds; limit != nil {
		at := path.Child("progressDeadlineSeconds")
		errs = append(errs, nonnegative(*limit, at)...)
		if *limit <= spec.MinReadySeconds {
			errs = append(errs, field.Invalid(at, *limit, "must be greater than minReadySeconds"))
		}
	}
	return errs
}

func validateStrategy(s *appsv1.DeploymentStrategy, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	at := path.Child("rollingUpdate")
	switch s.Type {
	case appsv1.RecreateDeploymentStrategyType:
		if s.RollingUpdate != nil {
			errs = append(errs, field.Forbidden(at, "may not be specified when strategy `type` is 'Recreate'"))
		}
	case appsv1.RollingUpdateDeploymentStrategyType:
		if s.RollingUpdate == nil {
			return append(errs, field.Required(at, "this should be defaulted and never be nil"))
		}
		unavailable, surge := deref(s.RollingUpdate.MaxUnavailable), deref(s.RollingUpdate.MaxSurge)
		at := at.Child("maxUnavailable")
		errs = append(errs, ValidateIntOrPercent(unavailable, at)...)
		errs = append(errs, ValidateIntOrPercent(surge, path.Child("rollingUpdate", "maxSurge"))...)
		share, _ := percent(unavailable)
		surgeShare, _ := percent(surge)
		if share == 0 && surgeShare == 0 {
			errs = append(errs, field.Invalid(at, unavailable, "may not be 0 when `maxSurge` is 0"))
		}
		errs = append(errs, ValidateAtMostAll(unavailable, at)...)
	default:
		errs = append(errs, field.NotSupported(path, printedStrategy(s),
			[]appsv1.DeploymentStrategyType{appsv1.RecreateDeploymentStrategyType, appsv1.RollingUpdateDeploymentStrategyType}))
	}
	return errs
}

// printedStrategy returns a strategy as errors print it: with Go field names, and zeros for
// unset fields.
func printedStrategy(s *appsv1.DeploymentStrategy) any {
	type rollingUpdate struct{ MaxUnavailable, MaxSurge intstr.IntOrString }
	shown := struct {
		Type          appsv1.DeploymentStrategyType
		RollingUpdate *rollingUpdate
	}{Type: s.Type}
	if r := s.RollingUpdate; r != nil {
		shown.RollingUpdate = &rollingUpdate{deref(r.MaxUnavailable), deref(r.MaxSurge)}
	}
	return shown
}

func validateDeploymentStatus(s, old *appsv1.DeploymentStatus, path *field.Path) field.ErrorList {
	errs := nonnegative(s.ObservedGeneration, path.Child("observedGeneration"))
	errs = append(errs, nonnegative(s.Replicas, path.Child("replicas"))...)
	errs = append(errs, nonnegative(s.UpdatedReplicas, path.Child("updatedReplicas"))...)
	errs = append(errs, nonnegative(s.ReadyReplicas, path.Child("readyReplicas"))...)
	errs = append(errs, nonnegative(s.AvailableReplicas, path.Child("availableReplicas"))...)
	errs = append(errs, nonnegative(s.UnavailableReplicas, path.Child("unavailableReplicas"))...)
	errs = append(errs, nonnegativeIfSet(s.TerminatingReplicas, path.Child("terminatingReplicas"))...)
	errs = append(errs, nonnegativeIfSet(s.CollisionCount, path.Child("collisionCount"))...)
	errs = append(errs, atMost(s.UpdatedReplicas, s.Replicas, "status.replicas", path.Child("updatedReplicas"))...)
	errs = append(errs, atMost(s.ReadyReplicas, s.Replicas, "status.replicas", path.Child("readyReplicas"))...)
	errs = append(errs, atMost(s.AvailableReplicas, s.Replicas, "status.replicas", path.Child("availableReplicas"))...)
	errs = append(errs, atMost(s.AvailableReplicas, s.ReadyReplicas, "readyReplicas", path.Child("availableReplicas"))...)
	return append(errs, validateCollisions(s.CollisionCount, old.CollisionCount, path.Child("collisionCount"))...)
}
