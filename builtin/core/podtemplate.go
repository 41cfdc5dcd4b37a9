package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// PodTemplates are templates that something other than the built-in kinds may
// make pods of.
func PodTemplates() resource.Definition {
	path := field.NewPath("template")
	changed := func(t, old *corev1.PodTemplate) bool { return !equality.Semantic.DeepEqual(t.Template, old.Template) }
	return resource.Definition{
		Resource:   "podtemplates",
		Kind:       "PodTemplate",
		Namespaced: true,
		Versions: []resource.Version{resource.VersionOf[corev1.PodTemplate, corev1.PodTemplateList]("v1", func(t *corev1.PodTemplate) {
			DefaultPodTemplate(&t.Template)
		})},
		Strategy: resource.Rules[*corev1.PodTemplate]{
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, t *corev1.PodTemplate) { DropDisabledTemplateFields(ctx, &t.Template, nil) },
			PrepareUpdate: func(ctx context.Context, t, old *corev1.PodTemplate) {
				DropDisabledTemplateFields(ctx, &t.Template, &old.Template)
			},
			Validate: func(ctx context.Context, t *corev1.PodTemplate) field.ErrorList {
				return ValidatePodTemplateSpec(ctx, &t.Template, path, nil)
			},
			ValidateUpdate: func(ctx context.Context, t, old *corev1.PodTemplate) field.ErrorList {
				return ValidatePodTemplateSpec(ctx, &t.Template, path, &old.Template)
			},
			Generation: changed,
			Warnings: func(ctx context.Context, t, old *corev1.PodTemplate) []string {
				switch {
				case old == nil:
					return PodTemplateWarnings(&t.Template, nil, path)
				case changed(t, old):
					return PodTemplateWarnings(&t.Template, &old.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Columns: []resource.Column{
			NameColumn(),
			{Name: "Containers", Type: "string", Description: "Names of each container in the template."},
			{Name: "Images", Type: "string", Description: "Images referenced by each container in the template."},
			{Name: "Pod Labels", Type: "string", Description: "The labels for the pod template."},
		},
		Cells: resource.CellsFunc(func(t *corev1.PodTemplate) []any {
			names, images := containerCells(&t.Template)
			return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
		}),
	}
}

// ValidatePodTemplateSpec returns everything that is wrong with a pod template.
// What the old template, nil on create, already has may stay.
func ValidatePodTemplateSpec(ctx context.Context, t *corev1.PodTemplateSpec, path *field.Path, old *corev1.PodTemplateSpec) field.ErrorList {
	var e problems
	oldSpec, oldMeta := templateParts(old)
	allow := allowancesFor(ctx, oldSpec, oldMeta)
	e.add(metavalidation.ValidateLabels(t.Labels, path.Child("labels"))...)
	e.add(apivalidation.ValidateAnnotations(t.Annotations, path.Child("annotations"))...)
	checkPodAnnotations(&e, t.Annotations, &t.Spec, path.Child("annotations"), allow)
	checkPodSpec(&e, &t.Spec, nil, path.Child("spec"), allow)
	checkProfileAnnotations(&e, &t.ObjectMeta, &t.Spec, path.Child("spec"))
	if len(t.Spec.EphemeralContainers) > 0 {
		e.forbidden(path.Child("spec", "ephemeralContainers"), "ephemeral containers not allowed in pod template")
	}
	e.add(validateResponders(ctx, &t.Spec, oldSpec, path.Child("spec"))...)
	return field.ErrorList(e)
}

// PodTemplateWarnings returns what the author of a pod template should know; old
// is nil on create, path is where the template is in its object.
func PodTemplateWarnings(t, old *corev1.PodTemplateSpec, path *field.Path) []string {
	if t == nil {
		return nil
	}
	return podWarnings(&t.Spec, &t.ObjectMeta, path)
}

// DropDisabledTemplateFields clears the fields of features that are off,
// unless the old template, nil on create, uses them already.
func DropDisabledTemplateFields(ctx context.Context, t, old *corev1.PodTemplateSpec) {
	if t == nil {
		return
	}
	oldSpec, _ := templateParts(old)
	dropSpecFields(features.From(ctx), &t.Spec, oldSpec)
	dropInitAnnotations(t.Annotations)
}

func templateParts(t *corev1.PodTemplateSpec) (*corev1.PodSpec, *metav1.ObjectMeta) {
	if t == nil {
		return nil, nil
	}
	return &t.Spec, &t.ObjectMeta
}
