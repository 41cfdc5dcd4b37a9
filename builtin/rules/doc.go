// Package rules has the rules that kinds of many API groups share: defaulting
// and validation of single fields, names and quantities, and the columns and
// the scale subresource that look the same for every kind.
//
// Start at Errors, which collects the field errors of a validation. A function
// named Check… adds to it and leaves the order of errors to its caller; one
// named Validate… returns a field.ErrorList of its own. The messages are those
// of Kubernetes, and clients compare them, so their text and order are part of
// the API.
//
// The package must never know a kind or a group: builtin/core and all other
// groups import it, and it imports none of them. Rules about pods and their
// templates are in builtin/podspec.
//
//	var e rules.Errors
//	e.NonNegative(path.Child("replicas"), int64(spec.Replicas))
//	rules.OneOf(&e, path.Child("type"), spec.Type, "A", "B")
//	return field.ErrorList(e)
package rules
