package dra

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

type slice = resourcev1.ResourceSlice

// Slices defines resourceslices.
func Slices() resource.Definition {
	spec, pool := resourcev1.ResourceSliceSpec{}.SwaggerDoc(), resourcev1.ResourcePool{}.SwaggerDoc()
	return resource.Definition{
		Group:      resourcev1.GroupName,
		Resource:   "resourceslices",
		Kind:       "ResourceSlice",
		StorageKey: "resourceslices",
		GatedFields: []resource.GatedField{
			{Path: "spec.devices[].taints", Gate: "DRADeviceTaints"},
			{Path: "spec.sharedCounters spec.perDeviceNodeSelection spec.devices[].consumesCounters spec.devices[].nodeName spec.devices[].nodeSelector spec.devices[].allNodes", Gate: "DRAPartitionableDevices"},
			{Path: "spec.devices[].bindingConditions spec.devices[].bindingFailureConditions spec.devices[].bindsToNode", Gate: "DRADeviceBindingConditions"},
		},
		Versions: sliceVersions(),
		Strategy: resource.Rules[*slice]{
			ReturnDeleted: true,
			PrepareCreate: func(ctx context.Context, s *slice) {
				dropSliceFields(features.From(ctx), &s.Spec, &resourcev1.ResourceSliceSpec{})
			},
			PrepareUpdate: func(ctx context.Context, s, old *slice) {
				// Compared before fields are dropped: that counts for the generation too.
				if !equality.Semantic.DeepEqual(s.Spec, old.Spec) {
					s.Generation = old.Generation + 1
				}
				dropSliceFields(features.From(ctx), &s.Spec, &old.Spec)
			},
			Validate: func(ctx context.Context, s *slice) field.ErrorList {
				return validateSlice(features.From(ctx), &s.Spec, nil)
			},
			ValidateUpdate: func(ctx context.Context, s, old *slice) field.ErrorList {
				return validateSlice(features.From(ctx), &s.Spec, &old.Spec)
			},
			Generation: func(*slice, *slice) bool { return false },
			Warnings: func(_ context.Context, s, _ *slice) []string {
				if d := s.Spec.Driver; d != strings.ToLower(d) {
					return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", d)}
				}
				return nil
			},
		}.Strategy(),
		Fields: []resource.Field{
			resource.FieldFunc(resourcev1.ResourceSliceSelectorNodeName, func(s *slice) string { return deref(s.Spec.NodeName) }),
			resource.FieldFunc(resourcev1.ResourceSliceSelectorDriver, func(s *slice) string { return s.Spec.Driver }),
			resource.FieldFunc(resourcev1.ResourceSliceSelectorPoolName, func(s *slice) string { return s.Spec.Pool.Name }),
		},
		Columns: []resource.Column{
			rules.NameColumn(),
			{Name: "Node", Type: "string", Description: spec["nodeName"]},
			{Name: "Driver", Type: "string", Description: spec["driver"]},
			{Name: "Pool", Type: "string", Description: pool["name"]},
			rules.AgeColumn(),
		},
		Cells: resource.CellsFunc(func(s *slice) []any {
			return []any{s.Name, deref(s.Spec.NodeName), s.Spec.Driver, s.Spec.Pool.Name, resource.Since(s.CreationTimestamp.Time)}
		}),
	}
}

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

// dropSliceFields clears fields behind disabled feature gates, unless the old slice uses
// them.
func dropSliceFields(gates features.Gates, spec, old *resourcev1.ResourceSliceSpec) {
	if old.PartitionTypeAttribute == nil && !gates.Enabled(partitionTypes) {
		spec.PartitionTypeAttribute = nil
	}
	if len(old.SkipNodeOperations) == 0 && !gates.Enabled(optionalOperations) {
		spec.SkipNodeOperations = nil
	}
	uses := func(f func(*resourcev1.Device) bool) bool {
		return slices.ContainsFunc(old.Devices, func(d resourcev1.Device) bool { return f(&d) })
	}
	groups := gates.Enabled(compatibilityGroups) || uses(func(d *resourcev1.Device) bool {
		return slices.ContainsFunc(d.ConsumesCounters, func(c resourcev1.DeviceCounterConsumption) bool { return len(c.CompatibilityGroups) > 0 })
	})
	allocatable := gates.Enabled(nodeAllocatable) || uses(func(d *resourcev1.Device) bool { return len(d.NodeAllocatableResources) > 0 })
	shared := gates.Enabled(consumableCapacity) || uses(func(d *resourcev1.Device) bool {
		for _, c := range d.Capacity {
			if c.RequestPolicy != nil {
				return true
			}
		}
		return d.AllowMultipleAllocations != nil
	})
	lists := gates.Enabled(listAttributes) || uses(hasListAttributes)
	for i := range spec.Devices {
		d := &spec.Devices[i]
		for j := range d.ConsumesCounters {
			if !groups {
				d.ConsumesCounters[j].CompatibilityGroups = nil
			}
		}
		if !allocatable {
			d.NodeAllocatableResources = nil
		}
		if !shared {
			d.AllowMultipleAllocations = nil
			for name, c := range d.Capacity {
				c.RequestPolicy = nil
				d.Capacity[name] = c
			}
		}
		if !lists {
			for name, a := range d.Attributes {
				a.IntValues, a.BoolValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
				d.Attributes[name] = a
			}
		}
	}
}

func hasListAttributes(d *resourcev1.Device) bool {
	for _, a := range d.Attributes {
		if a.IntValues != nil || a.BoolValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

// validateSlice validates a slice; old is nil on create.
func validateSlice(gates features.Gates, spec, old *resourcev1.ResourceSliceSpec) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateDriver(spec.Driver, path.Child("driver"))
	errs = append(errs, validatePool(spec.Pool.Name, path.Child("pool", "name"))...)
	if n := spec.Pool.ResourceSliceCount; n <= 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "resourceSliceCount"), n, "must be greater than zero"))
	}
	if n := spec.Pool.Generation; n < 0 {
		errs = append(errs, field.Invalid(path.Child("pool", "generation"), n, "must be greater than or equal to zero"))
	}
	if old != nil {
		errs = append(errs, apivalidation.ValidateImmutableField(spec.Pool.Name, old.Pool.Name, path.Child("pool", "name"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(spec.Driver, old.Driver, path.Child("driver"))...)
		errs = append(errs, apivalidation.ValidateImmutableField(spec.NodeName, old.NodeName, path.Child("nodeName"))...)
	}
	errs = append(errs, validateNodes(spec, path)...)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs = append(errs, field.Invalid(path, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	limit := resourcev1.ResourceSliceMaxDevices
	if slices.ContainsFunc(spec.Devices, func(d resourcev1.Device) bool {
		return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 || hasListAttributes(&d)
	}) {
		limit = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	errs = append(errs, each(spec.Devices, limit, path.Child("devices"), func(d *resourcev1.Device, path *field.Path) field.ErrorList {
		var was *resourcev1.Device
		if old != nil {
			if i := slices.IndexFunc(old.Devices, func(o resourcev1.Device) bool { return o.Name == d.Name }); i >= 0 {
				was = &old.Devices[i]
			}
		}
		return validateDevice(gates, d, was, deref(spec.PerDeviceNodeSelection), path)
	})...)
	name := func(d *resourcev1.Device) string { return d.Name }
	errs = append(errs, duplicates(spec.Devices, limit, path.Child("devices"), name, func(d *resourcev1.Device) any { return d.Name })...)
	set := func(c *resourcev1.CounterSet) string { return c.Name }
	errs = append(errs, eachUnique(spec.SharedCounters, resourcev1.ResourceSliceMaxCounterSets, path.Child("sharedCounters"), set, func(c *resourcev1.CounterSet, path *field.Path) field.ErrorList {
		return append(requiredBetaFormat(validate.ShortName, validateLabelName, c.Name, path.Child("name")), validateCounters(c.Counters, path.Child("counters"))...)
	})...)
	var was resourcev1.ResourceSliceSpec
	if old != nil {
		was = *old
	}
	errs = append(errs, validatePartitionType(gates, spec, was.PartitionTypeAttribute, path)...)
	return append(errs, validateSkipped(spec.SkipNodeOperations, was.SkipNodeOperations, path.Child("skipNodeOperations"))...)
}

// validateNodes checks that exactly one of the node fields is set.
func validateNodes(spec *resourcev1.ResourceSliceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var set []string
	if n := spec.NodeName; n != nil && *n == "" {
		errs = append(errs, field.Invalid(path.Child("nodeName"), *n, "must be either unset or set to a non-empty string"))
	} else if n != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, rules.Invalid(path.Child("nodeName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
	}
	if s := spec.NodeSelector; s != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(s, path.Child("nodeSelector"), false)...)
		if len(s.NodeSelectorTerms) != 1 {
			errs = append(errs, field.Invalid(path.Child("nodeSelector", "nodeSelectorTerms"), rules.GoForm(s.NodeSelectorTerms), "must have exactly one node selector term"))
		}
	}
	only := func(value *bool, name string) {
		if value != nil && !*value {
			errs = append(errs, field.Invalid(path.Child(name), *value, "must be either unset or set to true"))
		} else if value != nil {
			set = append(set, "`"+name+"`")
		}
	}
	only(spec.AllNodes, "allNodes")
	only(spec.PerDeviceNodeSelection, "perDeviceNodeSelection")
	const exactly = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	switch {
	case len(set) == 0:
		errs = append(errs, field.Required(path, exactly))
	case len(set) > 1:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", exactly+", but multiple fields are set"))
	}
	return errs
}

func validateCounters(counters map[string]resourcev1.Counter, path *field.Path) field.ErrorList {
	if len(counters) == 0 {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	if n := len(counters); n > resourcev1.ResourceSliceMaxCountersPerCounterSet {
		return field.ErrorList{field.TooMany(path, n, resourcev1.ResourceSliceMaxCountersPerCounterSet)}
	}
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		errs = append(errs, betaFormat(validate.ShortName, validateLabelName, name, path)...)
	}
	return errs
}

// validateDevice validates a device; old is the device of the same name before, nil if there
// was none.
func validateDevice(gates features.Gates, d, old *resourcev1.Device, selectsNodes bool, path *field.Path) field.ErrorList {
	errs := validateLabelName(d.Name, path.Child("name"))
	if n := len(d.Attributes) + len(d.Capacity); n > resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
		errs = append(errs, field.Invalid(path, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice)))
	}
	values := 0
	for _, a := range d.Attributes {
		values += max(1, len(a.IntValues)+len(a.BoolValues)+len(a.StringValues)+len(a.VersionValues))
	}
	if values > resourcev1.ResourceSliceMaxAttributeValuesPerDevice {
		errs = append(errs, field.Invalid(path, values, fmt.Sprintf("the total number of attribute values must not exceed %d", resourcev1.ResourceSliceMaxAttributeValuesPerDevice)))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		a := d.Attributes[name]
		errs = append(errs, validateQualifiedName(name, path.Child("attributes"))...)
		errs = append(errs, validateAttribute(&a, keyed(path.Child("attributes"), string(name), maxNameLength))...)
	}
	if old == nil || !equality.Semantic.DeepEqual(d.Capacity, old.Capacity) {
		for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
			c := d.Capacity[name]
			errs = append(errs, validateQualifiedName(name, path.Child("capacity"))...)
			errs = append(errs, validateCapacity(gates, &c, deref(d.AllowMultipleAllocations), keyed(path.Child("capacity"), string(name), maxNameLength))...)
		}
	}
	const limit = resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice
	set := func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet }
	errs = append(errs, eachUnique(d.ConsumesCounters, limit, path.Child("consumesCounters"), set, func(c *resourcev1.DeviceCounterConsumption, path *field.Path) field.ErrorList {
		errs := append(requiredBetaFormat(validate.ShortName, validateLabelName, c.CounterSet, path.Child("counterSet")), validateCounters(c.Counters, path.Child("counters"))...)
		return append(errs, validateCompatibility(c.CompatibilityGroups, path.Child("compatibilityGroups"))...)
	})...)
	if n := len(d.Taints); old != nil && equality.Semantic.DeepEqual(d.Taints, old.Taints) {
		// Unchanged taints were validated before.
	} else if n > resourcev1.DeviceTaintsMaxLength {
		errs = append(errs, field.TooMany(path.Child("taints"), n, resourcev1.DeviceTaintsMaxLength))
	} else {
		errs = append(errs, each(d.Taints, -1, path.Child("taints"), func(t *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
			return validateTaint(t, nil, path)
		})...)
	}
	errs = append(errs, validateDeviceNodes(d, selectsNodes, path)...)
	errs = append(errs, validateBindingConditions(d.BindingConditions, d.BindingFailureConditions, path)...)
	return append(errs, validateAllocatable(d, old, path.Child("nodeAllocatableResources"))...)
}

// validateDeviceNodes checks that a device has exactly one node field if the slice has
// perDeviceNodeSelection.
func validateDeviceNodes(d *resourcev1.Device, selects bool, path *field.Path) field.ErrorList {
	if !selects {
		if d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil {
			return field.ErrorList{field.Invalid(path, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")}
		}
		return nil
	}
	var errs field.ErrorList
	var set []string
	if n := d.NodeName; n != nil && *n == "" {
		errs = append(errs, field.Invalid(path.Child("nodeName"), *n, "must not be empty"))
	} else if n != nil {
		set = append(set, "`nodeName`")
		errs = append(errs, rules.Invalid(path.Child("nodeName"), *n, apivalidation.NameIsDNSSubdomain(*n, false))...)
	}
	if d.NodeSelector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(d.NodeSelector, path.Child("nodeSelector"), false)...)
	}
	if a := d.AllNodes; a != nil && !*a {
		errs = append(errs, field.Invalid(path.Child("allNodes"), *a, "must be either unset or set to true"))
	} else if a != nil {
		set = append(set, "`allNodes`")
	}
	const exactly = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
	switch {
	case len(set) == 0:
		errs = append(errs, field.Required(path, exactly))
	case len(set) > 1:
		errs = append(errs, field.Invalid(path, "{"+strings.Join(set, ", ")+"}", exactly))
	}
	return errs
}

// validateAttribute checks that exactly one value is set, and its length. For the rule that
// is declared in beta, a list that is empty is not set.
func validateAttribute(a *resourcev1.DeviceAttribute, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	text := func(value string, path *field.Path) {
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			errs = append(errs, field.TooLong(path, "", resourcev1.DeviceAttributeMaxValueLength))
		}
	}
	version := func(value string, path *field.Path) {
		if !rules.IsSemver(value) {
			errs = append(errs, field.Invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
		}
		text(value, path)
	}
	const exactlyOne = "exactly one value must be specified"
	empties := 0 // lists that are empty, which only the hand-written rule counts
	empty := func(list any, isEmpty bool, name string) {
		if isEmpty {
			empties++
			errs = append(errs, field.Invalid(path.Child(name), list, "must not be empty if specified"))
		}
	}
	if v := a.StringValue; v != nil {
		text(*v, path.Child("string"))
	}
	if v := a.VersionValue; v != nil {
		version(*v, path.Child("version"))
	}
	empty(a.BoolValues, a.BoolValues != nil && len(a.BoolValues) == 0, "bools")
	empty(a.IntValues, a.IntValues != nil && len(a.IntValues) == 0, "ints")
	empty(a.StringValues, a.StringValues != nil && len(a.StringValues) == 0, "strings")
	for i, v := range a.StringValues {
		text(v, path.Child("strings").Index(i))
	}
	empty(a.VersionValues, a.VersionValues != nil && len(a.VersionValues) == 0, "versions")
	for i, v := range a.VersionValues {
		version(v, path.Child("versions").Index(i))
	}
	members := []struct {
		name string
		set  bool
	}{
		{"int", a.IntValue != nil}, {"bool", a.BoolValue != nil}, {"string", a.StringValue != nil}, {"version", a.VersionValue != nil},
		{"ints", len(a.IntValues) > 0}, {"bools", len(a.BoolValues) > 0}, {"strings", len(a.StringValues) > 0}, {"versions", len(a.VersionValues) > 0},
	}
	var names, set []string
	for _, m := range members {
		names = append(names, "`"+m.name+"`")
		if m.set {
			set = append(set, m.name)
		}
	}
	var union, written field.ErrorList
	switch given := len(set) + empties; {
	case given == 0:
		written = field.ErrorList{field.Invalid(path, "", exactlyOne)}
	case given > 1:
		written = field.ErrorList{field.Invalid(path, rules.GoForm(*a), exactlyOne)}
	}
	switch {
	case len(set) == 0:
		union = field.ErrorList{field.Invalid(path, "", "must specify one of: "+strings.Join(names, ", "))}
	case len(set) > 1:
		union = field.ErrorList{field.Invalid(path, "{"+strings.Join(set, ", ")+"}", "must specify exactly one of: "+strings.Join(names, ", "))}
	}
	return append(errs, resource.BetaInstead(union, written)...)
}
