package rest

import (
	"context"
	"errors"
	"fmt"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

// The server itself reads and writes objects too: what must exist from the
// start, and what its parts need to know.

// Lister returns the objects of a resource.
func (h *Handler) Lister(group, name string) (resource.Lister, error) {
	def, ok := h.Catalog().Definition(group, name)
	if !ok {
		return nil, fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
	}
	return lister{h.objects(def)}, nil
}

// Ensure creates an object of the hub version as a client would, unless it is
// there.
func (h *Handler) Ensure(ctx context.Context, group, name string, obj resource.Object) error {
	def, ok := h.Catalog().Definition(group, name)
	if !ok {
		return fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
	}
	served, ok := h.Catalog().Lookup(group, def.HubVersion().Name, name)
	if !ok {
		return fmt.Errorf("%w: resource %s of group %q", storage.ErrNotFound, name, group)
	}
	was := request.From(ctx)
	req := &request.Request{Received: was.Received, FieldManager: "kelson", Info: request.Info{
		IsResource: true, Verb: request.Create, Group: group, Version: served.Version.Name,
		Namespace: obj.GetNamespace(), Resource: name,
	}}
	s := &scope{h: h, req: req, served: served, def: def, objects: h.objects(def), context: request.With(ctx, req)}
	if served.Version.Default != nil {
		served.Version.Default(obj)
	}
	_, _, err := s.insert(obj)
	if errors.Is(err, storage.ErrExists) {
		return nil
	}
	return err
}
