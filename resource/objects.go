package resource

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// These are the contracts by which parts of a server read the objects of a
// resource: Lister when they need some now, Follower when they keep something
// that is computed from all of them. Package store implements Follower, package
// rest implements Objects.

// Lister reads objects of a resource.
type Lister interface {
	Get(ctx context.Context, namespace, name string) (Object, error)
	List(ctx context.Context, namespace string) ([]Object, error)
}

// Objects is access to the objects of a resource for other parts of the server.
// Writes are made as the server itself: admission and validation run,
// authorization does not. Errors are API errors, as clients get them.
type Objects interface {
	// Get and List are consistent reads: they include every write acknowledged
	// before the call.
	Lister
	// Cached reads from the watch cache without waiting. It may be behind writes of
	// other servers.
	Cached() Lister
	// Has reports whether the watch cache has the object.
	Has(ctx context.Context, namespace, name string) bool
	// Create stores a new object of the hub version.
	Create(ctx context.Context, obj Object) error
	// Update changes an object; change may run several times, each time on a
	// fresh copy, and its error ends the update. No strategy runs.
	Update(ctx context.Context, namespace, name string, change func(obj Object) error) error
	// Delete deletes an object as a client would.
	Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error
}

// A Follower delivers the objects of some resources and then their changes, to
// one consumer that computes something from them: rules from roles, a table from
// flow schemas. It delivers when it is asked, so that a decision rests on every
// write that the server acknowledged before it; asking is nearly free while
// nothing has changed.
type Follower interface {
	// Current reports whether every change known by now has been delivered. It
	// is called for every decision: a few atomic loads, no locks.
	Current() bool
	// Pull calls apply with what has changed since the last call, at first with
	// all objects. With reset, what was delivered before is void. The changes
	// count as delivered when apply returns; concurrent callers wait for that.
	// After an error, nothing was delivered and apply was not called.
	Pull(ctx context.Context, apply func(reset bool, changes []Change)) error
	// Wait returns when there may be something to pull, or with the error of ctx
	// when that ends.
	Wait(ctx context.Context) error
}

// Change is an object that was created or changed, or one that was deleted. The
// object is shared and must not be modified.
type Change struct {
	Object  Object
	Deleted bool
}
