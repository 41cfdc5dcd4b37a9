package resource

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects are those of a resource as other parts of the server see them. What
// they write, they write in the name of the server: the rules of the kind hold,
// what clients may do does not matter. Errors are those that clients get.
type Objects interface {
	// Get and List see every write that was acknowledged before the call.
	Lister
	// Cached reads what the server knows by now, which can be behind what
	// others have written, and waits for nobody.
	Cached() Lister
	// Has tells, from what the server knows by now, whether there is an object.
	Has(ctx context.Context, namespace, name string) bool
	// Create stores a new object of the hub version.
	Create(ctx context.Context, obj Object) error
	// Update changes an object; change may run several times, each time on a
	// fresh copy, and its error ends the update. No strategy runs.
	Update(ctx context.Context, namespace, name string, change func(obj Object) error) error
	// Delete deletes an object as a client would.
	Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error
}
