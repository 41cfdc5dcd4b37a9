// Package storage is the API group storage.k8s.io: a file a kind.
package storage

import (
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Limits of parameters.
const (
	maxParameters     = 512
	maxParametersSize = 256 << 10
	maxDriverName     = 63
)

// Group returns the group.
func Group() resource.Group {
	return resource.Group{Name: storagev1.GroupName, Resources: []resource.Definition{
		CSIDrivers(),
		CSINodes(),
		CSIStorageCapacities(),
		StorageClasses(),
		VolumeAttachments(),
		VolumeAttributesClasses(),
	}}
}

// validateProvisioner validates the name of a provisioner, if it is set.
func validateProvisioner(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	lower := strings.ToLower(name)
	return rules.Invalid(path, lower, validation.IsQualifiedName(lower))
}

func validateParameters(parameters map[string]string, path *field.Path) field.ErrorList {
	if len(parameters) > maxParameters {
		return field.ErrorList{field.TooLong(path, "", maxParameters)}
	}
	var errs field.ErrorList
	size := 0
	for key, value := range parameters {
		if key == "" {
			errs = append(errs, field.Invalid(path, key, "field can not be empty."))
		}
		size += len(key) + len(value)
	}
	if size > maxParametersSize {
		errs = append(errs, field.TooLong(path, "", maxParametersSize))
	}
	return errs
}

func validateDriverName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > maxDriverName {
		errs = append(errs, field.TooLong(path, "", maxDriverName))
	}
	return append(errs, rules.Invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

// valueOr returns the value of a pointer, or otherwise if it is nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}
