package rest

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// create makes a new object, or runs an action.
func (s *scope) create() error {
	if s.sub != nil {
		return s.act()
	}
	if s.def.CreateOn != "" {
		return s.createOn()
	}
	obj, err := s.decodeNew(s.decodeBody)
	if err != nil {
		return err
	}
	if s.def.Answer != nil {
		if obj, err = s.updateManagedFields(nil, obj); err != nil {
			return err
		}
		a, err := s.admit(admission.Create, obj, nil, s.createOptions())
		if err == nil {
			err = s.validateAdmission(a, obj)
		}
		if err != nil {
			return err
		}
		answer, err := s.def.Answer(s.ctx(), obj)
		if err != nil {
			return err
		}
		return s.respondObject(http.StatusCreated, answer)
	}
	s.span.Event(aboutToStore)
	rec, obj, err := s.insertNamed(obj)
	s.noteStored(err)
	if err != nil {
		return err
	}
	if rec == nil {
		return s.respondObject(http.StatusCreated, obj)
	}
	return s.respondWritten(http.StatusCreated, rec, obj)
}

// decodeNew returns the object that was sent, without what only the server may say of a
// new one.
func (s *scope) decodeNew(decode func() (resource.Object, error)) (resource.Object, error) {
	obj, err := decode()
	if err != nil {
		return nil, err
	}
	wipeMeta(obj)
	if err := s.checkBodyNamespace(obj); err != nil {
		return nil, err
	}
	s.dropDuplicateOwners(obj, false)
	return obj, nil
}

// nameAttempts is how often a name is generated anew that somebody has already.
const nameAttempts = 8

// insertNamed inserts an object, under another name if one was generated that
// there is.
func (s *scope) insertNamed(obj resource.Object) (*store.Record, resource.Object, error) {
	if obj.GetGenerateName() == "" {
		return s.insert(obj)
	}
	attempts := 1
	if obj.GetName() == "" {
		attempts = nameAttempts
	}
	for {
		if attempts--; obj.GetName() == "" {
			s.req.Name = "" // not that of an attempt before: plugins see the name that is stored
		}
		rec, done, err := s.insert(obj)
		if taken := errors.Is(err, storage.ErrExists) || apierrors.IsAlreadyExists(err); taken && attempts > 0 {
			if obj, err = s.decodeNew(s.decodeSent); err == nil {
				continue
			}
		} else if taken {
			err = apierrors.NewGenerateNameConflict(s.groupResource(), s.req.Name, 1)
		}
		return rec, done, err
	}
}

// insert completes, validates and stores a new object. In a dry run there is no
// record.
func (s *scope) insert(obj resource.Object) (rec *store.Record, _ resource.Object, err error) {
	if err := s.checkEncodable(obj); err != nil {
		return nil, nil, err
	}
	version := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	st := s.strategy()
	if s.req.Verb == request.Create { // else who sends them owns them, although they go
		obj.SetDeletionTimestamp(nil)
		obj.SetDeletionGracePeriodSeconds(nil)
	}
	if obj, err = s.updateManagedFields(nil, obj); err != nil {
		return nil, nil, err
	}
	if s.req.Name == "" {
		s.req.Name = obj.GetName()
	}
	admitted, err := s.admit(admission.Create, obj, nil, s.createOptions())
	if err != nil {
		return nil, nil, err
	}
	ended := resource.NotWritten
	defer func() { admitted.End(ended) }()
	s.setNewMetadata(obj)
	s.req.Name = obj.GetName()
	if st.PrepareCreate != nil {
		st.PrepareCreate(s.ctx(), obj)
		s.req.Name = obj.GetName() // of a LimitRange without a name
	}
	if st.Begin != nil {
		end, err := st.Begin(s.ctx(), obj, nil)
		if err != nil {
			return nil, nil, reserveError(err)
		}
		if end != nil {
			defer func() { end(ended) }()
		}
	}
	if err := s.validateNew(obj); err != nil {
		return nil, nil, err
	}
	if err := s.mayCreate(); err != nil {
		return nil, nil, err
	}
	if err := s.validateAdmission(admitted, obj); err != nil {
		return nil, nil, err
	}
	if obj, err = s.toStoredVersion(obj); err != nil {
		return nil, nil, err
	}
	if s.req.DryRun {
		if _, err := s.objects.Get(s.ctx(), s.key(), store.Read{}); err == nil {
			return nil, nil, s.alreadyExists()
		}
		if obj, err = s.asStored(obj); err == nil {
			obj.SetResourceVersion(version) // as that
		}
		return nil, obj, err
	}
	if n, err := strconv.ParseUint(version, 10, 64); err == nil && n != 0 {
		return nil, nil, errBare(errors.New("resourceVersion should not be set on objects to be created"))
	}
	rec, err = s.objects.Create(s.ctx(), s.key(), obj, s.ttl(obj))
	if s.canDropManagedFields(err) {
		obj.SetManagedFields(nil)
		rec, err = s.objects.Create(s.ctx(), s.key(), obj, s.ttl(obj))
	}
	ended = outcome(err)
	if errors.Is(err, storage.ErrExists) {
		err = s.alreadyExists()
	}
	return rec, obj, err
}

// canDropManagedFields reports whether a write that failed with err should be tried
// again without managedFields: the store found the object too large, and who owns which
// field is not what the client has sent. An applied configuration needs its owners.
func (s *scope) canDropManagedFields(err error) bool {
	return errors.Is(err, storage.ErrTooLarge) && !s.applied && !s.noManagedFields
}

// alreadyExists is the error of a create for which there is an object in the way. If that
// is being deleted, the message says so.
func (s *scope) alreadyExists() error {
	if rec, err := s.objects.Get(s.ctx(), s.key(), store.Read{}); err == nil {
		if old, err := s.decode(rec); err == nil && old.GetDeletionTimestamp() != nil {
			going := apierrors.NewAlreadyExists(s.groupResource(), s.req.Name)
			going.ErrStatus.Message = "object is being deleted: " + going.ErrStatus.Message
			return going
		}
	}
	return storage.ErrExists
}

// asStored returns an object as it would be read after a write: a dry run is
// answered like a real one, and storage does not know empty from absent.
func (s *scope) asStored(obj resource.Object) (resource.Object, error) {
	stored, err := wire.EncodeStored(s.def, obj)
	if err != nil {
		return nil, err
	}
	out, err := wire.DecodeStored(s.def, stored)
	if err == nil && obj.GetSelfLink() != "" {
		out.SetSelfLink(obj.GetSelfLink()) // which only the store takes away
	}
	return out, err
}

func (s *scope) ttl(obj resource.Object) time.Duration {
	if s.def.TTL == nil {
		return 0
	}
	return s.def.TTL(obj)
}

// mayCreate asks again if a request that was allowed as another verb creates.
func (s *scope) mayCreate() error {
	if s.h.Authorizer == nil || s.r == nil || s.req.Verb == request.Create {
		return nil
	}
	return authz.Check(s.ctx(), s.h.Authorizer, s.attributesFor(request.Create))
}
