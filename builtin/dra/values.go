package dra

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
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

// format is a format of declarative validation.
type format[T ~string] func(context.Context, operation.Operation, *field.Path, *T, *T) field.ErrorList

func (f format[T]) validate(value T, path *field.Path) field.ErrorList {
	return f(context.Background(), operation.Operation{}, path, &value, nil)
}

// checkFormat validates a value by a declared format.
func checkFormat[T ~string](f format[T], value T, path *field.Path) field.ErrorList {
	return resource.Declared(f.validate(value, path)...)
}

// requiredFormat is checkFormat for a required value.
func requiredFormat[T ~string](f format[T], value T, path *field.Path) field.ErrorList {
	if value == "" {
		return resource.Declared(field.Required(path, ""))
	}
	return checkFormat(f, value, path)
}

// betaFormat validates a value by a format that is declared in beta. written is the
// hand-written form of the rule.
func betaFormat[T ~string](f format[T], written func(T, *field.Path) field.ErrorList, value T, path *field.Path) field.ErrorList {
	declared := f.validate(value, path)
	if len(declared) == 0 {
		return nil
	}
	return resource.BetaInstead(declared, written(value, path))
}

// requiredBetaFormat is betaFormat for a required value.
func requiredBetaFormat[T ~string](f format[T], written func(T, *field.Path) field.ErrorList, value T, path *field.Path) field.ErrorList {
	if value == "" {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	return betaFormat(f, written, value, path)
}

// oneOf checks, as a rule declared in beta, that a value is one of known, which are sorted.
func oneOf[T ~string](value T, path *field.Path, known ...T) field.ErrorList {
	switch {
	case value == "":
		return resource.DeclaredBeta(field.Required(path, ""))
	case !slices.Contains(known, value):
		return resource.DeclaredBeta(field.NotSupported(path, value, known))
	}
	return nil
}

// each validates the items of a list with a maximum length, unless limit is negative, by a
// rule declared in beta. The items of a list that is too long are not validated.
func each[T any](list []T, limit int, path *field.Path, judge func(item *T, path *field.Path) field.ErrorList) field.ErrorList {
	if limit >= 0 && len(list) > limit {
		return resource.DeclaredBeta(field.TooMany(path, len(list), limit))
	}
	return eachOf(list, path, judge)
}

func eachOf[T any](list []T, path *field.Path, judge func(item *T, path *field.Path) field.ErrorList) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		errs = append(errs, judge(&list[i], path.Index(i))...)
	}
	return errs
}

// eachDeclared is each for a limit that is declared, and not in beta.
func eachDeclared[T any](list []T, limit int, path *field.Path, judge func(item *T, path *field.Path) field.ErrorList) field.ErrorList {
	if len(list) > limit {
		return resource.Declared(field.TooMany(path, len(list), limit))
	}
	return eachOf(list, path, judge)
}

// eachUnique is each for a list whose items have keys that differ, by a rule declared in
// beta. Its hand-written form shows the keys of items, and comes after the items.
func eachUnique[T any, K comparable](list []T, limit int, path *field.Path, key func(*T) K, judge func(item *T, path *field.Path) field.ErrorList) field.ErrorList {
	errs := resource.BetaOnly(duplicates(list, limit, path, key, nil)...)
	errs = append(errs, each(list, limit, path, judge)...)
	return append(errs, resource.HandWritten(duplicates(list, limit, path, key, func(item *T) any { return key(item) })...)...)
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

// sameSpec checks, as a rule declared in beta, that a spec is unchanged.
func sameSpec(spec, old any) field.ErrorList {
	if equality.Semantic.DeepEqual(spec, old) {
		return nil
	}
	return resource.ImmutableValue(field.NewPath("spec"), rules.GoForm(spec))
}

func itself(s *string) string { return *s }

// validateSubdomain and validateLabelName are the hand-written forms of validate.LongName and
// validate.ShortName.
func validateSubdomain(name string, path *field.Path) field.ErrorList {
	return rules.Invalid(path, name, validation.IsDNS1123Subdomain(name))
}

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

// validateDriverFormat is validateDriver as a rule declared in beta, which has other
// messages.
func validateDriverFormat(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return resource.DeclaredBeta(field.Required(path, ""))
	}
	//lint:ignore SA1019 the names of drivers have always been free to have capitals
	declared := format[string](validate.LongNameCaseless[string]).validate(name, path)
	declared = append(declared, validate.MaxLength(context.Background(), operation.Operation{}, path, &name, nil, resourcev1.DriverNameMaxLength)...)
	return resource.BetaInstead(declared, validateDriver(name, path))
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

// validateFullyQualified is the hand-written form of validate.ResourceFullyQualifiedName.
func validateFullyQualified(name resourcev1.FullyQualifiedName, path *field.Path) field.ErrorList {
	errs := validateQualifiedName(resourcev1.QualifiedName(name), path)
	if !strings.Contains(string(name), "/") {
		errs = append(errs, field.Invalid(path, name, "a fully qualified name must be a domain and a name separated by a slash"))
	}
	return errs
}

// validateUID is the hand-written form of validate.UUID.
func validateUID[T ~string](uid T, path *field.Path) field.ErrorList {
	if err := uuid.Validate(string(uid)); err != nil {
		return field.ErrorList{field.Invalid(path, uid, fmt.Sprintf("error validating uid: %v", err))}
	}
	if len(uid) != 36 || string(uid) != strings.ToLower(string(uid)) {
		return field.ErrorList{field.Invalid(path, uid, "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters")}
	}
	return nil
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
		errs = append(errs, betaFormat(validate.LabelKey, metavalidation.ValidateLabelName, t.Key, path.Child("key"))...)
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
