package rest

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// update replaces an object, or the part of it that the path names.
func (s *scope) update() error {
	if s.sub != nil && s.sub.Projection != nil {
		return s.updateProjection()
	}
	first, err := s.decodeNamed(s.decodeBody)
	if err != nil {
		return err
	}
	next := func() (resource.Object, error) {
		obj := first
		if first = nil; obj == nil { // the attempt before may have changed it
			return s.decodeNamed(s.decodeSent)
		}
		return obj, nil
	}
	s.span.Event(aboutToStore)
	return s.changeOrCreate(func() error {
		return s.changeObject(func(resource.Object) (resource.Object, error) { return next() }, next)
	})
}

// decodeNamed returns the object that was sent to replace the one that the path names.
func (s *scope) decodeNamed(decode func() (resource.Object, error)) (resource.Object, error) {
	obj, err := decode()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(s.checkBodyName(obj), s.checkName()); err != nil {
		return nil, err
	}
	s.dropDuplicateOwners(obj, false)
	return obj, nil
}

// createAttempts bounds how often a write that creates what it does not find begins
// again, because others create and delete the object meanwhile.
const createAttempts = 5

// changeOrCreate calls a write that changes an object or, if there is none, creates it.
// If somebody else creates it in between, the write begins again as a change: two
// managers that apply one object at the same time both succeed.
func (s *scope) changeOrCreate(write func() error) error {
	for attempt := 1; ; attempt++ {
		err := write()
		exists := errors.Is(err, storage.ErrExists) || apierrors.IsAlreadyExists(err)
		if !exists || attempt == createAttempts {
			return err
		}
	}
}

// errDeleteNow ends an update after which nothing holds the object any more.
var errDeleteNow = errors.New("the last finalizer is gone")

// reservation is what a strategy and plugins have begun for one attempt to
// write.
type reservation struct {
	end      func(resource.Outcome)
	admitted *admission.Attributes
	// sent is whether the store was given the new object. An error before that, such as
	// a webhook that does not answer in time, leaves no doubt that nothing was written.
	sent bool
}

// finishWrite ends the reservation, once, of a write for which the store returned err.
func (r *reservation) finishWrite(err error) {
	if !r.sent {
		r.finish(resource.NotWritten)
		return
	}
	r.finish(outcome(err))
}

// finish ends the reservation, once.
func (r *reservation) finish(o resource.Outcome) {
	r.sent = false
	if r.end != nil {
		r.end(o)
		r.end = nil
	}
	r.admitted.End(o)
	r.admitted = nil
}

// outcome returns what became of a write for which the store returned err.
func outcome(err error) resource.Outcome {
	switch {
	case err == nil:
		return resource.Written
	case errors.Is(err, storage.ErrUncertain), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return resource.Unknown
	}
	return resource.NotWritten
}

// changeObject replaces an object by what next returns, which must not change the one it
// is given. create makes a new one if there is none and the kind allows
// that.
func (s *scope) changeObject(next func(live resource.Object) (resource.Object, error), create func() (resource.Object, error)) error {
	var result, seen resource.Object
	var reserved reservation
	defer func() { reserved.finish(resource.NotWritten) }()
	rec, err := s.objects.Update(s.ctx(), s.key(), func(current *store.Record, live resource.Object) (resource.Object, time.Duration, error) {
		reserved.finish(resource.NotWritten) // of an attempt that lost
		live.SetResourceVersion(wire.RevisionString(current.Revision))
		obj, live, err := s.nextState(live, next, &reserved)
		if err != nil {
			return nil, 0, err
		}
		result, seen = obj, live
		if s.canFinishDeletion(obj) {
			return nil, 0, errDeleteNow
		}
		if s.req.DryRun {
			return nil, 0, errDryRun
		}
		reserved.sent = true
		return obj, s.ttl(obj), nil
	})
	if s.canDropManagedFields(err) {
		s.noManagedFields = true
		reserved.finish(resource.NotWritten)
		return s.changeObject(next, create)
	}
	s.noteStored(err)
	if !errors.Is(err, errDeleteNow) {
		reserved.finishWrite(err)
	}
	switch {
	case err == nil:
		return s.respondWritten(http.StatusOK, rec, result)
	case errors.Is(err, errDryRun):
		if result, err = s.asStored(result); err != nil {
			return err
		}
		result.SetResourceVersion(seen.GetResourceVersion())
		return s.respondObject(http.StatusOK, result)
	case errors.Is(err, errDeleteNow):
		if !s.req.DryRun {
			revision := seen.GetResourceVersion()
			freed, err := s.beginDelete(seen)
			if err != nil {
				return err
			}
			_, err = s.objects.Delete(s.ctx(), s.key(), func(current *store.Record) error {
				if wire.RevisionString(current.Revision) != revision {
					return storage.ErrConflict
				}
				return nil
			})
			freed(outcome(err))
			if errors.Is(err, storage.ErrConflict) {
				reserved.finish(resource.NotWritten)
				return s.changeObject(next, create) // on what it has become
			}
			if err != nil && !errors.Is(err, storage.ErrNotFound) {
				return err
			}
		}
		result.SetResourceVersion(seen.GetResourceVersion())
		return s.respondObject(http.StatusOK, result)
	case errors.Is(err, storage.ErrNotFound) && create != nil && s.strategy().CreateOnUpdate:
		obj, err := create()
		if err != nil {
			return err
		}
		return s.createInstead(obj)
	}
	return err
}

var errDryRun = errors.New("dry run")

// nextState returns the next state of a stored object, in the hub version, and the current
// one in the version in which the write works on it.
func (s *scope) nextState(stored resource.Object, next func(live resource.Object) (resource.Object, error), reserved *reservation) (obj, live resource.Object, err error) {
	if live, err = s.toWriteVersion(stored); err != nil {
		return nil, nil, writeConversionError(err)
	}
	if s.req.Verb == request.Patch {
		s.span.Event("About to apply patch")
	}
	if obj, err = next(live); err != nil {
		return nil, nil, err
	}
	if obj, err = s.prepareChange(obj, live, reserved); err != nil {
		return nil, nil, err
	}
	if s.noManagedFields {
		obj.SetManagedFields(nil)
	}
	obj, err = s.toStoredVersion(obj)
	return obj, live, err
}

// createInstead creates an object that an update did not find.
func (s *scope) createInstead(obj resource.Object) error {
	if uid := obj.GetUID(); uid != "" {
		return s.sameUID(s.def.HubVersion().New(), uid)
	}
	if version := obj.GetResourceVersion(); version != "" {
		if _, err := strconv.ParseUint(version, 10, 64); err != nil {
			return errBare(err)
		}
	}
	version := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	rec, obj, err := s.insert(obj)
	if err != nil {
		return err
	}
	if rec == nil {
		obj.SetResourceVersion(version) // which a dry run does not change
		return s.respondObject(http.StatusCreated, obj)
	}
	return s.respondWritten(http.StatusCreated, rec, obj)
}

// prepareChange turns a requested state into the next one: what the request may
// not change stays, and what is wrong is refused. What the strategy has begun
// is to be ended.
func (s *scope) prepareChange(obj, live resource.Object, reserved *reservation) (resource.Object, error) {
	st := s.strategy()
	replaces := s.req.Verb == request.Update
	if uid := obj.GetUID(); uid != "" && replaces {
		if err := s.sameUID(live, uid); err != nil {
			return nil, err
		}
	}
	if err := s.checkEncodable(obj); err != nil {
		return nil, err
	}
	// Before the strategy: what the server fills in belongs to nobody. A
	// projection has been seen to already.
	var err error
	var admitted *admission.Attributes
	if s.sub == nil || s.sub.Projection == nil {
		if obj, err = s.updateManagedFields(live, obj); err != nil {
			return nil, err
		}
		if s.req.Verb == request.Patch {
			s.span.Event("About to check admission control")
		}
		if admitted, err = s.admit(admission.Update, obj, live, s.updateOptions()); err != nil {
			return nil, err
		}
		reserved.admitted = admitted
	}
	s.dropDuplicateOwners(obj, true)
	version := obj.GetResourceVersion()
	if version == "" || version == "0" {
		if st.RequireVersion && !s.served.Version.AnyRevision {
			return nil, problems.Invalid(schema.GroupKind{Group: s.def.Group, Kind: s.def.Resource}, obj.GetName(), field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
		}
	} else if _, err := strconv.ParseUint(version, 10, 64); err != nil {
		return nil, errBare(err)
	} else if version != live.GetResourceVersion() {
		return nil, apierrors.NewConflict(s.groupResource(), s.req.Name, errModified)
	}
	obj.SetGeneration(live.GetGeneration())
	if obj.GetUID() == "" {
		obj.SetUID(live.GetUID())
	}
	// A write cannot undo these. It cannot begin a deletion either, but that is
	// for the validation to say.
	obj.SetCreationTimestamp(live.GetCreationTimestamp())
	if deleted := live.GetDeletionTimestamp(); deleted != nil {
		obj.SetDeletionTimestamp(deleted)
	}
	if obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(live.GetDeletionGracePeriodSeconds())
	}
	if st.PrepareUpdate != nil {
		st.PrepareUpdate(s.ctx(), obj, live)
	}
	if g := st.Generation; g != nil && g(obj, live) {
		obj.SetGeneration(live.GetGeneration() + 1)
	}
	obj.SetResourceVersion(live.GetResourceVersion())
	if st.Begin != nil {
		if reserved.end, err = st.Begin(s.ctx(), obj, live); err != nil {
			return nil, reserveError(err)
		}
	}
	if err := s.validateChange(obj, live); err != nil {
		return nil, err
	}
	if err := s.validateAdmission(admitted, obj); err != nil {
		return nil, err
	}
	if s.h.Owners != nil {
		s.h.Owners.KeepTimes(obj, live)
	}
	return obj, nil
}

// canFinishDeletion reports whether an object is being deleted and nothing holds it any
// more.
func (s *scope) canFinishDeletion(obj resource.Object) bool {
	if obj.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 {
		return false
	}
	if held := s.def.Strategy.Held; held != nil && held(obj) {
		return false
	}
	grace := obj.GetDeletionGracePeriodSeconds()
	return grace == nil || *grace == 0
}
