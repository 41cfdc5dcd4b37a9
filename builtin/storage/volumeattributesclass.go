package storage

import (
	"context"
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// VolumeAttributesClasses defines volumeattributesclasses.
func VolumeAttributesClasses() resource.Definition {
	return resource.Definition{
		Group:      storagev1.GroupName,
		Resource:   "volumeattributesclasses",
		Singular:   "volumeattributesclass",
		Kind:       "VolumeAttributesClass",
		ShortNames: []string{"vac"},
		StorageKey: "volumeattributesclasses",
		Versions:   append([]resource.Version{resource.VersionOf[storagev1.VolumeAttributesClass, storagev1.VolumeAttributesClassList]("v1", nil)}, oldVolumeAttributesClasses()...),
		Strategy: resource.Rules[*storagev1.VolumeAttributesClass]{
			NameOnUpdate:  true,
			ReturnDeleted: true,
			Validate: func(_ context.Context, c *storagev1.VolumeAttributesClass) field.ErrorList {
				return validateAttributes(c)
			},
			ValidateUpdate: func(_ context.Context, c, old *storagev1.VolumeAttributesClass) field.ErrorList {
				var errs field.ErrorList
				if c.DriverName != old.DriverName {
					errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
				}
				if !maps.Equal(c.Parameters, old.Parameters) {
					errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
				}
				return append(errs, validateAttributes(c)...)
			},
		}.Strategy(),
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "DriverName", Type: "string", Description: storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(c *storagev1.VolumeAttributesClass) []any {
			return []any{c.Name, c.DriverName, resource.Since(c.CreationTimestamp.Time)}
		}),
	}
}

func validateAttributes(c *storagev1.VolumeAttributesClass) field.ErrorList {
	var errs field.ErrorList
	if c.DriverName == "" {
		errs = append(errs, field.Required(field.NewPath("driverName"), ""))
	}
	errs = append(errs, validateProvisioner(c.DriverName, field.NewPath("driverName"))...)
	errs = append(errs, validateParameters(c.Parameters, field.NewPath("parameters"))...)
	if len(c.Parameters) == 0 {
		errs = append(errs, field.Required(field.NewPath("parameters"), "must contain at least one key/value pair"))
	}
	return errs
}
