package rest

import (
	"errors"
	"net/http"
	"time"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// create makes a new object, or runs an action.
func (s *scope) create() error {
	if err := s.writeOptions("CreateOptions"); err != nil {
		return err
	}
	if s.sub != nil {
		return s.act()
	}
	if s.def.CreateOn != "" {
		return s.createOn()
	}
	obj, err := s.decodeBody("CreateOptions")
	if err != nil {
		return err
	}
	if err := s.namespaceFits(obj); err != nil {
		return err
	}
	if s.def.Answer != nil {
		answer, err := s.def.Answer(s.ctx(), obj)
		if err != nil {
			return err
		}
		return s.respondObject(http.StatusCreated, answer)
	}
	rec, obj, err := s.insert(obj)
	if err != nil {
		return err
	}
	if rec == nil {
		return s.respondObject(http.StatusCreated, obj)
	}
	return s.respond(http.StatusCreated, rec)
}

// insert completes, validates and stores a new object. In a dry run there is no
// record.
func (s *scope) insert(obj resource.Object) (rec *store.Record, _ resource.Object, err error) {
	if obj.GetResourceVersion() != "" && obj.GetResourceVersion() != "0" {
		return nil, nil, errBare(errors.New("resourceVersion should not be set on objects to be created"))
	}
	st := s.strategy()
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	if obj, err = s.own(nil, obj); err != nil {
		return nil, nil, err
	}
	s.newMeta(obj)
	s.req.Name = obj.GetName()
	if st.PrepareCreate != nil {
		st.PrepareCreate(s.ctx(), obj)
	}
	committed := false
	if st.Begin != nil {
		end, err := st.Begin(s.ctx(), obj, nil)
		if err != nil {
			return nil, nil, begun(err)
		}
		if end != nil {
			defer func() { end(committed) }()
		}
	}
	if err := s.validateNew(obj); err != nil {
		return nil, nil, err
	}
	if s.req.DryRun {
		if _, err := s.objects.Get(s.ctx(), s.key(), store.Read{}); err == nil {
			return nil, nil, storage.ErrExists
		}
		return nil, obj, nil
	}
	rec, err = s.objects.Create(s.ctx(), s.key(), obj, s.ttl(obj))
	committed = err == nil || errors.Is(err, storage.ErrUncertain)
	return rec, obj, err
}

func (s *scope) ttl(obj resource.Object) time.Duration {
	if s.def.TTL == nil {
		return 0
	}
	return s.def.TTL(obj)
}
