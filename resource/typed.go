package resource

import "k8s.io/apimachinery/pkg/runtime"

// The functions of a Definition take the interface Object. This file makes them
// from functions on a Go type, so that the file of a kind has no type assertions.

// DefaultFunc makes the Default of a Version from a function on a type of Go.
func DefaultFunc[T Object](f func(T)) func(Object) {
	return func(obj Object) { f(obj.(T)) }
}

// CellsFunc makes the Cells of a Definition from a function on a type of Go.
func CellsFunc[T Object](f func(T) []any) func(Object) ([]any, error) {
	return func(obj Object) ([]any, error) { return f(obj.(T)), nil }
}

// ArrangeFunc makes the Arrange of a Definition from a function on a type of Go.
func ArrangeFunc[T Object](f func([]T) func(T, []any)) func([]Object) func(Object, []any) {
	return func(objs []Object) func(Object, []any) {
		typed := make([]T, len(objs))
		for i, obj := range objs {
			typed[i] = obj.(T)
		}
		change := f(typed)
		for i, obj := range typed {
			objs[i] = obj
		}
		if change == nil {
			return nil
		}
		return func(obj Object, cells []any) { change(obj.(T), cells) }
	}
}

// FieldFunc makes a Field from a function on a type of Go.
func FieldFunc[T Object](path string, f func(T) string) Field {
	return Field{Path: path, Get: func(obj Object) string { return f(obj.(T)) }}
}

// VersionOf makes a version from the types of an object and its list. defaults
// may be nil.
func VersionOf[T, L any, P interface {
	*T
	Object
}, PL interface {
	*L
	runtime.Object
}](name string, defaults func(P)) Version {
	v := Version{
		Name:    name,
		New:     func() Object { return P(new(T)) },
		NewList: func() runtime.Object { return PL(new(L)) },
	}
	if defaults != nil {
		v.Default = DefaultFunc(defaults)
	}
	return v
}
