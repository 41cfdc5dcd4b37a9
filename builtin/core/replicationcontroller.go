package core

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// unconvertible is the prefix of annotations for fields that a ReplicaSet cannot represent.
const unconvertible = "non-convertible.kubernetes.io/"

// ReplicationControllers defines replicationcontrollers; ReplicaSets replace them.
func ReplicationControllers() resource.Definition {
	spec, observed := corev1.ReplicationControllerSpec{}.SwaggerDoc(), corev1.ReplicationControllerStatus{}.SwaggerDoc()
	return resource.Definition{
		Resource:   "replicationcontrollers",
		Kind:       "ReplicationController",
		ShortNames: []string{"rc"},
		Categories: []string{"all"},
		Namespaced: true,
		StorageKey: "controllers",
		Versions:   []resource.Version{resource.VersionOf[corev1.ReplicationController, corev1.ReplicationControllerList]("v1", defaultController)},
		Strategy: resource.Rules[*corev1.ReplicationController]{
			ValidateName:    rules.AnyName,
			OrphanByDefault: true,
			PrepareCreate: func(ctx context.Context, rc *corev1.ReplicationController) {
				rc.Status = corev1.ReplicationControllerStatus{}
				podspec.DropDisabledTemplateFields(ctx, rc.Spec.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, rc, old *corev1.ReplicationController) {
				rc.Status = old.Status
				podspec.DropDisabledTemplateFields(ctx, rc.Spec.Template, old.Spec.Template)
			},
			Validate: func(ctx context.Context, rc *corev1.ReplicationController) field.ErrorList {
				return append(rules.ValidateLongName(rc.Name), validateController(ctx, rc, nil)...)
			},
			ValidateUpdate: func(ctx context.Context, rc, old *corev1.ReplicationController) field.ErrorList {
				return append(validateController(ctx, rc, old.Spec.Template), validateUnconverted(rc, old)...)
			},
			Generation: controllerChanged,
			Warnings: func(_ context.Context, rc, old *corev1.ReplicationController) []string {
				path := field.NewPath("spec", "template")
				switch {
				case old == nil:
					return append(podspec.NameWarnings(rc.Name), podspec.TemplateWarnings(rc.Spec.Template, nil, path)...)
				case controllerChanged(rc, old):
					// Arguments in this order, as in kube-apiserver: the old template is checked.
					return podspec.TemplateWarnings(old.Spec.Template, rc.Spec.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Subresources: []resource.Subresource{
			{
				Name: "status",
				Part: new(resource.Rules[*corev1.ReplicationController]{
					PrepareUpdate: func(_ context.Context, rc, old *corev1.ReplicationController) { rc.Spec = old.Spec },
					ValidateUpdate: func(_ context.Context, rc, _ *corev1.ReplicationController) field.ErrorList {
						return validateControllerStatus(&rc.Status)
					},
				}.Strategy()),
			},
			rules.Scale(func(rc *corev1.ReplicationController) (rules.Scalable, error) {
				return rules.Scalable{Wanted: &rc.Spec.Replicas, Seen: rc.Status.Replicas, Selector: labels.Set(rc.Spec.Selector).String()}, nil
			}),
		},
		Columns: append([]resource.Column{
			rules.NameColumn(),
			{Name: "Desired", Type: "integer", Description: spec["replicas"]},
			{Name: "Current", Type: "integer", Description: observed["replicas"]},
			{Name: "Ready", Type: "integer", Description: observed["readyReplicas"]},
			rules.AgeColumn(),
		}, podspec.TemplateColumns(spec["selector"])...),
		Cells: resource.CellsFunc(func(rc *corev1.ReplicationController) []any {
			var containers []corev1.Container
			if rc.Spec.Template != nil {
				containers = rc.Spec.Template.Spec.Containers
			}
			names, images := podspec.ContainerCells(containers)
			return []any{
				rc.Name, int64(ptr.Deref(rc.Spec.Replicas, 0)), int64(rc.Status.Replicas), int64(rc.Status.ReadyReplicas),
				resource.Since(rc.CreationTimestamp.Time), names, images, labels.FormatLabels(rc.Spec.Selector),
			}
		}),
		Fields: []resource.Field{
			resource.FieldFunc("status.replicas", func(rc *corev1.ReplicationController) string { return fmt.Sprint(rc.Status.Replicas) }),
		},
	}
}

// defaultController copies labels and selector from the template if they are empty.
func defaultController(rc *corev1.ReplicationController) {
	rules.DefaultPointer(&rc.Spec.Replicas, 1)
	t := rc.Spec.Template
	if t == nil {
		return
	}
	if t.Labels != nil && len(rc.Spec.Selector) == 0 {
		rc.Spec.Selector = maps.Clone(t.Labels)
	}
	if t.Labels != nil && len(rc.Labels) == 0 {
		rc.Labels = maps.Clone(t.Labels)
	}
	podspec.DefaultTemplate(t)
}

func controllerChanged(rc, old *corev1.ReplicationController) bool {
	return !equality.Semantic.DeepEqual(rc.Spec, old.Spec)
}

func validateController(ctx context.Context, rc *corev1.ReplicationController, old *corev1.PodTemplateSpec) field.ErrorList {
	var e rules.Errors
	spec, p := &rc.Spec, field.NewPath("spec")
	replicas := func() field.ErrorList {
		return apivalidation.ValidateNonnegativeField(int64(ptr.Deref(spec.Replicas, 0)), p.Child("replicas"))
	}
	e.Add(resource.BetaOnly(replicas()...)...)
	e.Add(resource.DeclaredBeta(apivalidation.ValidateNonnegativeField(int64(spec.MinReadySeconds), p.Child("minReadySeconds"))...)...)
	if len(spec.Selector) == 0 {
		e.Required(p.Child("selector"), "")
	}
	e.Add(resource.HandWritten(replicas()...)...)
	t, tp := spec.Template, p.Child("template")
	if t == nil {
		e.Required(tp, "")
		return field.ErrorList(e)
	}
	if !labels.SelectorFromSet(spec.Selector).Matches(labels.Set(t.Labels)) {
		e.Invalid(tp.Child("metadata", "labels"), t.Labels, "`selector` does not match template `labels`")
	}
	e.Add(podspec.ValidateTemplate(ctx, t, tp, old)...)
	rules.OneOf(&e, tp.Child("spec", "restartPolicy"), t.Spec.RestartPolicy, corev1.RestartPolicyAlways)
	if t.Spec.ActiveDeadlineSeconds != nil {
		e.Forbidden(tp.Child("spec", "activeDeadlineSeconds"), "activeDeadlineSeconds in ReplicationController is not Supported")
	}
	return field.ErrorList(e)
}

// validateUnconverted checks that fields whose values are in annotations are unchanged.
func validateUnconverted(rc, old *corev1.ReplicationController) field.ErrorList {
	var e rules.Errors
	for key, value := range old.Annotations {
		name, ok := strings.CutPrefix(key, unconvertible)
		switch {
		case !ok || strings.Contains(name, "/"):
		case !strings.Contains(name, "selector"):
			e.Add(&field.Error{Type: field.ErrorTypeNotFound, BadValue: value, Field: name, Detail: "unknown non-convertible field"})
		case !maps.Equal(rc.Spec.Selector, old.Spec.Selector):
			e.Invalid(field.NewPath("spec", "selector"), rc.Spec.Selector, "cannot update non-convertible selector")
		}
	}
	return field.ErrorList(e)
}

func validateControllerStatus(s *corev1.ReplicationControllerStatus) field.ErrorList {
	var e rules.Errors
	p := field.NewPath("status")
	e.NonNegative(p.Child("replicas"), int64(s.Replicas))
	e.NonNegative(p.Child("fullyLabeledReplicas"), int64(s.FullyLabeledReplicas))
	e.NonNegative(p.Child("readyReplicas"), int64(s.ReadyReplicas))
	e.NonNegative(p.Child("availableReplicas"), int64(s.AvailableReplicas))
	e.NonNegative(p.Child("observedGeneration"), s.ObservedGeneration)
	atMost := func(name string, value, limit int32, than string) {
		if value > limit {
			e.Invalid(p.Child(name), value, "cannot be greater than "+than)
		}
	}
	atMost("fullyLabeledReplicas", s.FullyLabeledReplicas, s.Replicas, "status.replicas")
	atMost("readyReplicas", s.ReadyReplicas, s.Replicas, "status.replicas")
	atMost("availableReplicas", s.AvailableReplicas, s.Replicas, "status.replicas")
	atMost("availableReplicas", s.AvailableReplicas, s.ReadyReplicas, "readyReplicas")
	return field.ErrorList(e)
}
