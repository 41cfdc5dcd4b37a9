package rules

import (
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Errors collects the field errors of an object, in the order in which they are
// found. The zero value is empty; field.ErrorList(e) is the result.
type Errors field.ErrorList

// Add appends errors and leaves out nil ones.
func (e *Errors) Add(errs ...*field.Error) {
	for _, err := range errs {
		if err != nil {
			*e = append(*e, err)
		}
	}
}

// Required reports that a field has no value.
func (e *Errors) Required(p *field.Path, detail string) { e.Add(field.Required(p, detail)) }

// Forbidden reports that a field may not have its value here.
func (e *Errors) Forbidden(p *field.Path, detail string) { e.Add(field.Forbidden(p, detail)) }

// Duplicate reports a value that occurs a second time in a list.
func (e *Errors) Duplicate(p *field.Path, value any) { e.Add(field.Duplicate(p, value)) }

// Invalid reports a value that breaks a rule; detail is the message.
func (e *Errors) Invalid(p *field.Path, value any, detail string) {
	e.Add(field.Invalid(p, value, detail))
}

// NotEmpty reports an empty value as required, and returns whether the value is
// not empty.
func (e *Errors) NotEmpty(p *field.Path, value string) bool {
	if value == "" {
		e.Required(p, "")
	}
	return value != ""
}

// InvalidEach reports a value as invalid once for each message.
func (e *Errors) InvalidEach(p *field.Path, value any, messages []string) {
	for _, m := range messages {
		e.Invalid(p, value, m)
	}
}

// NonNegative reports a number below zero.
func (e *Errors) NonNegative(p *field.Path, value int64) {
	if value < 0 {
		e.Invalid(p, value, "must be greater than or equal to 0")
	}
}

// Positive reports a number below one.
func (e *Errors) Positive(p *field.Path, value int64) {
	if value <= 0 {
		e.Invalid(p, value, "must be greater than zero")
	}
}

// UserID reports an id that is not a valid user id on Linux; nil is accepted.
func (e *Errors) UserID(p *field.Path, id *int64) {
	if id != nil {
		e.InvalidEach(p, *id, validation.IsValidUserID(*id))
	}
}

// GroupID reports an id that is not a valid group id on Linux; nil is accepted.
func (e *Errors) GroupID(p *field.Path, id *int64) {
	if id != nil {
		e.InvalidEach(p, *id, validation.IsValidGroupID(*id))
	}
}

// OneOf reports a value that is not supported. The message lists the supported
// values in the order of the arguments.
func OneOf[T ~string](e *Errors, p *field.Path, value T, supported ...T) {
	if !slices.Contains(supported, value) {
		e.Add(field.NotSupported(p, value, supported))
	}
}

// OneOfOrRequired is OneOf for a field without a default: an empty value is
// reported as required.
func OneOfOrRequired[T ~string](e *Errors, p *field.Path, value T, supported ...T) {
	if value == "" {
		e.Required(p, "")
		return
	}
	OneOf(e, p, value, supported...)
}

// OneOfPointer is OneOf for an optional field: nil is accepted.
func OneOfPointer[T ~string](e *Errors, p *field.Path, value *T, supported ...T) {
	if value != nil {
		OneOf(e, p, *value, supported...)
	}
}

// Invalid returns an error for each message about a value.
func Invalid(path *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

// ValidateImmutable returns an error if a field has changed. The error shows the
// new value, or badValue if it is given.
func ValidateImmutable[V any](value, old V, path *field.Path, badValue ...any) field.ErrorList {
	errs := apivalidation.ValidateImmutableField(value, old, path)
	if len(errs) > 0 && len(badValue) > 0 {
		errs[0].BadValue = badValue[0]
	}
	return errs
}
