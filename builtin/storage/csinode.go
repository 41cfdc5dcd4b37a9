package storage

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// maxNodeID bounds the length of a node ID.
const maxNodeID = 256

// CSINodes defines csinodes.
func CSINodes() resource.Definition {
	status := resource.Rules[*storagev1.CSINode]{
		PrepareUpdate: func(_ context.Context, n, old *storagev1.CSINode) {
			n.Spec = old.Spec
			metav1.ResetObjectMetaForStatus(&n.ObjectMeta, &old.ObjectMeta)
		},
		ValidateUpdate: func(_ context.Context, n, _ *storagev1.CSINode) field.ErrorList {
			return validateStorageHealth(n.Status.StorageHealth, field.NewPath("status", "storageHealth"))
		},
		RequireVersion: true,
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "csinodes",
		Kind:       "CSINode",
		StorageKey: "csinodes",
		GatedFields: []resource.GatedField{
			{Path: "status.storageHealth", Gate: "CSIVolumeHealth"},
		},
		Versions: append([]resource.Version{resource.VersionOf[storagev1.CSINode, storagev1.CSINodeList]("v1", nil)}, oldCSINodes()...),
		Strategy: resource.Rules[*storagev1.CSINode]{
			NameOnUpdate:   true,
			RequireVersion: true,
			ReturnDeleted:  true,
			PrepareCreate:  func(_ context.Context, n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} },
			PrepareUpdate:  func(_ context.Context, n, old *storagev1.CSINode) { n.Status = old.Status },
			Validate: func(_ context.Context, n *storagev1.CSINode) field.ErrorList {
				return validateNodeDrivers(n.Spec.Drivers)
			},
			ValidateUpdate: func(ctx context.Context, n, old *storagev1.CSINode) field.ErrorList {
				errs := validateNodeDrivers(n.Spec.Drivers)
				mutable := features.From(ctx).Enabled("MutableCSINodeAllocatableCount")
				for _, before := range old.Spec.Drivers {
					for _, driver := range n.Spec.Drivers {
						if mutable {
							before.Allocatable, driver.Allocatable = nil, nil
						}
						if driver.Name == before.Name && !equality.Semantic.DeepEqual(driver, before) {
							errs = append(errs, field.Invalid(field.NewPath("spec", "drivers"), rules.GoForm(driver), apivalidation.FieldImmutableErrorMsg))
						}
					}
				}
				return errs
			},
		}.Strategy(),
		Subresources: []resource.Subresource{{Name: "status", Part: &status}},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Drivers", Type: "integer", Description: "Drivers indicates the number of CSI drivers registered on the node"},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(n *storagev1.CSINode) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), resource.Since(n.CreationTimestamp.Time)}
		}),
	}
}

func validateNodeDrivers(drivers []storagev1.CSINodeDriver) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, d := range drivers {
		path := field.NewPath("spec", "drivers").Index(i)
		errs = append(errs, validateDriverName(d.Name, path.Child("name"))...)
		if d.NodeID == "" {
			errs = append(errs, field.Required(path.Child("nodeID"), ""))
		} else if len(d.NodeID) > maxNodeID {
			errs = append(errs, field.Invalid(path.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if a := d.Allocatable; a != nil && a.Count != nil {
			errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*a.Count), path.Child("allocatable", "count"))...)
		}
		if names[d.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), d.Name))
		}
		names[d.Name] = true
		keys := map[string]bool{}
		for _, key := range d.TopologyKeys {
			if key == "" {
				errs = append(errs, field.Required(path, key))
			}
			if keys[key] {
				errs = append(errs, field.Duplicate(path, key))
			}
			keys[key] = true
			errs = append(errs, rules.Invalid(path, key, validation.IsQualifiedName(key))...)
		}
	}
	return errs
}

// Bounds of the health that drivers report of a storage backend.
const (
	maxHealthConditions = 16
	maxHealthReason     = 256  // bytes
	maxHealthMessage    = 1024 // bytes
)

func validateStorageHealth(all []storagev1.StorageHealth, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := map[string]bool{}
	for i, h := range all {
		path := path.Index(i)
		if names[h.Name] {
			errs = append(errs, field.Duplicate(path, h.Name))
		}
		names[h.Name] = true
		errs = append(errs, validateDriverName(h.Name, path.Child("name"))...)
		path = path.Child("healthConditions")
		if n := len(h.HealthConditions); n > maxHealthConditions {
			errs = append(errs, field.TooMany(path, n, maxHealthConditions))
			continue
		}
		for j := range h.HealthConditions {
			errs = append(errs, validateHealthCondition(&h.HealthConditions[j], path.Index(j))...)
		}
	}
	return errs
}

func validateHealthCondition(c *storagev1.StorageHealthCondition, path *field.Path) field.ErrorList {
	var e rules.Errors
	rules.OneOf(&e, path.Child("status"), c.Status, storagev1.StorageDegraded, storagev1.StorageUnreachable)
	if e.NotEmpty(path.Child("reason"), c.Reason) {
		e.InvalidEach(path.Child("reason"), c.Reason, metavalidation.IsValidConditionReason(c.Reason))
		if len(c.Reason) > maxHealthReason {
			e.Add(field.TooLong(path.Child("reason"), c.Reason, maxHealthReason))
		}
	}
	if len(c.Message) > maxHealthMessage {
		e.Add(field.TooLong(path.Child("message"), c.Message, maxHealthMessage))
	}
	rules.OneOfPointer(&e, path.Child("accessMode"), c.AccessMode, corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod)
	rules.OneOfPointer(&e, path.Child("volumeMode"), c.VolumeMode, corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock)
	return field.ErrorList(e)
}
