package dra

import (
	"fmt"
	"math"
	"strconv"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
)

// validateCapacity validates a capacity of a device. It can have a request policy only if the
// device allows multiple allocations.
func validateCapacity(gates features.Gates, c *resourcev1.DeviceCapacity, shared bool, path *field.Path) field.ErrorList {
	p, path := c.RequestPolicy, path.Child("requestPolicy")
	switch {
	case p == nil:
		return nil
	case !shared:
		return field.ErrorList{field.Forbidden(path, "allowMultipleAllocations must be true")}
	case len(p.ValidValues) > 0 && p.ValidRange != nil:
		return field.ErrorList{field.Forbidden(path, `exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(p.ValidValues) > 0 && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validValues is defined")}
	case len(p.ValidValues) > 0:
		return validateValues(gates, p.ValidValues, *p.Default, c.Value, path.Child("validValues"))
	case p.ValidRange != nil && p.Default == nil:
		return field.ErrorList{field.Required(path.Child("default"), "required when validRange is defined")}
	case p.ValidRange != nil:
		return validateRange(gates, p.ValidRange, *p.Default, c.Value, path.Child("validRange"))
	}
	return nil
}

// validateValues validates the valid values of a request policy; the default must be one.
func validateValues(gates features.Gates, values []resource.Quantity, usual, all resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := 1; i < len(values); i++ {
		if values[i-1].Cmp(values[i]) > 0 {
			errs = append(errs, field.Invalid(path.Index(i), values[i].String(), "values must be sorted in ascending order"))
		}
	}
	const limit = 10
	found := false
	errs = append(errs, each(values, limit, path, func(v *resource.Quantity, path *field.Path) field.ErrorList {
		found = found || v.Cmp(usual) == 0
		if v.Cmp(all) > 0 {
			return field.ErrorList{field.Invalid(path, v.String(), "option is larger than capacity value: "+all.String())}
		}
		return nil
	})...)
	number := func(v *resource.Quantity) string {
		if gates.Enabled(fractions) {
			return v.AsDec().String()
		}
		return strconv.FormatInt(v.Value(), 10)
	}
	errs = append(errs, unique(values, limit, path, number, func(v *resource.Quantity) any { return number(v) })...)
	if !found {
		errs = append(errs, field.Invalid(path, usual.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateRange(gates features.Gates, r *resourcev1.CapacityRequestPolicyRange, usual, all resource.Quantity, path *field.Path) field.ErrorList {
	if r.Min == nil {
		return field.ErrorList{field.Required(path.Child("min"), "required when validRange is defined")}
	}
	var errs field.ErrorList
	// atMost checks that a is at most b.
	atMost := func(a, b resource.Quantity, name string, shown resource.Quantity, detail string) {
		if a.Cmp(b) > 0 {
			errs = append(errs, field.Invalid(path.Child(name), shown.String(), detail))
		}
	}
	atMost(*r.Min, all, "min", *r.Min, "min is larger than capacity value: "+all.String())
	atMost(*r.Min, usual, "default", usual, "default is less than min: "+r.Min.String())
	if r.Max != nil {
		atMost(*r.Min, *r.Max, "max", *r.Min, "min is larger than max: "+r.Max.String())
		atMost(*r.Max, all, "max", *r.Max, "max is larger than capacity value: "+all.String())
		atMost(usual, *r.Max, "default", usual, "default is more than max: "+r.Max.String())
	}
	milli := gates.Enabled(fractions) && (fractional(&usual) || fractional(r.Min) || fractional(r.Max) || fractional(r.Step))
	if unsafe := validateMilli(milli, r, usual, path); len(unsafe) > 0 {
		return append(errs, unsafe...)
	}
	if r.Step == nil {
		return errs
	}
	if r.Step.Sign() <= 0 {
		return append(errs, field.Invalid(path.Child("step"), r.Step.String(), "must be greater than zero"))
	}
	first := r.Min.DeepCopy()
	first.Add(*r.Step)
	atMost(first, all, "step", *r.Step, fmt.Sprintf("one step %s is larger than capacity value: %s", first.String(), all.String()))
	return append(errs, validateSteps(r, usual, milli, path)...)
}

// bound is a bound of a range.
type bound struct {
	name  string
	value *resource.Quantity // nil if there is none
}

func bounds(r *resourcev1.CapacityRequestPolicyRange, usual *resource.Quantity) []bound {
	return []bound{{"default", usual}, {"min", r.Min}, {"max", r.Max}, {"step", r.Step}}
}

// fractional reports whether a quantity, which may be nil, is not an integer.
func fractional(q *resource.Quantity) bool {
	if q == nil {
		return false
	}
	whole := q.DeepCopy()
	return !whole.RoundUp(0)
}

// validateMilli checks that quantities have no digits beyond milli-units.
func validateMilli(milli bool, r *resourcev1.CapacityRequestPolicyRange, usual resource.Quantity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, q := range bounds(r, &usual) {
		if milli && q.value != nil && q.value.Cmp(*resource.NewMilliQuantity(q.value.MilliValue(), q.value.Format)) != 0 {
			errs = append(errs, field.Invalid(path.Child(q.name), q.value.String(), "value cannot be represented as a milli value"))
		}
	}
	return errs
}

// validateSteps checks that default and maximum are a multiple of the step above the minimum,
// if all fit an int64.
func validateSteps(r *resourcev1.CapacityRequestPolicyRange, usual resource.Quantity, milli bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, q := range bounds(r, &usual) {
		switch {
		case q.value == nil || milli:
		case q.value.Sign() < 0:
			errs = append(errs, field.Invalid(path.Child(q.name), q.value.String(), apivalidation.IsNegativeErrorMsg))
		case q.value.CmpInt64(math.MaxInt64) > 0:
			errs = append(errs, field.Invalid(path.Child(q.name), q.value.String(), fmt.Sprintf("must not be larger than %d", math.MaxInt64)))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, q := range []*resource.Quantity{&usual, r.Max} {
		count := (*resource.Quantity).Value
		if milli {
			count = (*resource.Quantity).MilliValue
		}
		if q != nil && (count(q)-count(r.Min))%count(r.Step) != 0 {
			errs = append(errs, field.Invalid(path.Child("step"), q.String(), fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String())))
		}
	}
	return errs
}
