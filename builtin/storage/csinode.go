package storage

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
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
			// The feature gate of storageHealth is disabled; it is kept only if the old object
			// has it.
			if len(old.Status.StorageHealth) == 0 {
				n.Status.StorageHealth = nil
			}
		},
		ValidateUpdate: func(context.Context, *storagev1.CSINode, *storagev1.CSINode) field.ErrorList { return nil },
		RequireVersion: true,
	}.Strategy()
	status.Resets = []string{"metadata", "spec"}
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "csinodes",
		Kind:       "CSINode",
		StorageKey: "csinodes",
		Versions:   append([]resource.Version{resource.VersionOf[storagev1.CSINode, storagev1.CSINodeList]("v1", nil)}, oldCSINodes()...),
		Strategy: resource.Rules[*storagev1.CSINode]{
			NameOnUpdate:   true,
			RequireVersion: true,
			ReturnDeleted:  true,
			PrepareCreate:  func(_ context.Context, n *storagev1.CSINode) { n.Status = storagev1.CSINodeStatus{} },
			PrepareUpdate:  func(_ context.Context, n, old *storagev1.CSINode) { n.Status = old.Status },
			Validate: func(_ context.Context, n *storagev1.CSINode) field.ErrorList {
				return validateNodeDrivers(n.Spec.Drivers)
			},
			ValidateUpdate: func(_ context.Context, n, old *storagev1.CSINode) field.ErrorList {
				errs := validateNodeDrivers(n.Spec.Drivers)
				for _, before := range old.Spec.Drivers {
					before.Allocatable = nil
					for _, driver := range n.Spec.Drivers {
						driver.Allocatable = nil
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
