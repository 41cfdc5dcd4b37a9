package rest

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// The server itself reads and writes objects too: what must exist from the
// start, and what its parts need to know.

// Lister returns the objects of a resource.
func (h *Handler) Lister(group, name string) (resource.Lister, error) {
	if def, ok := h.Catalog().Definition(group, name); ok && def.Source != nil {
		return def.Source, nil
	}
	return h.lister(group, name)
}

func (h *Handler) lister(group, name string) (lister, error) {
	def, ok := h.Catalog().Definition(group, name)
	if !ok {
		return lister{}, fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
	}
	return lister{def: def, objects: h.objects(def)}, nil
}

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
