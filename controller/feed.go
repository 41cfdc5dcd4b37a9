package controller

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is a resource in the version in which controllers speak of it. A Kind is
// never changed.
type Kind struct {
	Group, Version, Resource, Kind string
	Namespaced                     bool
	Verbs                          []string
	// Remote: another server keeps the objects. What is known of them may be out
	// of date.
	Remote bool
}

// APIVersion returns group and version as objects spell them.
func (k *Kind) APIVersion() string {
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.String()
}

// Is reports whether it is a resource.
func (k *Kind) Is(group, resource string) bool { return k.Resource == resource && k.Group == group }

// Can reports whether the resource has a verb.
func (k *Kind) Can(verb string) bool { return slices.Contains(k.Verbs, verb) }

// Meta is what controllers want to know of an object at first sight.
type Meta struct {
	UID        types.UID
	Deleting   bool
	Finalizers []string
	Owners     []metav1.OwnerReference
}

// Has reports whether the object has a finalizer.
func (m *Meta) Has(finalizer string) bool { return slices.Contains(m.Finalizers, finalizer) }

// Change is what happened to one object.
type Change struct {
	Kind            *Kind
	Namespace, Name string
	// Revision is the resourceVersion of the object, or that of its deletion.
	Revision int64
	// Version is that of an object of another server, where it need be no number.
	Version string
	// Gone: the object was deleted, and Meta is its last state.
	Gone bool
	Meta
}

// Feed tells what the server keeps.
type Feed interface {
	// Follow calls see with the state of everything, in any number of pieces;
	// then once with nothing; and then with what changes, in order, until ctx
	// ends or the place in the history is lost, which is an error.
	Follow(ctx context.Context, see func(changes []Change)) error
	// Kinds returns the resources that are served, each once. The error is about
	// those that should be and cannot be told.
	Kinds(ctx context.Context) ([]*Kind, error)
	// Find returns the resource of a kind in any of its versions.
	Find(apiVersion, kind string) (*Kind, bool)
	// Serves reports whether this process itself serves a version of a group.
	Serves(group, version string) bool
	// Served returns a resource in the version in which it is best spoken of now.
	Served(group, resource string) (*Kind, bool)
	// Holds reports whether there may be objects of a kind in a namespace,
	// without loading any.
	Holds(ctx context.Context, kind *Kind, namespace string) (bool, error)
}
