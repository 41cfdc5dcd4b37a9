package controller

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a resource in the version in which controllers request it. A Kind is
// immutable.
type Kind struct {
	Group, Version, Resource, Kind string
	Verbs                          []string
	Namespaced                     bool
	// Remote says that an aggregated server stores the objects. The feed may be
	// behind for them.
	Remote bool
}

// APIVersion returns the apiVersion of the objects.
func (k *Kind) APIVersion() string {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.String()
}

// Is reports whether k is the resource of a group.
func (k *Kind) Is(group, resource string) bool { return k.Resource == resource && k.Group == group }

// Can reports whether the resource has a verb.
func (k *Kind) Can(verb string) bool { return slices.Contains(k.Verbs, verb) }

// Meta is the part of an object's metadata that the feed carries.
type Meta struct {
	UID        types.UID
	Deleting   bool
	Finalizers []string
	Owners     []metav1.OwnerReference
}

// Has reports whether the object has a finalizer.
func (m *Meta) Has(finalizer string) bool { return slices.Contains(m.Finalizers, finalizer) }

// Change is one change of one object.
type Change struct {
	Kind            *Kind
	Namespace, Name string
	// Revision is the resourceVersion of the object, or of its deletion.
	Revision int64
	// Version is the resourceVersion of an object of an aggregated server, which
	// need not be a number.
	Version string
	// Gone says that the object was deleted; Meta is its last state.
	Gone bool
	Meta
}

// Feed is the stream of changes that drives controllers, and the catalog of resources.
type Feed interface {
	// Follow calls see with the current state of all objects, in any number of
	// calls; then once with no changes; then with the changes in order. It returns
	// when ctx ends, or with an error if its place in the history is lost.
	Follow(ctx context.Context, see func(changes []Change)) error
	// Kinds returns the resources that are served, each once. The error is about
	// resources that could not be discovered.
	Kinds(ctx context.Context) ([]*Kind, error)
	// Find returns the resource of a kind in any of its versions.
	Find(apiVersion, kind string) (*Kind, bool)
	// Serves reports whether this process itself serves a version of a group.
	Serves(group, version string) bool
	// Served returns a resource in the version in which it is preferably requested.
	Served(group, resource string) (*Kind, bool)
	// Holds reports whether a namespace may have objects of a kind, without
	// loading any.
	Holds(ctx context.Context, kind *Kind, namespace string) (bool, error)
}
