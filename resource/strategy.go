package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Strategy is how a kind, or a subresource of it, behaves when it is written.
// Objects are of the hub version, unless Definition.Between is set.
type Strategy = Rules[Object]

// Outcome is what became of a write, for those who have reserved something for it.
type Outcome int

const (
	// NotWritten: nothing has changed. What was reserved is released.
	NotWritten Outcome = iota
	// Written: the write is there. What it has freed is released.
	Written
	// Unknown: the store did not answer, and the write may be there, or may appear
	// later. Nothing is released, neither what it would use nor what it would free: a
	// value that leaks is found by a repair, one that has two owners is not.
	Unknown
)

// Rules is a Strategy whose functions take a Go type, so that the file of a kind
// has no type assertions:
//
//	Strategy: resource.Rules[*corev1.Secret]{
//		Validate: func(ctx context.Context, s *corev1.Secret) field.ErrorList { … },
//	}.Strategy(),
//
// Every function may be nil.
type Rules[T Object] struct {
	// ValidateName returns the errors of a name, or of the prefix of a generated
	// one. The default requires a DNS subdomain.
	ValidateName func(name string, prefix bool) []string
	// NameOnUpdate runs ValidateName on updates too. A name never changes, but
	// metadata.generateName can.
	NameOnUpdate bool

	// PrepareCreate clears fields that a client may not set, such as the status.
	PrepareCreate func(ctx context.Context, obj T)
	// PrepareUpdate restores from the old object the fields that this request may
	// not change.
	PrepareUpdate func(ctx context.Context, obj, old T)
	// Validate returns the errors of a new object. Errors marked with Declared are
	// moved to the end of the response.
	Validate func(ctx context.Context, obj T) field.ErrorList
	// JudgesMetadata says that Validate checks the metadata too. Otherwise package
	// rest checks the metadata, and its errors come before those of Validate.
	JudgesMetadata bool
	// Repeats makes an update report errors of the metadata as often as
	// kube-apiserver's apiextensions code finds them, up to three times. Otherwise
	// each is reported once.
	Repeats bool
	// ValidateUpdate returns the errors of an update. If it is nil, Validate is
	// called with the new object; otherwise Validate is not called.
	ValidateUpdate func(ctx context.Context, obj, old T) field.ErrorList
	// Warnings returns the texts of Warning headers; old is nil on create.
	Warnings func(ctx context.Context, obj, old T) []string

	// Generation reports whether an update increments metadata.generation. It is
	// called after PrepareUpdate. Nil means that the kind has no generation, or
	// that a write to this subresource never increments it.
	Generation func(obj, old T) bool

	// Begin reserves what the object needs outside of itself, such as cluster IPs
	// and node ports, and may set fields of the object; old is nil on create, obj
	// is nil on delete. It is called after PrepareCreate or PrepareUpdate and
	// before validation, so that validation sees the fields that were set. If it
	// returns an error, validation does not run. end is called once, with what
	// became of the write.
	Begin func(ctx context.Context, obj, old T) (end func(Outcome), err error)

	// Resets are dotted paths of fields that a write through this endpoint never
	// changes, so that no field manager comes to own them by it. Nil is the usual:
	// status for the object, spec for the status subresource.
	Resets []string

	// CreateOnUpdate makes a PUT to a name that does not exist create the object.
	CreateOnUpdate bool
	// CreateOnApply does so for server-side apply to a subresource; to the object itself it
	// always does.
	CreateOnApply bool
	// RequireVersion makes metadata.resourceVersion mandatory in updates.
	RequireVersion bool

	// GracePeriod makes deletion graceful. It returns the grace period in seconds,
	// given gracePeriodSeconds of the request (nil if it is not set); 0 deletes at
	// once.
	GracePeriod func(obj T, asked *int64) int64
	// BeforeDelete changes an object when its deletion begins: a namespace becomes
	// Terminating. It is called once.
	BeforeDelete func(obj T)
	// Held reports whether an object that is being deleted must stay for a reason
	// other than metadata.finalizers and its grace period: a namespace has
	// spec.finalizers.
	Held func(obj T) bool
	// OrphanByDefault orphans dependents if the request has no propagation policy.
	OrphanByDefault bool
	// OrphanWarning is the text of a Warning header for deletions without a
	// propagation policy.
	OrphanWarning string
	// NoPropagation ignores the propagation policy of deletions.
	NoPropagation bool
	// ReturnDeleted answers a deletion that takes effect at once with the object
	// instead of a Status.
	ReturnDeleted bool
}

// Strategy returns the rules as a Strategy.
func (r Rules[T]) Strategy() Strategy {
	s := Strategy{
		ValidateName: r.ValidateName, NameOnUpdate: r.NameOnUpdate, JudgesMetadata: r.JudgesMetadata, Repeats: r.Repeats, Resets: r.Resets,
		CreateOnUpdate: r.CreateOnUpdate, CreateOnApply: r.CreateOnApply, RequireVersion: r.RequireVersion, OrphanByDefault: r.OrphanByDefault,
		OrphanWarning: r.OrphanWarning, NoPropagation: r.NoPropagation, ReturnDeleted: r.ReturnDeleted,
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
		s.Warnings = func(ctx context.Context, obj, old Object) []string { return f(ctx, asOrNil[T](obj), asOrNil[T](old)) }
	}
	if f := r.Generation; f != nil {
		s.Generation = func(obj, old Object) bool { return f(obj.(T), old.(T)) }
	}
	if f := r.Begin; f != nil {
		s.Begin = func(ctx context.Context, obj, old Object) (func(Outcome), error) {
			return f(ctx, asOrNil[T](obj), asOrNil[T](old))
		}
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

// asOrNil converts obj to T; a nil obj becomes the zero T.
func asOrNil[T Object](obj Object) T {
	t, _ := obj.(T)
	return t
}
