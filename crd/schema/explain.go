package schema

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/cel/common"
	openapierrors "k8s.io/kube-openapi/pkg/validation/errors"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"

	"github.com/apikeel/kelson/internal/boundedregexp"
)

// This file finds what is wrong with a value of which the quick pass is not sure. The errors,
// and which of several alternatives they are about, are those of the validator of kube-openapi,
// whose cost has no bound: it keeps every regular expression for good, compares each error with
// all others, and matches texts whoever waits for it. Schemas are structural, so what those do
// not have is not here. TestExplanations holds both equal.

const (
	// maxFound is how many errors in the items of a list or the properties of an object are
	// listed, and maxFoundBytes how long they may be: an error may name all values of an enum.
	maxFound      = 2000
	maxFoundBytes = 1 << 20
	inBody        = "body"

	// lookWork and explainWork are what a value costs in the quick pass and in this one, in the
	// unit of boundedregexp.Work.
	lookWork, explainWork = 8, 32
)

// explainer validates values against schemas.
type explainer struct {
	patterns *boundedregexp.Set
	work     *boundedregexp.Work
}

// findings are the errors of a value.
type findings struct {
	errs  []error
	bytes int // of the errors
	// score is how many parts of the schema the value was compared with. The alternative with
	// the highest score is the one whose errors are reported.
	score int
	// seen are the texts of the errors, of which each is reported once.
	seen map[string]bool
}

func (f *findings) add(err error) {
	text := err.Error()
	if f.seen[text] {
		return
	}
	if f.seen == nil {
		f.seen = map[string]bool{}
	}
	f.seen[text] = true
	f.errs, f.bytes = append(f.errs, err), f.bytes+len(text)
}

func (f *findings) merge(other *findings) {
	f.score += other.score
	for _, err := range other.errs {
		f.add(err)
	}
}

// crowded reports whether an error was added that says that there are too many.
func (f *findings) crowded(before *findings, path string) bool {
	if len(f.errs)-len(before.errs) < maxFound && f.bytes-before.bytes < maxFoundBytes {
		return false
	}
	f.add(fmt.Errorf("%s has more problems than are listed", path))
	return true
}

// value validates a value that may be unchanged; nothing is wrong with such values (ratcheting).
func (x explainer) value(s *spec.Schema, v any, path string, was *common.CorrelatedObject) *findings {
	if was != nil {
		v = was.Value
	}
	f := x.changed(s, v, path, was)
	if len(f.errs) > 0 && was != nil && was.CachedDeepEqual() {
		return &findings{score: f.score}
	}
	return f
}

// changed validates a value, whether or not it is unchanged. was compares what is in it.
func (x explainer) changed(s *spec.Schema, v any, path string, was *common.CorrelatedObject) *findings {
	f := &findings{}
	if x.work.Spend(explainWork+int64(len(s.Enum))) != nil {
		return f
	}
	if len(s.Type) > 0 || s.Format != "" || v == nil {
		if err := wrongType(s, v, path); err != nil {
			f.add(err)
		} else {
			f.score++
		}
		f.score++
	}
	if v == nil {
		f.score = 0
		if len(f.errs) == 0 {
			f.score = 1
		}
		f.enum(s, v, path)
		return f
	}
	x.alternatives(f, s, v, path, was)
	f.score += 2
	switch v := v.(type) {
	case string:
		x.text(f, s, v, path)
	case int64, float64:
		number(f, s, v, path)
	case []any:
		x.items(f, s, v, path, was)
	}
	f.enum(s, v, path)
	f.score++
	if obj, ok := v.(map[string]any); ok {
		x.members(f, s, obj, path, was)
		f.score++
	}
	f.score++
	return f
}

// typeOf returns the JSON type of a value and its format.
func typeOf(v any) (kind, format string) {
	switch v.(type) {
	case bool:
		return "boolean", ""
	case string:
		return "string", ""
	case int64:
		return "integer", "int64"
	case float64:
		return "number", "float64"
	case []any:
		return "array", ""
	case map[string]any:
		return "object", ""
	}
	return "", ""
}

func wrongType(s *spec.Schema, v any, path string) error {
	if v == nil {
		if len(s.Type) > 0 && !s.Type.Contains("null") && !s.Nullable {
			return openapierrors.InvalidType(path, inBody, strings.Join(s.Type, ","), "null")
		}
		return nil
	}
	kind, format := typeOf(v)
	fraction, isFloat := v.(float64)
	fits := s.Type.Contains(kind) || kind == "integer" && s.Type.Contains("number") ||
		isFloat && s.Type.Contains("integer") && isInteger(fraction)
	sized := kind == "string" || kind == "array"
	switch {
	case !sized && s.Format != "" && !fits && format != s.Format:
		return openapierrors.InvalidType(path, inBody, s.Format, format)
	case sized && s.Format != "" && !s.Type.Contains("number") && !s.Type.Contains("integer"), fits:
		return nil
	}
	return openapierrors.InvalidType(path, inBody, strings.Join(s.Type, ","), kind)
}

// isInteger reports whether a number is an integer but for what is lost when it is read.
func isInteger(f float64) bool {
	const largest, epsilon = 1<<53 - 1, 1e-9
	rounded := math.Round(f)
	return math.Abs(f) <= largest && (f == rounded || math.Abs(f-rounded) < epsilon*math.Abs(rounded))
}

// alternatives validates a value against anyOf, oneOf, allOf and not.
func (x explainer) alternatives(f *findings, s *spec.Schema, v any, path string, was *common.CorrelatedObject) {
	// best returns what the closest alternative finds, nothing if one or more hold.
	best := func(list []spec.Schema, first bool) (closest *findings, holding int) {
		for i := range list {
			found := x.changed(&list[i], v, path, was)
			switch {
			case len(found.errs) == 0:
				if holding++; holding == 1 {
					closest = found
				}
				if first {
					return closest, holding
				}
			case holding == 0 && (closest == nil || found.score > closest.score):
				closest = found
			}
		}
		return closest, holding
	}
	if len(s.AnyOf) > 0 {
		closest, holding := best(s.AnyOf, true)
		if holding == 0 {
			f.add(fmt.Errorf(validate.MustValidateAtLeastOneSchemaError, path))
		}
		f.merge(closest)
	}
	if len(s.OneOf) > 0 {
		closest, holding := best(s.OneOf, false)
		switch holding {
		case 0:
			f.add(fmt.Errorf(validate.MustValidateOnlyOneSchemaError, path, "Found none valid"))
			f.merge(closest)
		case 1:
			f.merge(closest)
		default:
			f.add(fmt.Errorf(validate.MustValidateOnlyOneSchemaError, path, fmt.Sprintf("Found %d valid alternatives", holding)))
		}
	}
	if len(s.AllOf) > 0 {
		holding := 0
		for i := range s.AllOf {
			found := x.changed(&s.AllOf[i], v, path, was)
			if len(found.errs) == 0 {
				holding++
			}
			f.merge(found)
		}
		switch holding {
		case len(s.AllOf):
		case 0:
			f.add(fmt.Errorf(validate.MustValidateAllSchemasError, path, ". None validated"))
		default:
			f.add(fmt.Errorf(validate.MustValidateAllSchemasError, path, ""))
		}
	}
	if s.Not != nil && len(x.changed(s.Not, v, path, was).errs) == 0 {
		f.add(fmt.Errorf(validate.MustNotValidateSchemaError, path))
	}
}

func (x explainer) text(f *findings, s *spec.Schema, text, path string) {
	if err := x.wrongText(s, text, path); err != nil {
		f.add(err)
	}
	f.score++
	if strfmt.Default.ContainsName(s.Format) {
		if err := validate.FormatOf(path, inBody, s.Format, text, strfmt.Default); err != nil {
			f.add(err)
		}
		f.score++
	}
}

func (x explainer) wrongText(s *spec.Schema, text, path string) error {
	if s.MaxLength != nil {
		if err := validate.MaxLength(path, inBody, text, *s.MaxLength); err != nil {
			return err
		}
	}
	if s.MinLength != nil {
		if err := validate.MinLength(path, inBody, text, *s.MinLength); err != nil {
			return err
		}
	}
	if s.Pattern == "" {
		return nil
	}
	switch matches, err := x.patterns.Pattern(s.Pattern).Match(x.work, text); {
	case x.work.Err() != nil || err == nil && matches:
		return nil
	case err != nil:
		return openapierrors.FailedPattern(path, inBody, fmt.Sprintf("%s, but pattern is invalid: %v", s.Pattern, err), text)
	}
	return openapierrors.FailedPattern(path, inBody, s.Pattern, text)
}

// number validates a number. A bound that is out of the range of the format is an error, and
// the number is compared with it nevertheless.
func number(f *findings, s *spec.Schema, v any, path string) {
	kind, format := "", ""
	if len(s.Type) == 1 {
		switch kind = s.Type[0]; {
		case kind != "integer" && kind != "number":
			kind = ""
		case kind == "integer" && (s.Format == "int32" || s.Format == "int64"), kind == "number" && (s.Format == "float" || s.Format == "double"):
			format = s.Format
		}
	}
	plain, _ := v.(float64)
	if n, ok := v.(int64); ok {
		plain = float64(n)
	}
	if err := validate.IsValueValidAgainstRange(v, kind, format, "Checked", path); err != nil {
		f.add(err)
	}
	bound := func(limit *float64, name string, exact, rough func(limit float64) *openapierrors.Validation) {
		if limit == nil {
			return
		}
		compare := exact
		if err := validate.IsValueValidAgainstRange(*limit, kind, format, name, path); err != nil {
			f.add(err)
			compare = rough
		}
		if err := compare(*limit); err != nil {
			f.add(err)
		}
	}
	bound(s.MultipleOf, "MultipleOf", func(limit float64) *openapierrors.Validation {
		return validate.MultipleOfNativeType(path, inBody, v, limit)
	}, func(limit float64) *openapierrors.Validation { return validate.MultipleOf(path, inBody, plain, limit) })
	bound(s.Minimum, "Minimum boundary", func(limit float64) *openapierrors.Validation {
		return validate.MinimumNativeType(path, inBody, v, limit, s.ExclusiveMinimum)
	}, func(limit float64) *openapierrors.Validation {
		return validate.Minimum(path, inBody, plain, limit, s.ExclusiveMinimum)
	})
	bound(s.Maximum, "Maximum boundary", func(limit float64) *openapierrors.Validation {
		return validate.MaximumNativeType(path, inBody, v, limit, s.ExclusiveMaximum)
	}, func(limit float64) *openapierrors.Validation {
		return validate.Maximum(path, inBody, plain, limit, s.ExclusiveMaximum)
	})
	f.score += 2
}

func (x explainer) items(f *findings, s *spec.Schema, list []any, path string, was *common.CorrelatedObject) {
	before := *f
	if s.Items != nil && s.Items.Schema != nil {
		for i, item := range list {
			if x.work.Err() != nil || f.crowded(&before, path) {
				break
			}
			var itemWas *common.CorrelatedObject
			if was != nil {
				itemWas = was.Index(i)
			}
			f.merge(x.value(s.Items.Schema, item, fmt.Sprintf("%s[%d]", path, i), itemWas))
		}
	}
	size := int64(len(list))
	if s.MinItems != nil && size < *s.MinItems {
		f.add(openapierrors.TooFewItems(path, inBody, *s.MinItems, size))
	}
	if s.MaxItems != nil && size > *s.MaxItems {
		f.add(openapierrors.TooManyItems(path, inBody, *s.MaxItems, size))
	}
	f.score += 2
}

func (x explainer) members(f *findings, s *spec.Schema, obj map[string]any, path string, was *common.CorrelatedObject) {
	size := int64(len(obj))
	if s.MinProperties != nil && size < *s.MinProperties {
		f.add(openapierrors.TooFewProperties(path, inBody, *s.MinProperties, size))
	}
	if s.MaxProperties != nil && size > *s.MaxProperties {
		f.add(openapierrors.TooManyProperties(path, inBody, *s.MaxProperties, size))
	}
	before := *f
	for _, name := range slices.Sorted(maps.Keys(obj)) {
		at := path + "." + name
		member, known := s.Properties[name]
		switch a := s.AdditionalProperties; {
		case known && path == "":
			at = name
		case known || a == nil || a.Allows && a.Schema == nil:
		case !a.Allows:
			f.add(openapierrors.PropertyNotAllowed(path, inBody, name))
		default:
			member, known = *a.Schema, true
		}
		if !known {
			continue
		}
		if x.work.Err() != nil || f.crowded(&before, path) {
			break
		}
		// apiVersion and kind cannot be compared: both objects have been converted.
		var memberWas *common.CorrelatedObject
		if was != nil && (path != "" || name != "kind" && name != "apiVersion") {
			memberWas = was.Key(name)
		}
		f.merge(x.value(&member, obj[name], at, memberWas))
	}
	for _, name := range s.Required {
		if _, ok := obj[name]; !ok {
			f.add(openapierrors.Required(path+"."+name, inBody))
		}
	}
}

// enum compares a value with those that are allowed, each in the type of that.
func (f *findings) enum(s *spec.Schema, v any, path string) {
	if len(s.Enum) == 0 {
		return
	}
	value := reflect.ValueOf(v)
	for _, allowed := range s.Enum {
		kind := reflect.TypeOf(allowed)
		if kind != nil && value.IsValid() && value.CanConvert(kind) && reflect.DeepEqual(value.Convert(kind).Interface(), allowed) {
			return
		}
	}
	f.add(openapierrors.EnumFail(path, inBody, v, s.Enum))
}
