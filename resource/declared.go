package resource

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kubernetes 1.37 validates some fields by rules that are declared in comments of the
// API types (declarative validation), and reports their errors after those of
// hand-written validation. Rules that are declared in beta replace hand-written ones only
// if the gate DeclarativeValidationBeta is on. This file marks the errors of such rules,
// and orders them as the gate says.

// BetaRules is the gate of rules that are declared in beta.
const BetaRules = "DeclarativeValidationBeta"

// Values of field.Error.Origin that mark errors until DeclaredLast removes them.
const (
	byDeclaration   = "declared"
	byBeta          = "declaredBeta"
	byImmutability  = "declaredImmutable"
	byBetaImmutable = "declaredBetaImmutable"
	// The hand-written forms of byBeta and byBetaImmutable.
	byHand          = "handWritten"
	byHandImmutable = "handWrittenImmutable"
)

// Declared marks errors of rules that Kubernetes declares on the API types instead of
// writing them in code. They are reported last, in the order in which they are
// returned, which should be the order of the fields in their types.
func Declared(errs ...*field.Error) field.ErrorList { return mark(byDeclaration, errs) }

// DeclaredBeta marks errors of rules that are declared in beta: they are reported last if
// the gate BetaRules is on, otherwise in place. It returns them twice, see BetaInstead.
func DeclaredBeta(errs ...*field.Error) field.ErrorList {
	written := make(field.ErrorList, len(errs))
	for i, err := range errs {
		c := *err
		written[i] = &c
	}
	return BetaInstead(errs, written)
}

// BetaInstead is DeclaredBeta for a rule whose hand-written form has other errors. It marks
// and returns both: DeclaredLast keeps declared if the gate BetaRules is on, otherwise
// written.
func BetaInstead(declared, written field.ErrorList) field.ErrorList {
	if len(declared) == 0 {
		return written
	}
	return append(HandWritten(written...), BetaOnly(declared...)...)
}

// HandWritten marks errors that are dropped if the gate BetaRules is on: a rule that is
// declared in beta reports the same, by BetaOnly. It is for rules whose two forms stand in
// different places.
func HandWritten(errs ...*field.Error) field.ErrorList { return mark(byHand, errs) }

// BetaOnly marks errors that are reported, last, if the gate BetaRules is on, and dropped
// otherwise.
func BetaOnly(errs ...*field.Error) field.ErrorList { return mark(byBeta, errs) }

// Immutable returns the error of a declared rule that a field may not change. Errors
// of declared rules for fields below it are then not moved to the end: they are
// reported in place, among the errors of hand-written rules.
func Immutable(path *field.Path) field.ErrorList {
	return mark(byImmutability, field.ErrorList{field.Invalid(path, nil, apivalidation.FieldImmutableErrorMsg)})
}

// ImmutableValue is Immutable for a rule that is declared in beta. It returns the
// hand-written form, which shows the new value of the field, and the declared one; see
// BetaInstead.
func ImmutableValue(path *field.Path, value any) field.ErrorList {
	return append(mark(byHandImmutable, field.ErrorList{field.Invalid(path, value, apivalidation.FieldImmutableErrorMsg)}),
		mark(byBetaImmutable, Immutable(path))...)
}

func mark(origin string, errs field.ErrorList) field.ErrorList {
	for _, err := range errs {
		err.Origin = origin
	}
	return errs
}

// IsDeclared reports whether an error was marked as one of a declared rule.
func IsDeclared(err *field.Error) bool {
	return err.Origin == byDeclaration || err.Origin == byBeta || forbidsChange(err)
}

// forbidsChange reports whether an error is that of a declared rule that a field may not
// change.
func forbidsChange(err *field.Error) bool {
	return err.Origin == byImmutability || err.Origin == byBetaImmutable
}

// DeclaredLast moves the errors of declared rules behind the others, and removes the
// marks. Of a rule that is declared in beta it keeps the declared form, or the hand-written
// form if a field above may not change. If the gate BetaRules is off, there are only
// hand-written forms: see WithGates.
func DeclaredLast(errs field.ErrorList) field.ErrorList {
	immutable := map[string]struct{}{}
	for _, err := range errs {
		if forbidsChange(err) {
			immutable[err.Field] = struct{}{}
		}
	}
	var first, last field.ErrorList
	for _, err := range errs {
		origin, below := err.Origin, underImmutable(err, immutable)
		switch {
		case origin == byHandImmutable, origin == byHand && !below, origin == byBeta && below:
			continue
		case IsDeclared(err) && !below:
			last = append(last, err)
		default:
			first = append(first, err)
		}
	}
	unmark(first)
	unmark(last)
	return append(first, last...)
}

// dropBeta keeps the hand-written form of rules that are declared in beta.
func dropBeta(errs field.ErrorList) field.ErrorList {
	var kept field.ErrorList
	for _, err := range errs {
		switch err.Origin {
		case byBeta, byBetaImmutable:
			continue
		case byHand, byHandImmutable:
			err.Origin = ""
		}
		kept = append(kept, err)
	}
	return kept
}

func unmark(errs field.ErrorList) {
	for _, err := range errs {
		if IsDeclared(err) || err.Origin == byHand {
			err.Origin = ""
		}
	}
}

// underImmutable reports whether an error is about one of the immutable fields that
// changed, or about a field below one. Required errors of the field itself do not
// count: kube-apiserver checks for them first.
func underImmutable(err *field.Error, immutable map[string]struct{}) bool {
	if len(immutable) == 0 {
		return false
	}
	for i := range len(err.Field) {
		if c := err.Field[i]; c == '.' || c == '[' {
			if _, ok := immutable[err.Field[:i]]; ok {
				return true
			}
		}
	}
	_, ok := immutable[err.Field]
	return ok && err.Type != field.ErrorTypeRequired && !forbidsChange(err)
}
