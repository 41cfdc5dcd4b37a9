package dra

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// checkFormat validates a value by a format of declarative validation.
func checkFormat[T ~string](format func(context.Context, operation.Operation, *field.Path, *T, *T) field.ErrorList, value T, path *field.Path) field.ErrorList {
	return resource.Declared(format(context.Background(), operation.Operation{}, path, &value, nil)...)
}

// requiredFormat is conforms for a required value.
func requiredFormat[T ~string](format func(context.Context, operation.Operation, *field.Path, *T, *T) field.ErrorList, value T, path *field.Path) field.ErrorList {
	if value == "" {
		return resource.Declared(field.Required(path, ""))
	}
	return checkFormat(format, value, path)
}

// oneOf checks that a value is one of known, which are sorted.
func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	switch {
	case value == "":
		return resource.Declared(field.Required(path, ""))
	case !slices.Contains(known, value):
		return resource.Declared(field.NotSupported(path, value, known))
	}
	return nil
}

// each validates the items of a list with a maximum length, unless limit is negative. The
// items of a list that is too long are not validated.
func each[T any](list []T, limit int, path *field.Path, judge func(item *T, path *field.Path) field.ErrorList) field.ErrorList {
	if limit >= 0 && len(list) > limit {
		return resource.Declared(field.TooMany(path, len(list), limit))
	}
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, judge(&list[i], path.Index(i))...)
	}
	return errs
}

// unique is duplicates as a declared rule.
func unique[T any, K comparable](list []T, limit int, path *field.Path, key func(*T) K, shown func(*T) any) field.ErrorList {
	return resource.Declared(duplicates(list, limit, path, key, shown)...)
}

// duplicates reports items with the key of an earlier item. shown returns what the error
// prints of an item; nil prints the item. As in each, a list that is too long is skipped.
func duplicates[T any, K comparable](list []T, limit int, path *field.Path, key func(*T) K, shown func(*T) any) field.ErrorList {
	if limit >= 0 && len(list) > limit {
		return nil
	}
	var errs field.ErrorList
	seen := map[K]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			var value any = list[i]
			if shown != nil {
				value = shown(&list[i])
			}
			errs = append(errs, field.Duplicate(path.Index(i), value))
		}
		seen[k] = true
	}
	return errs
}

// sameSpec checks that a spec is unchanged.
func sameSpec(spec, old any) field.ErrorList {
	if equality.Semantic.DeepEqual(spec, old) {
		return nil
	}
	return resource.Immutable(field.NewPath("spec"))
}

func itself(s *string) string { return *s }

func validateLabelName(name string, path *field.Path) field.ErrorList {
	return rules.Invalid(path, name, validation.IsDNS1123Label(name))
}

// validateDriver validates the name of a driver as that of a CSI driver.
func validateDriver(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.DriverNameMaxLength))
	}
	return append(errs, rules.Invalid(path, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

// validateDriverFormat is validateDriver as a declared rule, which has other messages.
func validateDriverFormat(name string, path *field.Path) field.ErrorList {
	//lint:ignore SA1019 the names of drivers have always been free to have capitals
	errs := requiredFormat(validate.LongNameCaseless, name, path)
	return append(errs, resource.Declared(validate.MaxLength(context.Background(), operation.Operation{}, path, &name, nil, resourcev1.DriverNameMaxLength)...)...)
}

func validatePool(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(path, "", resourcev1.PoolNameMaxLength))
	}
	for part := range strings.SplitSeq(name, "/") {
		errs = append(errs, rules.Invalid(path, part, validation.IsDNS1123Subdomain(part))...)
	}
	return errs
}

// validateQualifiedName validates the name of an attribute or a capacity, which may
// have a domain.
func validateQualifiedName(name resourcev1.QualifiedName, path *field.Path) field.ErrorList {
	identifier := func(id string) field.ErrorList {
		var errs field.ErrorList
		if len(id) > resourcev1.DeviceMaxIDLength {
			errs = append(errs, field.TooLong(path, "", resourcev1.DeviceMaxIDLength))
		}
		return append(errs, rules.Invalid(path, id, content.IsCIdentifier(id))...)
	}
	var errs field.ErrorList
	switch parts := strings.Split(string(name), "/"); len(parts) {
	case 1:
		errs = identifier(parts[0])
	case 2:
		if parts[0] == "" {
			errs = append(errs, field.Invalid(path, "", "the domain must not be empty"))
		} else {
			errs = append(errs, validateDriver(parts[0], path)...)
		}
		if parts[1] == "" {
			errs = append(errs, field.Invalid(path, "", "the name must not be empty"))
		} else {
			errs = append(errs, identifier(parts[1])...)
		}
	}
	return errs
}

// keyed returns the path of a map entry; a key far beyond the limit is shortened in the
// middle.
func keyed(path *field.Path, key string, limit int) *field.Path {
	if len(key) > limit {
		rest := limit - len("...")
		key = key[:(rest+1)/2] + "..." + key[len(key)-rest/2:]
	}
	return path.Key(key)
}

// maxNameLength is the maximum length of a qualified name.
const maxNameLength = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

// validateRaw checks for a JSON object, of at most limit bytes unless limit is 0.
func validateRaw(raw runtime.RawExtension, limit int, path *field.Path) field.ErrorList {
	var v any
	switch {
	case len(raw.Raw) == 0:
		return field.ErrorList{field.Required(path, "")}
	case limit > 0 && len(raw.Raw) > limit:
		return field.ErrorList{field.TooLong(path, "", limit)}
	}
	if err := json.Unmarshal(raw.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(path, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(path, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

// validateConfiguration validates opaque driver parameters; stored skips the length limit.
func validateConfiguration(c *resourcev1.DeviceConfiguration, stored bool, path *field.Path) field.ErrorList {
	path = path.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(path, "")}
	}
	limit := resourcev1.OpaqueParametersMaxLength
	if stored {
		limit = 0
	}
	errs := validateDriverFormat(c.Opaque.Driver, path.Child("driver"))
	return append(errs, validateRaw(c.Opaque.Parameters, limit, path.Child("parameters"))...)
}

func validateEffect(effect resourcev1.DeviceTaintEffect, path *field.Path) field.ErrorList {
	return oneOf(effect, path, resourcev1.DeviceTaintEffectNoExecute, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone)
}

// validateTaint validates a taint. An unknown effect is accepted if it is unchanged.
func validateTaint(t *resourcev1.DeviceTaint, old *resourcev1.DeviceTaint, path *field.Path) field.ErrorList {
	errs := metavalidation.ValidateLabelName(t.Key, path.Child("key"))
	if t.Value != "" {
		errs = append(errs, rules.Invalid(path.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	if old == nil || old.Effect != t.Effect {
		errs = append(errs, validateEffect(t.Effect, path.Child("effect"))...)
	}
	return errs
}

// validateTolerationFormat has the declared rules of validateToleration.
func validateTolerationFormat(t *resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if t.Key != "" {
		errs = append(errs, checkFormat(validate.LabelKey, t.Key, path.Child("key"))...)
	}
	errs = append(errs, oneOf(t.Operator, path.Child("operator"), resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists)...)
	if t.Effect != "" {
		errs = append(errs, validateEffect(t.Effect, path.Child("effect"))...)
	}
	return errs
}

func validateToleration(t *resourcev1.DeviceToleration, path *field.Path) field.ErrorList {
	errs := validateTolerationFormat(t, path)
	switch value := path.Child("value"); t.Operator {
	case resourcev1.DeviceTolerationOpExists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(value, t.Value, "must be empty for operator `Exists`"))
		}
	case resourcev1.DeviceTolerationOpEqual:
		errs = append(errs, rules.Invalid(value, t.Value, validation.IsValidLabelValue(t.Value))...)
	}
	return errs
}

// validateBindingConditions validates bindingConditions and bindingFailureConditions.
func validateBindingConditions(conditions, failures []string, path *field.Path) field.ErrorList {
	good, bad := path.Child("bindingConditions"), path.Child("bindingFailureConditions")
	label := func(name *string, path *field.Path) field.ErrorList {
		return metavalidation.ValidateLabelName(*name, path)
	}
	errs := each(conditions, resourcev1.BindingConditionsMaxSize, good, label)
	errs = append(errs, each(failures, resourcev1.BindingFailureConditionsMaxSize, bad, label)...)
	errs = append(errs, duplicates(conditions, -1, good, itself, nil)...)
	errs = append(errs, duplicates(failures, -1, bad, itself, nil)...)
	for i, f := range failures {
		if slices.Contains(conditions, f) {
			errs = append(errs, field.Invalid(bad.Index(i), f, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(conditions) == 0 && len(failures) > 0 {
		errs = append(errs, field.Invalid(good, conditions, "bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failures) == 0 && len(conditions) > 0 {
		errs = append(errs, field.Invalid(bad, failures, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}
