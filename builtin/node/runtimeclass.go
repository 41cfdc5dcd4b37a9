package node

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// RuntimeClasses defines runtimeclasses.
func RuntimeClasses() resource.Definition {
	return resource.Definition{
		Group:      nodev1.GroupName,
		Resource:   "runtimeclasses",
		Singular:   "runtimeclass",
		Kind:       "RuntimeClass",
		StorageKey: "runtimeclasses",
		Versions:   append([]resource.Version{resource.VersionOf[nodev1.RuntimeClass, nodev1.RuntimeClassList]("v1", nil)}, oldRuntimeClasses()...),
		Strategy: resource.Rules[*nodev1.RuntimeClass]{
			NameOnUpdate:   true,
			CreateOnUpdate: true,
			RequireVersion: true,
			Validate:       func(_ context.Context, c *nodev1.RuntimeClass) field.ErrorList { return validateClass(c) },
			ValidateUpdate: func(_ context.Context, c, old *nodev1.RuntimeClass) field.ErrorList {
				errs := validateClass(c)
				if c.Handler != old.Handler {
					immutable := resource.ImmutableValue(field.NewPath("handler"), c.Handler)
					errs = append(immutable[1:], append(errs, immutable[0])...) // the declared form comes first
				}
				return errs
			},
			Warnings: func(_ context.Context, c, _ *nodev1.RuntimeClass) []string {
				var warnings []string
				if c.Scheduling == nil {
					return nil
				}
				for _, key := range slices.Sorted(maps.Keys(c.Scheduling.NodeSelector)) {
					if text := podspec.OldNodeLabel(key); text != "" {
						warnings = append(warnings, fmt.Sprintf("scheduling.nodeSelector: %s", text))
					}
				}
				return warnings
			},
		}.Strategy(),
		Columns: []resource.Column{rules.NameColumn(), {Name: "Handler", Type: "string"}, rules.AgeColumn()},
		Cells: resource.CellsFunc(func(c *nodev1.RuntimeClass) []any {
			return []any{c.Name, c.Handler, resource.Since(c.CreationTimestamp.Time)}
		}),
	}
}

func validateClass(c *nodev1.RuntimeClass) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("handler")
	if c.Handler == "" {
		errs = resource.DeclaredBeta(field.Required(path, ""))
	} else {
		// The hand-written form counts characters.
		errs = resource.BetaInstead(rules.Invalid(path, c.Handler, content.IsDNS1123Label(c.Handler)), rules.Invalid(path, c.Handler, validation.IsDNS1123Label(c.Handler)))
	}
	if c.Overhead != nil {
		errs = append(errs, podspec.ValidateLimits(c.Overhead.PodFixed, field.NewPath("overhead"))...)
	}
	if s := c.Scheduling; s != nil {
		path := field.NewPath("scheduling")
		errs = append(errs, metavalidation.ValidateLabels(s.NodeSelector, path.Child("nodeSelector"))...)
		errs = append(errs, podspec.ValidateTolerations(s.Tolerations, path.Child("tolerations"))...)
		seen := map[corev1.Toleration]bool{}
		for i, t := range s.Tolerations {
			key := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
			if seen[key] {
				errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), rules.GoForm(t)))
			}
			seen[key] = true
		}
	}
	return errs
}
