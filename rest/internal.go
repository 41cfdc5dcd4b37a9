package rest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// The server itself reads and writes objects too. Its parts get them here, each by
// the contract that it has for that: resource.Objects (objects.go), resource.Lister,
// resource.Follower, and that of admission. Below all of them is a store.View.

// Stored returns what the store has of a resource, false if there is no such
// resource. It is for parts of the server that read records or wait for changes;
// Objects is for those that read and write objects.
func (h *Handler) Stored(group, name string) (*store.Resource, bool) {
	def, ok := h.Catalog().Definition(group, name)
	if !ok {
		return nil, false
	}
	return h.objects(def), true
}

// noResource is the error for a resource that is not in the catalog.
func noResource(group, name string) error {
	return fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
}

// Lister returns the objects of a resource, the newest ones.
func (h *Handler) Lister(group, name string) (resource.Lister, error) {
	r, ok := h.Stored(group, name)
	if !ok {
		return nil, noResource(group, name)
	}
	if source := r.Definition().Source; source != nil {
		return source, nil
	}
	return r.View(store.Read{}), nil
}

// Follow returns a Follower of those of the resources that there are. It can be
// asked for before there is a catalog.
func (h *Handler) Follow(names ...schema.GroupResource) *store.Follower {
	return store.NewFollower(func() (resources []*store.Resource) {
		for _, name := range names {
			if r, ok := h.Stored(name.Group, name.Resource); ok {
				resources = append(resources, r)
			}
		}
		return resources
	}, h.log())
}

// Ensure creates an object of the hub version as a client would, unless it is
// there.
func (h *Handler) Ensure(ctx context.Context, group, name string, obj resource.Object) error {
	err := h.Objects(group, name).Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// AdmissionObjects are the objects that admission plugins decide by: from memory,
// with everything that this server has acknowledged. They are decoded once, since
// plugins read the same few for every write. It is an admission.Objects, and has
// what single plugins need besides.
type AdmissionObjects struct{ Handler *Handler }

// Get implements admission.Objects.
func (a AdmissionObjects) Get(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return a.get(ctx, group, name, namespace, key, store.Read{Acknowledged: true})
}

// GetNewest implements admission.Objects.
func (a AdmissionObjects) GetNewest(ctx context.Context, group, name, namespace, key string) (resource.Object, error) {
	return a.get(ctx, group, name, namespace, key, store.Read{})
}

func (a AdmissionObjects) get(ctx context.Context, group, name, namespace, key string, read store.Read) (resource.Object, error) {
	r, ok := a.Handler.Stored(group, name)
	if !ok {
		return nil, notFound(group, name, key)
	}
	obj, err := r.View(read).Shared().Get(ctx, namespace, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, notFound(group, name, key)
	}
	return obj, unavailable(err)
}

// List implements admission.Objects.
func (a AdmissionObjects) List(ctx context.Context, group, name, namespace string) ([]resource.Object, error) {
	r, ok := a.Handler.Stored(group, name)
	if !ok {
		return nil, noResource(group, name)
	}
	objs, err := r.View(store.Read{Acknowledged: true}).Shared().List(ctx, namespace)
	return objs, unavailable(err)
}

// Create stores a new object.
func (a AdmissionObjects) Create(ctx context.Context, group, name string, obj resource.Object) error {
	return a.Handler.Objects(group, name).Create(ctx, obj)
}

// UpdateStatus changes the status of an object in the name of the server, which
// comes to own what is changed, and returns the result. change may run several
// times, each time on a fresh copy; its error ends the update.
func (a AdmissionObjects) UpdateStatus(ctx context.Context, group, name, namespace, key string, change func(obj resource.Object) error) (resource.Object, error) {
	r, ok := a.Handler.Stored(group, name)
	if !ok {
		return nil, notFound(group, name, key)
	}
	served, ok := a.Handler.Catalog().Lookup(group, r.Definition().HubVersion().Name, name)
	if !ok {
		return nil, notFound(group, name, key)
	}
	var result resource.Object
	rec, err := r.Update(ctx, r.Key(namespace, key), func(current *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		obj.SetResourceVersion(strconv.FormatInt(current.Revision, 10))
		live := obj.DeepCopyObject().(resource.Object)
		if err := change(obj); err != nil {
			return nil, 0, err
		}
		if a.Handler.Owners == nil {
			result = obj
			return obj, 0, nil
		}
		owned, err := a.Handler.Owners.Update(served, "status", live, obj, serverManager, request.From(ctx).Received)
		if err != nil && owned == nil {
			return nil, 0, err
		}
		result = owned
		return owned, 0, nil
	})
	if errors.Is(err, storage.ErrNotFound) {
		return nil, notFound(group, name, key)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	result.SetResourceVersion(strconv.FormatInt(rec.Revision, 10))
	return result, nil
}

func notFound(group, name, key string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: group, Resource: name}, key)
}

// unavailable returns ServiceUnavailable for errors of a store that cannot do its
// work, which is not the client's fault, and other errors as they are.
func unavailable(err error) error {
	if err == nil {
		return nil
	}
	for _, cause := range []error{storage.ErrUnavailable, storage.ErrClosed, storage.ErrNoSpace, storage.ErrReadOnly} {
		if errors.Is(err, cause) {
			return apierrors.NewServiceUnavailable(err.Error())
		}
	}
	return err
}
