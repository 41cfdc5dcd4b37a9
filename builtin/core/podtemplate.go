package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// PodTemplates defines podtemplates.
func PodTemplates() resource.Definition {
	path := field.NewPath("template")
	changed := func(t, old *corev1.PodTemplate) bool { return !equality.Semantic.DeepEqual(t.Template, old.Template) }
	return resource.Definition{
		Resource:   "podtemplates",
		Kind:       "PodTemplate",
		Namespaced: true,
		Versions: []resource.Version{resource.VersionOf[corev1.PodTemplate, corev1.PodTemplateList]("v1", func(t *corev1.PodTemplate) {
			podspec.DefaultTemplate(&t.Template)
		})},
		Strategy: resource.Rules[*corev1.PodTemplate]{
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, t *corev1.PodTemplate) {
				podspec.DropDisabledTemplateFields(ctx, &t.Template, nil)
			},
			PrepareUpdate: func(ctx context.Context, t, old *corev1.PodTemplate) {
				podspec.DropDisabledTemplateFields(ctx, &t.Template, &old.Template)
			},
			Validate: func(ctx context.Context, t *corev1.PodTemplate) field.ErrorList {
				return podspec.ValidateTemplate(ctx, &t.Template, path, nil)
			},
			ValidateUpdate: func(ctx context.Context, t, old *corev1.PodTemplate) field.ErrorList {
				return podspec.ValidateTemplate(ctx, &t.Template, path, &old.Template)
			},
			Generation: changed,
			Warnings: func(ctx context.Context, t, old *corev1.PodTemplate) []string {
				switch {
				case old == nil:
					return podspec.TemplateWarnings(&t.Template, nil, path)
				case changed(t, old):
					return podspec.TemplateWarnings(&t.Template, &old.Template, path)
				}
				return nil
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Containers", Type: "string", Description: "Names of each container in the template."},
			{Name: "Images", Type: "string", Description: "Images referenced by each container in the template."},
			{Name: "Pod Labels", Type: "string", Description: "The labels for the pod template."},
		},
		Cells: resource.CellsFunc(func(t *corev1.PodTemplate) []any {
			names, images := podspec.ContainerCells(t.Template.Spec.Containers)
			return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
		}),
	}
}
