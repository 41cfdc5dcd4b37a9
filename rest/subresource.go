package rest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
)

// respondRuntime answers with an object that knows its own kind, or is of that
// of the subresource.
func (s *scope) respondRuntime(code int, obj runtime.Object) error {
	gvk := obj.GetObjectKind().GroupVersionKind()
	if (gvk.Kind == "" || gvk.Version == "") && s.sub != nil {
		gvk = s.sub.Kind
		obj.GetObjectKind().SetGroupVersionKind(gvk)
	}
	if o, ok := obj.(resource.Object); ok && s.enc.Format.Shape == wire.ShapeMetadata {
		if s.enc.Format.List {
			return errWrongList(s, false)
		}
		return s.respondOther(code, s.enc.Format.MetaVersion(), "PartialObjectMetadata", s.enc.PartialMetadata(o))
	}
	return s.respondOther(code, gvk.GroupVersion().String(), gvk.Kind, obj)
}

// act runs an action.
func (s *scope) act() error {
	if s.sub.Action == nil {
		return errMethodNotAllowed()
	}
	raw, m, err := s.sentBody()
	if err != nil {
		return err
	}
	body := s.sub.New()
	if err := s.decodeInto(body, s.sub.Kind, raw, m); err != nil {
		return err
	}
	if s.sub.Default != nil {
		s.sub.Default(body)
	}
	s.auditSentOther(body)
	if !s.sub.KeepsMeta {
		wipeMeta(body)
	}
	s.dropDuplicateOwners(body, false)
	if s.sub.Owned {
		if body, err = s.updateManagedFields(nil, body); err != nil {
			return err
		}
	}
	return s.runAction(body)
}

// createOn runs the action of another resource, on the object that the body
// names: the old form of bindings.
func (s *scope) createOn() error {
	body, err := s.decodeBody()
	if err != nil {
		return err
	}
	wipeMeta(body)
	if err := s.checkBodyNamespace(body); err != nil {
		return err
	}
	name, sub, _ := strings.Cut(s.def.CreateOn, "/")
	def, ok := s.h.Catalog().Definition(s.def.Group, name)
	if !ok {
		return errMethodNotAllowed()
	}
	for i := range def.Subresources {
		if def.Subresources[i].Name == sub {
			s.def, s.sub, s.objects = def, &def.Subresources[i], track(s.h.objects(def))
			s.objects.check = s.checkNamespace
			s.req.Name = body.GetName()
			if err := s.checkName(); err != nil {
				return err
			}
			return s.runAction(body)
		}
	}
	return errMethodNotAllowed()
}

func (s *scope) runAction(body resource.Object) error {
	a, err := s.admit(admission.Create, body, nil, s.createOptions())
	if err == nil {
		err = s.validateAdmission(a, body)
	}
	if err != nil {
		return err
	}
	result, err := s.sub.Action(s.ctx(), target{s}, body)
	if err != nil {
		return err
	}
	if status, ok := result.(*metav1.Status); ok {
		if status.Code == 0 {
			status.Code = http.StatusCreated
		}
		s.respondStatus(int(status.Code), status)
		return nil
	}
	return s.respondRuntime(http.StatusCreated, result)
}

// target is the object of an action.
type target struct{ s *scope }

func (t target) Namespace() string { return t.s.req.Namespace }

func (t target) Name() string { return t.s.req.Name }

func (t target) Get(ctx context.Context) (resource.Object, error) {
	if err := t.s.checkName(); err != nil {
		return nil, err
	}
	rec, err := t.s.objects.Get(ctx, t.s.key(), store.Read{})
	if err != nil {
		return nil, t.s.translate(err)
	}
	return t.s.decode(rec)
}

func (t target) Update(ctx context.Context, change func(resource.Object) error) (resource.Object, error) {
	if t.s.req.Name == "" {
		return nil, errNoName()
	}
	var result resource.Object
	rec, err := t.s.objects.Update(ctx, t.s.key(), func(current *store.Record, obj resource.Object) (resource.Object, time.Duration, error) {
		obj.SetResourceVersion(wire.RevisionString(current.Revision))
		if err := change(obj); err != nil {
			return nil, 0, err
		}
		result = obj
		if t.s.req.DryRun {
			return nil, 0, errDryRun
		}
		return obj, t.s.ttl(obj), nil
	})
	if err == errDryRun {
		return result, nil
	}
	if err != nil {
		return nil, t.s.translate(err)
	}
	result.SetResourceVersion(wire.RevisionString(rec.Revision))
	return result, nil
}

func (t target) Delete(ctx context.Context, opts *metav1.DeleteOptions) (runtime.Object, error) {
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	if err := validateDelete(opts); err != nil {
		return nil, err
	}
	if len(opts.DryRun) > 0 {
		t.s.req.DryRun = true
	}
	done, err := t.s.remove(t.s.key(), opts)
	if err != nil {
		return nil, t.s.translate(err)
	}
	return done.obj, nil
}

func (t target) Other(group, name string) (resource.Others, error) {
	objects, ok := t.s.h.Stored(group, name)
	if !ok {
		return nil, noResource(group, name)
	}
	return others{objects.View(store.Read{}), t.s}, nil
}

// others reads and changes objects of other resources for actions.
type others struct {
	store.View
	s *scope // of the action
}

func (o others) Get(ctx context.Context, namespace, name string) (resource.Object, error) {
	if name == "" {
		return nil, errNoName()
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	obj, err := o.View.Get(ctx, namespace, name)
	if errors.Is(err, storage.ErrNotFound) {
		err = apierrors.NewNotFound(schema.GroupResource{Group: o.Definition().Group, Resource: o.Definition().Resource}, name)
	}
	return obj, err
}

func (o others) Update(ctx context.Context, namespace, name string, change func(resource.Object) error) (resource.Object, error) {
	on := *o.s
	req := *o.s.req
	req.Namespace, req.Name = namespace, name
	on.req, on.def, on.sub, on.objects = &req, o.Definition(), nil, track(o.Resource)
	on.objects.check = o.s.objects.check
	obj, err := target{&on}.Update(ctx, func(obj resource.Object) error {
		live := obj.DeepCopyObject().(resource.Object)
		if err := change(obj); err != nil || on.h.Owners == nil {
			return err
		}
		owned, err := on.h.Owners.Update(o.Definition().Stored(), "status", live, obj, serverManager, req.Received)
		if err == nil {
			resource.SetManagedFields(obj, resource.ManagedFields(owned))
		}
		return err
	})
	if on.objects.written.Load() {
		o.s.objects.written.Store(true)
	}
	return obj, err
}
