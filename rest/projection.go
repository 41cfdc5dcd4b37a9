package rest

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// respondProjection answers with the projection of a stored object.
func (s *scope) respondProjection(code int, obj resource.Object) error {
	obj, err := s.toWriteVersion(obj)
	if err != nil {
		return err
	}
	get := s.sub.Projection.Get
	if s.req.Verb != request.Get && s.sub.Projection.After != nil {
		get = s.sub.Projection.After
	}
	projection, err := get(obj)
	if err != nil {
		return reserveError(err)
	}
	projection.GetObjectKind().SetGroupVersionKind(s.sub.Kind)
	if s.enc.Format.Shape != wire.ShapeTable {
		return s.respondRuntime(code, projection)
	}
	if s.sub.Projection.Cells == nil {
		return errNotAcceptable(s.acceptedTypes())
	}
	if err := s.readInclude(); err != nil {
		return err
	}
	t, err := s.enc.ProjectionTable(s.sub.Projection, projection)
	if err != nil {
		return err
	}
	return s.respondOther(code, t.APIVersion, t.Kind, t)
}

// updateProjection writes a projection back into its object.
func (s *scope) updateProjection() error {
	body, m, err := s.sentBody()
	if err != nil {
		return err
	}
	projection := s.sub.New()
	if err := s.decodeInto(projection, s.sub.Kind, body, m); err != nil {
		return err
	}
	s.auditSentOther(projection)
	if err := s.checkBodyName(projection); err != nil {
		return err
	}
	return s.changeProjection(func(resource.Object) (resource.Object, error) {
		return projection.DeepCopyObject().(resource.Object), nil
	})
}

// changeProjection changes an object through its projection.
func (s *scope) changeProjection(next func(current resource.Object) (resource.Object, error)) error {
	var result resource.Object
	var reserved reservation
	defer func() { reserved.finish(resource.NotWritten) }()
	changed, err := s.objects.Update(s.ctx(), s.key(), func(rec *store.Record, live resource.Object) (resource.Object, time.Duration, error) {
		reserved.finish(resource.NotWritten) // of an attempt that lost
		live.SetResourceVersion(wire.RevisionString(rec.Revision))
		obj, _, err := s.nextState(live, func(live resource.Object) (resource.Object, error) { return s.throughProjection(live, next) }, &reserved)
		if err != nil {
			return nil, 0, err
		}
		result = obj
		if s.req.DryRun {
			return nil, 0, errDryRun
		}
		reserved.sent = true
		return obj, s.ttl(obj), nil
	})
	reserved.finishWrite(err)
	if s.canDropManagedFields(err) {
		s.noManagedFields = true
		return s.changeProjection(next)
	}
	if err != nil && !errors.Is(err, errDryRun) {
		return err
	}
	if err == nil {
		result.SetResourceVersion(wire.RevisionString(changed.Revision))
	}
	return writeConversionError(s.respondProjection(http.StatusOK, result))
}

// throughProjection returns the object that a change of its projection results
// in. The owners of fields are found in the projection, and then settled.
func (s *scope) throughProjection(live resource.Object, next func(resource.Object) (resource.Object, error)) (resource.Object, error) {
	p, owners := s.sub.Projection, s.h.Owners
	before := p.Get
	if p.Before != nil {
		before = p.Before
	}
	current, err := before(live)
	if err != nil {
		return nil, reserveError(err)
	}
	if owners != nil {
		if err := owners.Project(s.served, s.sub, live, current); err != nil {
			return nil, err
		}
	}
	projection, err := next(current.DeepCopyObject().(resource.Object))
	if err != nil {
		return nil, err
	}
	if err := s.checkBodyName(projection); err != nil {
		return nil, err
	}
	if s.req.Verb == request.Update {
		s.dropDuplicateOwners(projection, false)
	}
	if !s.applied {
		if projection, err = s.updateManagedFields(current, projection); err != nil {
			return nil, err
		}
	}
	admitted, err := s.admit(admission.Update, projection, current, s.updateOptions())
	if err != nil {
		return nil, err
	}
	s.dropDuplicateOwners(projection, true)
	if p.Validate != nil {
		if errs := p.Validate(s.ctx(), projection); len(errs) > 0 {
			return nil, problems.Invalid(s.sub.Kind.GroupKind(), live.GetName(), errs)
		}
	}
	if admitted != nil {
		// Owners of fields are the object's: those who only look do not see them.
		judged, old := projection.DeepCopyObject().(resource.Object), current.DeepCopyObject().(resource.Object)
		judged.SetManagedFields(nil)
		old.SetManagedFields(nil)
		admitted.Old = old
		if err := s.validateAdmission(admitted, judged); err != nil {
			return nil, err
		}
	}
	if uid := projection.GetUID(); uid != "" && uid != live.GetUID() {
		if s.req.Verb == request.Update {
			return nil, s.sameUID(live, uid)
		}
		of := s.groupResource()
		of.Resource += "/" + s.sub.Name
		//lint:ignore ST1005 the words that clients know
		return nil, apierrors.NewConflict(of, s.req.Name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", uid, live.GetUID()))
	}
	obj := live.DeepCopyObject().(resource.Object)
	if err := p.Set(s.ctx(), obj, projection); err != nil {
		return nil, reserveError(err)
	}
	if version := projection.GetResourceVersion(); version != "" {
		obj.SetResourceVersion(version)
	}
	if owners != nil {
		if err := owners.Restore(s.served, s.sub, obj, projection); err != nil {
			return nil, err
		}
	}
	return obj, nil
}
