package resource

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// DeclaredLast brings what is wrong with an object into the order in which it is
// said: first what the rules of a kind have found, in their order, then what is
// declared of its fields, in the order of the fields.
//
// declared lists the latter as they are shown, without the value and with
// [*] for any index or key: "rules[*].verbs: Required value". If several rules of
// the same type are about a field, a part of the text says which one is meant:
// "spec.replicas: Invalid value: must be greater than 0". What may not change hides
// what is declared below it; a rule of the kind that says so is listed with a
// "!" before it.
func DeclaredLast(errs field.ErrorList, declared []string) field.ErrorList {
	if len(errs) < 2 || len(declared) == 0 {
		return errs
	}
	find := func(err *field.Error) int {
		return slices.IndexFunc(declared, func(d string) bool { return declares(d, err) })
	}
	var fixed []string
	for _, err := range errs {
		if err.Detail == apivalidation.FieldImmutableErrorMsg &&
			slices.ContainsFunc(declared, func(d string) bool { return declares(strings.TrimPrefix(d, "!"), err) }) {
			fixed = append(fixed, err.Field)
		}
	}
	var first field.ErrorList
	var last []declaredError
	for _, err := range errs {
		if at := find(err); at >= 0 && !hidden(err, fixed) {
			path := segments(err.Field)
			if err.Type == field.ErrorTypeDuplicate && len(path) > 0 {
				path = path[:len(path)-1] // which is a rule of the whole list
			}
			last = append(last, declaredError{err, at, path})
		} else {
			first = append(first, err)
		}
	}
	slices.SortStableFunc(last, compareDeclared)
	for _, d := range last {
		first = append(first, d.Error)
	}
	return first
}

// hidden reports whether a declared rule was not applied, since what it is about
// may not change and did: what there is to say comes from the rules of the kind.
func hidden(err *field.Error, fixed []string) bool {
	return slices.ContainsFunc(fixed, func(path string) bool {
		rest, ok := strings.CutPrefix(err.Field, path)
		return ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "[") ||
			rest == "" && err.Type != field.ErrorTypeRequired && err.Detail != apivalidation.FieldImmutableErrorMsg)
	})
}

type declaredError struct {
	*field.Error
	at   int // in the list
	path []string
}

// anyIndex are the indexes and keys in a path.
var anyIndex = regexp.MustCompile(`\[[^\]]*\]`)

func declares(declared string, err *field.Error) bool {
	path, rest, _ := strings.Cut(declared, ": ")
	kind, text, _ := strings.Cut(rest, ": ")
	return kind == err.Type.String() && path == anyIndex.ReplaceAllString(err.Field, "[*]") && strings.Contains(err.Detail, text)
}

// segments splits a path at its dots and before its brackets.
func segments(path string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(path, "[", ".["), func(r rune) bool { return r == '.' })
}

// compareDeclared compares entries of a list by their place in it, and fields by
// that of what is declared of them.
func compareDeclared(a, b declaredError) int {
	for i := range min(len(a.path), len(b.path)) {
		if a.path[i] == b.path[i] {
			continue
		}
		x, errX := strconv.Atoi(strings.Trim(a.path[i], "[]"))
		y, errY := strconv.Atoi(strings.Trim(b.path[i], "[]"))
		if errX == nil && errY == nil {
			return cmp.Compare(x, y)
		}
		break
	}
	return cmp.Compare(a.at, b.at)
}
