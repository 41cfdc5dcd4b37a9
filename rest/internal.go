package rest

import (
	"context"
	"fmt"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Ensure creates an object of the hub version as a client would, unless it is
// there.
func (h *Handler) Ensure(ctx context.Context, group, name string, obj resource.Object) error {
	err := h.Objects(group, name).Create(ctx, obj)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
