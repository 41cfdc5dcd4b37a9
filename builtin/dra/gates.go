package dra

import (
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Feature gates that are disabled by default.
const (
	partitionTypes      = "DRAPartitionableDevicesType"
	optionalOperations  = "DRAOptionalNodeOperations"
	compatibilityGroups = "DRADeviceCompatibilityGroups"
	fractions           = "DRAFractionalCapacityRange"
)

// maxCompatibility bounds the compatibility groups of a device.
const maxCompatibility = 2

func validateCompatibility(groups []string, path *field.Path) field.ErrorList {
	errs := each(groups, maxCompatibility, path, func(name *string, path *field.Path) field.ErrorList {
		return checkFormat(validate.ShortName, *name, path)
	})
	return append(errs, unique(groups, maxCompatibility, path, itself, nil)...)
}

// validatePartitionType validates partitionTypeAttribute: devices that consume counters must
// have the attribute.
func validatePartitionType(gates features.Gates, spec *resourcev1.ResourceSliceSpec, old *resourcev1.FullyQualifiedName, path *field.Path) field.ErrorList {
	if spec.PartitionTypeAttribute == nil {
		return nil
	}
	name := string(*spec.PartitionTypeAttribute)
	at := path.Child("partitionTypeAttribute")
	var format field.ErrorList
	switch changed := old == nil || *old != *spec.PartitionTypeAttribute; {
	case changed && !gates.Enabled(partitionTypes):
		format = resource.Declared(field.Forbidden(at, ""))
	case changed:
		format = checkFormat(validate.ResourceFullyQualifiedName, name, at)
	}
	if !slices.ContainsFunc(spec.Devices, func(d resourcev1.Device) bool { return len(d.ConsumesCounters) > 0 }) {
		return append(field.ErrorList{field.Invalid(at, name, "may only be set on a slice which declares devices that consume counters")}, format...)
	}
	if len(checkFormat(validate.ResourceFullyQualifiedName, name, at)) > 0 {
		return format
	}
	var errs field.ErrorList
	bare := strings.TrimPrefix(name, spec.Driver+"/") // without the domain of the driver
	for i, d := range spec.Devices {
		if len(d.ConsumesCounters) == 0 {
			continue
		}
		path := path.Child("devices").Index(i).Child("attributes").Key(name)
		attribute, ok := d.Attributes[resourcev1.QualifiedName(name)]
		if !ok {
			attribute, ok = d.Attributes[resourcev1.QualifiedName(bare)]
		}
		switch {
		case !ok:
			errs = append(errs, field.Required(path, "device consumes counters and `partitionTypeAttribute` names this attribute, so it must be set"))
		case attribute.StringValue == nil:
			errs = append(errs, field.Invalid(path, rules.GoForm(attribute), "must be a string value because `partitionTypeAttribute` names this attribute"))
		}
	}
	return append(errs, format...)
}

// validateSkipped validates skipped node operations: skipping prepare requires skipping
// unprepare. Otherwise an unchanged list is not validated again.
func validateSkipped(skipped, old []resourcev1.SkipNodeOperation, path *field.Path) field.ErrorList {
	const (
		prepare   = resourcev1.SkipNodeOperationNodePrepareResources
		unprepare = resourcev1.SkipNodeOperationNodeUnprepareResources
		all       = resourcev1.SkipNodeOperationAll
	)
	var errs field.ErrorList
	if slices.Contains(skipped, prepare) && !slices.Contains(skipped, unprepare) && !slices.Contains(skipped, all) {
		errs = append(errs, field.Invalid(path, skipped, "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"))
	}
	if slices.Equal(skipped, old) {
		return errs
	}
	errs = append(errs, unique(skipped, -1, path, func(s *resourcev1.SkipNodeOperation) resourcev1.SkipNodeOperation { return *s }, nil)...)
	known := []resourcev1.SkipNodeOperation{all, prepare, unprepare}
	for i, s := range skipped {
		if !slices.Contains(known, s) && !slices.Contains(old, s) {
			errs = append(errs, resource.Declared(field.NotSupported(path.Index(i), s, known))...)
		}
	}
	return errs
}
