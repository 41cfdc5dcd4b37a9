package rest

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
)

// serverManager owns the fields that the server itself sets, under the name that
// everybody knows.
const serverManager = "kube-apiserver"

// Objects returns the objects of a resource. It can be asked for before there is
// a catalog, by what the definitions in it need.
func (h *Handler) Objects(group, name string) resource.Objects {
	return h.ObjectsAs(serverManager, group, name)
}

// ObjectsAs is Objects where the owner of what is created has another name.
func (h *Handler) ObjectsAs(manager, group, name string) resource.Objects {
	return objects{h: h, manager: manager, find: func() (*resource.Served, error) {
		if def, ok := h.Catalog().Definition(group, name); ok {
			return def.Stored(), nil
		}
		return nil, noResource(group, name)
	}}
}

// Private returns the objects of a definition that nobody is served: what the
// server keeps for itself, under keys of its own. They are stored as they are,
// without any metadata from the server.
func (h *Handler) Private(def resource.Definition) (resource.Objects, error) {
	catalog, err := resource.NewCatalog(resource.Group{Name: def.Group, Resources: []resource.Definition{def}})
	if err != nil {
		return nil, err
	}
	known, _ := catalog.Definition(def.Group, def.Resource)
	served, _ := catalog.Lookup(def.Group, known.HubVersion().Name, def.Resource)
	return objects{h: h, bare: true, find: func() (*resource.Served, error) { return served, nil }}, nil
}

// objects implements resource.Objects.
type objects struct {
	h       *Handler
	manager string
	find    func() (*resource.Served, error)
	bare    bool // stored as they are
	read    store.Read
}

// scope returns the scope of a request that the server makes itself.
func (o objects) scope(ctx context.Context, verb, namespace, name string) (*scope, error) {
	served, err := o.find()
	if err != nil {
		return nil, err
	}
	req := &request.Request{Received: request.From(ctx).Received, FieldManager: o.manager, Server: o.h.Server, User: request.User{Name: "system:apiserver", Groups: []string{"system:masters"}}, Info: request.Info{
		IsResource: true, Verb: verb, Group: served.GroupVersion.Group, Version: served.Version.Name,
		Namespace: namespace, Resource: served.Definition.Resource, Name: name,
	}}
	return &scope{
		h: o.h, req: req, served: served, def: served.Definition, objects: track(o.h.objects(served.Definition)),
		enc:     wire.Encoder{Served: served},
		context: request.With(ctx, req),
	}, nil
}

func (o objects) Get(ctx context.Context, namespace, name string) (resource.Object, error) {
	s, err := o.scope(ctx, request.Get, namespace, name)
	if err != nil {
		return nil, err
	}
	obj, err := s.objects.View(o.read).Get(ctx, namespace, name)
	if err != nil {
		return nil, s.translate(err)
	}
	return obj, nil
}

func (o objects) List(ctx context.Context, namespace string) ([]resource.Object, error) {
	s, err := o.scope(ctx, request.List, namespace, "")
	if err != nil {
		return nil, err
	}
	objs, err := s.objects.View(o.read).List(ctx, namespace)
	if err != nil {
		return nil, s.translate(err)
	}
	return objs, nil
}

func (o objects) Cached() resource.Lister {
	o.read = store.Read{Any: true}
	return o
}

func (o objects) Has(ctx context.Context, namespace, name string) bool {
	s, err := o.scope(ctx, request.Get, namespace, name)
	if err != nil {
		return false
	}
	_, err = s.objects.Get(ctx, s.key(), store.Read{Any: true})
	return err == nil
}

func (o objects) Create(ctx context.Context, obj resource.Object) error {
	s, err := o.scope(ctx, request.Create, obj.GetNamespace(), obj.GetName())
	if err != nil {
		return err
	}
	if d := s.served.Version.Default; d != nil {
		d(obj)
	}
	if o.bare {
		_, err = s.objects.Create(ctx, s.key(), obj, s.ttl(obj))
	} else {
		_, _, err = s.insert(obj)
	}
	if err != nil {
		return s.translate(err)
	}
	return nil
}

func (o objects) Update(ctx context.Context, namespace, name string, change func(obj resource.Object) error) error {
	s, err := o.scope(ctx, request.Update, namespace, name)
	if err != nil {
		return err
	}
	var next resource.Object
	rec, err := s.objects.Update(ctx, s.key(), func(current *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		obj.SetResourceVersion(wire.RevisionString(current.Revision))
		next = obj
		return obj, s.ttl(obj), change(obj)
	})
	if err != nil {
		return s.translate(err)
	}
	return s.enc.NoteWritten(rec, next)
}

func (o objects) Delete(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error {
	s, err := o.scope(ctx, request.Delete, namespace, name)
	if err != nil {
		return err
	}
	if _, err = s.remove(s.key(), &opts); err != nil {
		return s.translate(err)
	}
	return nil
}
