package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Rules is a Strategy whose functions take a type of Go, so that the file of a
// kind is free of type assertions:
//
//	Strategy: resource.Rules[*corev1.Secret]{
//		Validate: func(ctx context.Context, s *corev1.Secret) field.ErrorList { … },
//	}.Strategy(),
//
// The fields mean what those of Strategy mean; what is not listed here is set
// on the Strategy that it returns.
type Rules[T Object] struct {
	ValidateName    func(name string, prefix bool) []string
	PrepareCreate   func(ctx context.Context, obj T)
	PrepareUpdate   func(ctx context.Context, obj, old T)
	Validate        func(ctx context.Context, obj T) field.ErrorList
	ValidateUpdate  func(ctx context.Context, obj, old T) field.ErrorList
	Warnings        func(ctx context.Context, obj, old T) []string
	Generation      func(obj, old T) bool
	Begin           func(ctx context.Context, obj, old T) (end func(committed bool), err error)
	GracePeriod     func(obj T, asked *int64) int64
	BeforeDelete    func(obj T)
	Held            func(obj T) bool
	CreateOnUpdate  bool
	RequireVersion  bool
	OrphanByDefault bool
	ReturnDeleted   bool
	NoPropagation   bool
	JudgesMetadata  bool
	NameOnUpdate    bool
	Repeats         bool
	Resets          []string
}

// Strategy returns the rules as a Strategy.
func (r Rules[T]) Strategy() Strategy {
	s := Strategy{
		ValidateName: r.ValidateName, CreateOnUpdate: r.CreateOnUpdate,
		RequireVersion: r.RequireVersion, OrphanByDefault: r.OrphanByDefault, ReturnDeleted: r.ReturnDeleted, NoPropagation: r.NoPropagation,
		Resets: r.Resets, JudgesMetadata: r.JudgesMetadata, NameOnUpdate: r.NameOnUpdate, Repeats: r.Repeats,
	}
	if f := r.PrepareCreate; f != nil {
		s.PrepareCreate = func(ctx context.Context, obj Object) { f(ctx, obj.(T)) }
	}
	if f := r.PrepareUpdate; f != nil {
		s.PrepareUpdate = func(ctx context.Context, obj, old Object) { f(ctx, obj.(T), old.(T)) }
	}
	if f := r.Validate; f != nil {
		s.Validate = func(ctx context.Context, obj Object) field.ErrorList { return f(ctx, obj.(T)) }
	}
	if f := r.ValidateUpdate; f != nil {
		s.ValidateUpdate = func(ctx context.Context, obj, old Object) field.ErrorList { return f(ctx, obj.(T), old.(T)) }
	}
	if f := r.Warnings; f != nil {
		s.Warnings = func(ctx context.Context, obj, old Object) []string { return f(ctx, as[T](obj), as[T](old)) }
	}
	if f := r.Generation; f != nil {
		s.Generation = func(_ context.Context, obj, old Object) bool { return f(obj.(T), old.(T)) }
	}
	if f := r.Begin; f != nil {
		s.Begin = func(ctx context.Context, obj, old Object) (func(bool), error) { return f(ctx, as[T](obj), as[T](old)) }
	}
	if f := r.GracePeriod; f != nil {
		s.GracePeriod = func(obj Object, asked *int64) int64 { return f(obj.(T), asked) }
	}
	if f := r.BeforeDelete; f != nil {
		s.BeforeDelete = func(obj Object) { f(obj.(T)) }
	}
	if f := r.Held; f != nil {
		s.Held = func(obj Object) bool { return f(obj.(T)) }
	}
	return s
}

// as converts an object that may be nil.
func as[T Object](obj Object) T {
	t, _ := obj.(T)
	return t
}

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
