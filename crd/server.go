package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/resource"
)

// Store is what a Server needs of the objects.
type Store interface {
	// Definitions returns all definitions as they are stored, and the revision
	// of that state, which is at least the one given; 0 asks for everything that
	// is acknowledged by now. It returns nothing if the state is the one of the
	// revision given as seen.
	Definitions(ctx context.Context, seen int64) (stored []Stored, revision int64, changed bool, err error)
	// Wait returns when definitions may have changed after a revision.
	Wait(ctx context.Context, revision int64) error
	// UpdateStatus changes a definition as the server itself.
	UpdateStatus(ctx context.Context, name string, change func(crd *apiextensions.CustomResourceDefinition) error) error
	// Finish removes the finalizer of a definition whose objects are gone.
	Finish(ctx context.Context, name string, finalizer string) error
	// DeleteObjects deletes all objects of a resource and returns how many are
	// left.
	DeleteObjects(ctx context.Context, group, resource string) (left int, err error)
}

// Stored is one stored definition.
type Stored struct {
	Name     string
	Revision int64
	// JSON of the definition.
	JSON []byte
}

// Server follows the definitions of custom resources and keeps the catalog
// current.
type Server struct {
	Store Store
	// Publish makes groups take the place of those with the same names in the
	// catalog, and forgets the resources that are served no more.
	Publish func(groups []resource.Group) error
	// Webhooks makes the converter of a definition that has a webhook.
	Webhooks func(crd *apiextensions.CustomResourceDefinition) converter
	Logger   *slog.Logger

	schemas schemas

	// mu is held while a state is being brought into the catalog.
	mu       sync.Mutex
	revision int64 // of the state in the catalog
	entries  map[string]*entry
}

// entry is a definition that was seen.
type entry struct {
	revision int64
	// names that it has, and in which group.
	group string
	names apiextensions.CustomResourceDefinitionNames
	// of says what the definition below was made of.
	of made
	// definition is what is served, nil if it is not.
	definition *resource.Definition
	// unsettled tells that the status has to be written.
	unsettled bool
	// going tells that the definition is being deleted.
	going bool
}

// made identifies what a definition is made of: as long as it is the same, the
// definition stays, and with it the watches and the cache.
type made struct {
	uid        types.UID
	generation int64
	going      bool
	names      string
}

// Run keeps the catalog and the status of definitions current until ctx ends.
func (s *Server) Run(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		err := s.Sync(ctx)
		if err == nil {
			err = s.settle(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("custom resource definitions could not be brought up to date", "error", err)
			wait = min(max(2*wait, 10*time.Millisecond), 5*time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			continue
		}
		wait = 0
		s.mu.Lock()
		revision := s.revision
		s.mu.Unlock()
		if s.Store.Wait(ctx, revision) != nil {
			return
		}
	}
}

// Sync brings everything that is acknowledged by now into the catalog.
func (s *Server) Sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, revision, changed, err := s.Store.Definitions(ctx, s.revision)
	if err != nil {
		return err
	}
	if !changed {
		s.revision = max(s.revision, revision)
		return nil
	}
	touched := s.enter(stored)
	if len(touched) > 0 {
		if err := s.publish(touched); err != nil {
			return err
		}
	}
	s.revision = revision
	return nil
}

// enter takes over a state and returns the groups that it changes.
func (s *Server) enter(stored []Stored) map[string]bool {
	if s.entries == nil {
		s.entries = map[string]*entry{}
	}
	touched := map[string]bool{}
	there := make(map[string]bool, len(stored))
	for i := range stored {
		there[stored[i].Name] = true
	}
	for name, e := range s.entries {
		if !there[name] {
			touched[e.group] = true
			delete(s.entries, name)
		}
	}
	for i := range stored {
		rec := &stored[i]
		old := s.entries[rec.Name]
		if old != nil && old.revision == rec.Revision {
			continue
		}
		var crd apiextensions.CustomResourceDefinition
		if err := json.Unmarshal(rec.JSON, &crd); err != nil {
			s.Logger.Error("custom resource definition cannot be decoded", "name", rec.Name, "error", err)
			continue
		}
		e := s.entry(&crd, rec, old)
		if old == nil || old.definition != e.definition {
			touched[crd.Spec.Group] = true
		}
		s.entries[rec.Name] = e
	}
	return touched
}

// entry decides what becomes of a definition.
func (s *Server) entry(crd *apiextensions.CustomResourceDefinition, rec *Stored, old *entry) *entry {
	e := &entry{revision: rec.Revision, group: crd.Spec.Group, going: !crd.DeletionTimestamp.IsZero()}
	names := newTaken()
	for name, other := range s.entries {
		if name != crd.Name && other.group == crd.Spec.Group {
			names.take(&other.names)
		}
	}
	settled := crd.DeepCopy()
	serve := names.settle(settled, metav1.Now())
	e.unsettled = !equalStatus(&settled.Status, &crd.Status)
	e.names = settled.Status.AcceptedNames
	if !serve {
		return e
	}
	e.of = made{crd.UID, crd.Generation, e.going, fmt.Sprint(e.names)}
	if old != nil && old.definition != nil && old.of == e.of {
		e.definition = old.definition
		return e
	}
	def := s.define(settled, rec.JSON)
	def.Epoch = rec.Revision
	e.definition = &def
	return e
}

// publish puts groups into the catalog as they are now.
func (s *Server) publish(touched map[string]bool) error {
	var groups []resource.Group
	for name := range touched {
		g := resource.Group{Name: name}
		for _, e := range s.entries {
			if e.group == name && e.definition != nil {
				g.Resources = append(g.Resources, *e.definition)
			}
		}
		slices.SortFunc(g.Resources, func(a, b resource.Definition) int {
			if a.Resource < b.Resource {
				return -1
			}
			return 1
		})
		groups = append(groups, g)
	}
	return s.Publish(groups)
}

// settle writes the status of definitions for which it has changed, and
// removes the objects of those that go. What is served says so only now.
func (s *Server) settle(ctx context.Context) error {
	s.mu.Lock()
	var unsettled, going []string
	for name, e := range s.entries {
		if e.unsettled {
			unsettled = append(unsettled, name)
		}
		if e.going {
			going = append(going, name)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, name := range unsettled {
		errs = append(errs, s.settleOne(ctx, name))
	}
	for _, name := range going {
		errs = append(errs, s.finish(ctx, name))
	}
	return errors.Join(errs...)
}

func (s *Server) settleOne(ctx context.Context, name string) error {
	err := s.Store.UpdateStatus(ctx, name, func(crd *apiextensions.CustomResourceDefinition) error {
		names := newTaken()
		s.mu.Lock()
		for other, e := range s.entries {
			if other != name && e.group == crd.Spec.Group {
				names.take(&e.names)
			}
		}
		s.mu.Unlock()
		names.settle(crd, metav1.Now())
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// finish removes the objects of a definition that goes, and then lets go of
// it. Objects with finalizers may take long: it is tried again when anything
// changes.
func (s *Server) finish(ctx context.Context, name string) error {
	s.mu.Lock()
	e := s.entries[name]
	s.mu.Unlock()
	if e == nil {
		return nil
	}
	if e.names.Plural != "" {
		left, err := s.Store.DeleteObjects(ctx, e.group, e.names.Plural)
		if err != nil {
			return fmt.Errorf("objects of %s: %w", name, err)
		}
		if left > 0 {
			return fmt.Errorf("%d objects of %s are left", left, name)
		}
	}
	err := s.Store.Finish(ctx, name, finalizer)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func equalStatus(a, b *apiextensions.CustomResourceDefinitionStatus) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}

// errTerminating refuses creates while the objects of a definition are removed.
func errTerminating(def *resource.Definition, verb string) error {
	if verb != "create" {
		return nil
	}
	err := apierrors.NewMethodNotSupported(schema.GroupResource{Group: def.Group, Resource: def.Resource}, verb)
	err.ErrStatus.Code = http.StatusMethodNotAllowed
	err.ErrStatus.Message = verb + " not allowed while custom resource definition is terminating"
	return err
}
