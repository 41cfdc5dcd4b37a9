package storage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// StorageClasses defines storageclasses.
func StorageClasses() resource.Definition {
	doc := storagev1.StorageClass{}.SwaggerDoc()
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "storageclasses",
		Singular:   "storageclass",
		Kind:       "StorageClass",
		ShortNames: []string{"sc"},
		StorageKey: "storageclasses",
		Versions:   append([]resource.Version{resource.VersionOf[storagev1.StorageClass, storagev1.StorageClassList]("v1", defaultStorageClass)}, oldStorageClasses()...),
		Strategy: resource.Rules[*storagev1.StorageClass]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			Validate:      func(_ context.Context, c *storagev1.StorageClass) field.ErrorList { return validateStorageClass(c) },
			ValidateUpdate: func(_ context.Context, c, old *storagev1.StorageClass) field.ErrorList {
				errs := validateStorageClass(c)
				for _, f := range []struct {
					name    string
					changed bool
					value   any
				}{
					{"provisioner", c.Provisioner != old.Provisioner, c.Provisioner},
					{"parameters", !equality.Semantic.DeepEqual(c.Parameters, old.Parameters), c.Parameters},
					{"reclaimPolicy", valueOr(c.ReclaimPolicy, "") != valueOr(old.ReclaimPolicy, ""), c.ReclaimPolicy},
					{"volumeBindingMode", valueOr(c.VolumeBindingMode, "") != valueOr(old.VolumeBindingMode, ""), c.VolumeBindingMode},
				} {
					if f.changed {
						errs = append(errs, resource.ImmutableValue(field.NewPath(f.name), f.value)...)
					}
				}
				return errs
			},
			Warnings: func(_ context.Context, c, _ *storagev1.StorageClass) []string {
				var warnings []string
				for i, term := range c.AllowedTopologies {
					for j, e := range term.MatchLabelExpressions {
						if text := podspec.OldNodeLabel(e.Key); text != "" {
							path := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions").Index(j).Child("key")
							warnings = append(warnings, fmt.Sprintf("%s: %s", path, text))
						}
					}
				}
				return warnings
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Provisioner", Type: "string", Description: doc["provisioner"]},
			{Name: "ReclaimPolicy", Type: "string", Description: doc["reclaimPolicy"]},
			{Name: "VolumeBindingMode", Type: "string", Description: doc["volumeBindingMode"]},
			{Name: "AllowVolumeExpansion", Type: "string", Description: doc["allowVolumeExpansion"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *storagev1.StorageClass) []any {
			return []any{
				c.Name, c.Provisioner, string(valueOr(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
				string(valueOr(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)), valueOr(c.AllowVolumeExpansion, false), resource.Since(c.CreationTimestamp.Time),
			}
		}),
		Arrange: resource.ArrangeFunc(func(all []*storagev1.StorageClass) func(*storagev1.StorageClass, []any) {
			best := newestDefault(all)
			return func(c *storagev1.StorageClass, cells []any) {
				if c == best {
					cells[0] = c.Name + " (default)"
				}
			}
		}),
	}
}

// newestDefault returns the default class of claims: of several defaults the newest, and of
// equally old ones the first by name.
func newestDefault(all []*storagev1.StorageClass) (best *storagev1.StorageClass) {
	for _, c := range all {
		if !isDefault(c) {
			continue
		}
		if best == nil || cmp.Or(best.CreationTimestamp.Compare(c.CreationTimestamp.Time), strings.Compare(c.Name, best.Name)) < 0 {
			best = c
		}
	}
	return best
}

func defaultStorageClass(c *storagev1.StorageClass) {
	rules.DefaultPointer(&c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
	rules.DefaultPointer(&c.VolumeBindingMode, storagev1.VolumeBindingImmediate)
}

// isDefault reports whether a class is annotated as default.
func isDefault(c *storagev1.StorageClass) bool {
	return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

func validateStorageClass(c *storagev1.StorageClass) field.ErrorList {
	var errs field.ErrorList
	if c.Provisioner == "" {
		errs = resource.DeclaredBeta(field.Required(field.NewPath("provisioner"), ""))
	}
	errs = append(errs, validateProvisioner(c.Provisioner, field.NewPath("provisioner"))...)
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	policies := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain}
	if p := c.ReclaimPolicy; p != nil && *p != "" && !slices.Contains(policies, *p) {
		errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), *p, policies))
	}
	modes := []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}
	if m := c.VolumeBindingMode; m == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else if !slices.Contains(modes, *m) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), *m, modes))
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

// validateTopologies checks that topology terms are valid and distinct.
func validateTopologies(terms []corev1.TopologySelectorTerm, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var seen rules.Seen[string]
	for i, term := range terms {
		expressions := path.Index(i).Child("matchLabelExpressions")
		selected := map[string]sets.Set[string]{}
		for j, e := range term.MatchLabelExpressions {
			at := expressions.Index(j)
			values := sets.Set[string]{}
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(at.Child("values"), ""))
			}
			for k, value := range e.Values {
				if values.Has(value) {
					errs = append(errs, field.Duplicate(at.Child("values").Index(k), value))
				}
				values.Insert(value)
			}
			errs = append(errs, metavalidation.ValidateLabelName(e.Key, at.Child("key"))...)
			if _, ok := selected[e.Key]; ok {
				errs = append(errs, field.Duplicate(at.Child("key"), e.Key))
			}
			selected[e.Key] = values
		}
		var form strings.Builder // the same for terms that select the same
		for _, key := range slices.Sorted(maps.Keys(selected)) {
			fmt.Fprintf(&form, "%q:%q,", key, sets.List(selected[key]))
		}
		// A term that selects nothing is always a duplicate.
		if seen.Again(form.String()) || len(selected) == 0 {
			errs = append(errs, field.Duplicate(expressions, ""))
		}
	}
	return errs
}
