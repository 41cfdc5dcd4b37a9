package storage

import (
	"context"
	"fmt"
	"maps"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// CSIStorageCapacities defines csistoragecapacities.
func CSIStorageCapacities() resource.Definition {
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "csistoragecapacities",
		Singular:   "csistoragecapacity",
		Kind:       "CSIStorageCapacity",
		Namespaced: true,
		StorageKey: "csistoragecapacities",
		Versions:   append([]resource.Version{resource.VersionOf[storagev1.CSIStorageCapacity, storagev1.CSIStorageCapacityList]("v1", nil)}, oldCSIStorageCapacities()...),
		Strategy: resource.Rules[*storagev1.CSIStorageCapacity]{
			NameOnUpdate:   true,
			RequireVersion: true,
			Validate: func(_ context.Context, c *storagev1.CSIStorageCapacity) field.ErrorList {
				return validateCapacity(c, metavalidation.LabelSelectorValidationOptions{})
			},
			ValidateUpdate: func(_ context.Context, c, old *storagev1.CSIStorageCapacity) field.ErrorList {
				labels := metavalidation.LabelSelectorValidationOptions{}
				labels.AllowInvalidLabelValueInSelector = len(metavalidation.ValidateLabelSelector(old.NodeTopology, labels, nil)) > 0
				errs := validateCapacity(c, labels)
				if !equality.Semantic.DeepEqual(c.NodeTopology, old.NodeTopology) {
					errs = append(errs, field.Invalid(field.NewPath("nodeTopology"), c.NodeTopology, apivalidation.FieldImmutableErrorMsg))
				}
				return append(errs, apivalidation.ValidateImmutableField(c.StorageClassName, old.StorageClassName, field.NewPath("storageClassName"))...)
			},
			Warnings: func(_ context.Context, c, _ *storagev1.CSIStorageCapacity) []string {
				return topologyWarnings(c.NodeTopology, field.NewPath("nodeTopology"))
			},
		}.Strategy(),
	}
}

// topologyWarnings warns about deprecated node labels in a selector.
func topologyWarnings(s *metav1.LabelSelector, path *field.Path) []string {
	if s == nil {
		return nil
	}
	var warnings []string
	for i, e := range s.MatchExpressions {
		if text := podspec.OldNodeLabel(e.Key); text != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %s is %s", path.Child("matchExpressions").Index(i).Child("key"), e.Key, text))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if text := podspec.OldNodeLabel(key); text != "" {
			warnings = append(warnings, fmt.Sprintf("%s: %s", path.Child("matchLabels", key), text))
		}
	}
	return warnings
}

func validateCapacity(c *storagev1.CSIStorageCapacity, labels metavalidation.LabelSelectorValidationOptions) field.ErrorList {
	errs := metavalidation.ValidateLabelSelector(c.NodeTopology, labels, field.NewPath("nodeTopology"))
	errs = append(errs, rules.Invalid(field.NewPath("storageClassName"), c.StorageClassName, apivalidation.NameIsDNSSubdomain(c.StorageClassName, false))...)
	if q := c.Capacity; q != nil && q.Sign() < 0 {
		errs = append(errs, field.Invalid(field.NewPath("capacity"), q.String(), apivalidation.IsNegativeErrorMsg))
	}
	return errs
}
