package dra

import (
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// Feature gates of fields and rules.
const (
	partitionTypes      = "DRAPartitionableDevicesType"
	optionalOperations  = "DRAOptionalNodeOperations"
	compatibilityGroups = "DRADeviceCompatibilityGroups"
	fractions           = "DRAFractionalCapacityRange"
	listAttributes      = "DRAListTypeAttributes"
	derivedAttributes   = "DRADerivedAttributes"
	nodeAllocatable     = "DRANodeAllocatableResources"
	consumableCapacity  = "DRAConsumableCapacity"
)

// maxCompatibility bounds the compatibility groups of a device.
const maxCompatibility = 2

func validateCompatibility(groups []string, path *field.Path) field.ErrorList {
	errs := eachDeclared(groups, maxCompatibility, path, func(name *string, path *field.Path) field.ErrorList {
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

// validateAllocatable validates the node resources that a device provides or needs; old is
// the device before, nil if there was none.
func validateAllocatable(d, old *resourcev1.Device, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(d.NodeAllocatableResources)) {
		r, path := d.NodeAllocatableResources[name], path.Key(string(name))
		if !rules.IsNodeAllocatable(name) {
			errs = append(errs, field.Invalid(path, name, "must be a node allocatable resource name"))
		}
		if r.Mapping == nil && r.Overhead == nil {
			errs = append(errs, field.Required(path, "at least one of mapping or overhead must be set"))
		}
		if r.Mapping != nil {
			var was *resourcev1.NodeAllocatableMapping
			if old != nil {
				was = old.NodeAllocatableResources[name].Mapping
			}
			errs = append(errs, validateMapping(r.Mapping, was, d.Capacity, path.Child("mapping"))...)
		}
		if o, path := r.Overhead, path.Child("overhead"); o != nil {
			if o.PerPod == nil && o.PerContainer == nil {
				errs = append(errs, field.Invalid(path, "", "at least one of perPod or perContainer must be set"))
			}
			errs = append(errs, validateSign(o.PerPod, 0, "must be non-negative", path.Child("perPod"))...)
			errs = append(errs, validateSign(o.PerContainer, 0, "must be non-negative", path.Child("perContainer"))...)
		}
	}
	return errs
}

// validateMapping validates how much of a node resource a device provides. As a declared
// rule, exactly one of capacityKey and deviceMultiplier is set.
func validateMapping(m, old *resourcev1.NodeAllocatableMapping, capacity map[resourcev1.QualifiedName]resourcev1.DeviceCapacity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	multiplier := path.Child("capacityMultiplier")
	switch key, at := m.CapacityKey, path.Child("capacityKey"); {
	case key == nil && m.CapacityMultiplier != nil:
		errs = append(errs, field.Required(at, "capacityKey is required when capacityMultiplier is set"))
	case key == nil:
	default:
		if *key == "" {
			errs = append(errs, field.Invalid(at, "", "capacityKey must not be an empty string"))
		} else if _, ok := capacity[*key]; !ok {
			errs = append(errs, field.NotFound(at, *key))
		}
		if m.CapacityMultiplier == nil {
			errs = append(errs, field.Required(multiplier, "capacityMultiplier is required when capacityKey is set"))
		}
		errs = append(errs, validateSign(m.CapacityMultiplier, 1, "must be positive", multiplier)...)
	}
	errs = append(errs, validateSign(m.DeviceMultiplier, 1, "must be positive", path.Child("deviceMultiplier"))...)
	if old != nil && (m.CapacityKey == nil) == (old.CapacityKey == nil) && (m.DeviceMultiplier == nil) == (old.DeviceMultiplier == nil) {
		return errs
	}
	const members = "`capacityKey`, `deviceMultiplier`"
	switch {
	case m.CapacityKey == nil && m.DeviceMultiplier == nil:
		errs = append(errs, resource.Declared(field.Invalid(path, "", "must specify one of: "+members))...)
	case m.CapacityKey != nil && m.DeviceMultiplier != nil:
		errs = append(errs, resource.Declared(field.Invalid(path, "{capacityKey, deviceMultiplier}", "must specify exactly one of: "+members))...)
	}
	return errs
}

// validateSign reports a quantity whose sign is below least; nil is accepted.
func validateSign(q *apiresource.Quantity, least int, detail string, path *field.Path) field.ErrorList {
	if q != nil && q.Sign() < least {
		return field.ErrorList{field.Invalid(path, q.String(), detail)}
	}
	return nil
}
