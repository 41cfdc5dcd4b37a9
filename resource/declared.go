package resource

import (
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kubernetes 1.37 validates some fields by rules that are declared in comments of the
// API types (declarative validation), and reports their errors after those of
// hand-written validation. This file marks such errors and puts them last.

// Values of field.Error.Origin that mark errors of declared rules until DeclaredLast
// removes them.
const (
	byDeclaration  = "declared"
	byImmutability = "declaredImmutable"
)

// Declared marks errors of rules that Kubernetes declares on the API types instead of
// writing them in code. They are reported last, in the order in which they are
// returned, which should be the order of the fields in their types.
func Declared(errs ...*field.Error) field.ErrorList {
	for _, err := range errs {
		err.Origin = byDeclaration
	}
	return errs
}

// Immutable returns the error of a declared rule that a field may not change. Errors
// of declared rules for fields below it are then not moved to the end: they are
// reported in place, among the errors of hand-written rules.
func Immutable(path *field.Path) field.ErrorList {
	err := field.Invalid(path, nil, apivalidation.FieldImmutableErrorMsg)
	err.Origin = byImmutability
	return field.ErrorList{err}
}

// IsDeclared reports whether an error was marked by Declared or Immutable.
func IsDeclared(err *field.Error) bool {
	return err.Origin == byDeclaration || err.Origin == byImmutability
}

// DeclaredLast moves the errors of declared rules behind the others, and removes the
// marks.
func DeclaredLast(errs field.ErrorList) field.ErrorList {
	var immutable []string
	for _, err := range errs {
		if err.Origin == byImmutability {
			immutable = append(immutable, err.Field)
		}
	}
	var first, last field.ErrorList
	for _, err := range errs {
		if !IsDeclared(err) || underImmutable(err, immutable) {
			first = append(first, err)
		} else {
			last = append(last, err)
		}
	}
	for _, err := range errs {
		if IsDeclared(err) {
			err.Origin = ""
		}
	}
	return append(first, last...)
}

// underImmutable reports whether an error is about one of the immutable fields that
// changed, or about a field below one. Required errors of the field itself do not
// count: kube-apiserver checks for them first.
func underImmutable(err *field.Error, immutable []string) bool {
	return slices.ContainsFunc(immutable, func(path string) bool {
		rest, ok := strings.CutPrefix(err.Field, path)
		return ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[") ||
			rest == "" && err.Type != field.ErrorTypeRequired && err.Origin != byImmutability)
	})
}
