package resource

import (
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The origins of what declared rules say, which mark it until it is answered.
const (
	byDeclaration  = "declared"
	byImmutability = "declaredImmutable"
)

// Declared marks what is said by rules that Kubernetes declares with the types of
// the API, and not in code of their own: it is said last, in the order in which it
// is returned, which should be that of the fields in their types.
func Declared(errs ...*field.Error) field.ErrorList {
	for _, err := range errs {
		err.Origin = byDeclaration
	}
	return errs
}

// Immutable says that a field may not change where that is declared. It hides what
// is declared below the field: whatever is wrong there is said by the other rules,
// in its place among them.
func Immutable(path *field.Path) field.ErrorList {
	err := field.Invalid(path, nil, apivalidation.FieldImmutableErrorMsg)
	err.Origin = byImmutability
	return field.ErrorList{err}
}

// IsDeclared reports whether an error is one of Declared or Immutable.
func IsDeclared(err *field.Error) bool {
	return err.Origin == byDeclaration || err.Origin == byImmutability
}

// DeclaredLast brings what is wrong with an object into the order in which it is
// said, and takes the marks off.
func DeclaredLast(errs field.ErrorList) field.ErrorList {
	var fixed []string
	for _, err := range errs {
		if err.Origin == byImmutability {
			fixed = append(fixed, err.Field)
		}
	}
	var first, last field.ErrorList
	for _, err := range errs {
		if !IsDeclared(err) || hidden(err, fixed) {
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

// hidden reports whether an error is about a field that may not change and did, or
// is below it. That a field is missing is found before.
func hidden(err *field.Error, fixed []string) bool {
	return slices.ContainsFunc(fixed, func(path string) bool {
		rest, ok := strings.CutPrefix(err.Field, path)
		return ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[") ||
			rest == "" && err.Type != field.ErrorTypeRequired && err.Origin != byImmutability)
	})
}
