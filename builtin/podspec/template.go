package podspec

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

// ValidateTemplate returns everything that is wrong with a pod template. old is
// nil on create; rules that it already breaks are left out.
func ValidateTemplate(ctx context.Context, t *corev1.PodTemplateSpec, path *field.Path, old *corev1.PodTemplateSpec) field.ErrorList {
	var e rules.Errors
	oldSpec, oldMeta := templateParts(old)
	allow := allowancesFor(ctx, oldSpec, oldMeta)
	withPathsIfWrong(&e, path, func(e *rules.Errors, p *field.Path) {
		e.Add(metavalidation.ValidateLabels(t.Labels, childOf(p, "labels"))...)
		e.Add(apivalidation.ValidateAnnotations(t.Annotations, childOf(p, "annotations"))...)
		CheckAnnotations(e, t.Annotations, &t.Spec, childOf(p, "annotations"), allow)
		checkSpec(e, &t.Spec, nil, childOf(p, "spec"), allow)
		CheckProfileAnnotations(e, &t.ObjectMeta, &t.Spec, childOf(p, "spec"))
		if len(t.Spec.EphemeralContainers) > 0 {
			e.Forbidden(childOf(p, "spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
		}
		e.Add(ValidateResponders(ctx, &t.Spec, oldSpec, childOf(p, "spec"))...)
	})
	return field.ErrorList(e)
}

// TemplateWarnings returns the warnings for a pod template; old is nil on create,
// path is the field path of the template.
func TemplateWarnings(t, old *corev1.PodTemplateSpec, path *field.Path) []string {
	if t == nil {
		return nil
	}
	return specWarnings(&t.Spec, &t.ObjectMeta, path)
}

// DropDisabledTemplateFields clears the fields of features that are off,
// unless the old template, nil on create, uses them already.
func DropDisabledTemplateFields(ctx context.Context, t, old *corev1.PodTemplateSpec) {
	if t == nil {
		return
	}
	oldSpec, _ := templateParts(old)
	dropSpecFields(features.From(ctx), &t.Spec, oldSpec)
	DropInitAnnotations(t.Annotations)
}

func templateParts(t *corev1.PodTemplateSpec) (*corev1.PodSpec, *metav1.ObjectMeta) {
	if t == nil {
		return nil, nil
	}
	return &t.Spec, &t.ObjectMeta
}
