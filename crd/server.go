package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/webhook"
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
	// UpdateStatus changes the status of a definition as the server itself.
	UpdateStatus(ctx context.Context, name string, change func(crd *apiextensions.CustomResourceDefinition) error) error
	// Release is UpdateStatus that may remove finalizers too, and with the last
	// one the definition.
	Release(ctx context.Context, name string, change func(crd *apiextensions.CustomResourceDefinition) error) error
	// DeleteObjects deletes all objects of a resource and returns how many are
	// left, and the revision after which that, or what is left, may have changed.
	DeleteObjects(ctx context.Context, group, resource string) (left int, revision int64, err error)
	// WaitObjects returns when objects of a resource may have changed after a
	// revision.
	WaitObjects(ctx context.Context, group, resource string, revision int64) error
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
	// Publish makes definitions take the place of those with the same names in
	// the catalog, and forgets those that are gone.
	Publish func(put []*resource.Definition, gone []schema.GroupResource) error
	// Webhooks calls the webhooks that convert.
	Webhooks *webhook.Client
	// Metrics measures what takes time; nil does not.
	Metrics measure.Sink
	Logger  *slog.Logger

	schemas schemas

	revision atomic.Int64 // of the state in the catalog

	// mu is held while a state is being brought into the catalog.
	mu      sync.Mutex
	entries map[string]*entry
	// published are the definitions in the catalog, by the names of theirs.
	published map[string]*resource.Definition
}

// entry is a definition that was seen.
type entry struct {
	revision int64
	// names that it has, and in which group.
	group string
	names apiextensions.CustomResourceDefinitionNames
	// of says what the definition below was made of.
	of made
	// definition is what is served, nil if it is not, and source what it reads.
	definition *resource.Definition
	source     *source
	// refused tells that others have names which it wants.
	refused bool
	// unsettled tells that the status has to be written.
	unsettled bool
	// going tells that the definition is being deleted, cleanup that it waits for
	// its objects to be.
	going, cleanup bool
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
		var left []leftover
		// A definition that somebody has written must not end the server.
		err := protect.Call(func() (err error) {
			if err = s.Sync(ctx); err == nil {
				left, err = s.settle(ctx)
			}
			return err
		})
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
		s.wait(ctx, s.revision.Load(), left)
	}
}

// wait returns when definitions may have changed after a revision, or objects
// that are left of one that goes.
func (s *Server) wait(ctx context.Context, revision int64, left []leftover) {
	ctx, cancel := context.WithCancel(ctx)
	var waits sync.WaitGroup
	for _, l := range left {
		waits.Go(func() {
			defer cancel()
			if err := s.Store.WaitObjects(ctx, l.group, l.resource, l.revision); err != nil && ctx.Err() == nil {
				s.Logger.Warn("objects of a definition that goes cannot be watched", "resource", l.resource, "group", l.group, "error", err)
				select { // it may pass
				case <-ctx.Done():
				case <-time.After(retryAfter):
				}
			}
		})
	}
	if err := s.Store.Wait(ctx, revision); err != nil && ctx.Err() == nil {
		s.Logger.Warn("custom resource definitions cannot be watched", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
	cancel()
	waits.Wait()
}

// retryAfter is how long a failed watch is left alone.
const retryAfter = time.Second

// Revision returns the revision of the definitions in the catalog.
func (s *Server) Revision() int64 { return s.revision.Load() }

// Sync brings everything that is acknowledged by now into the catalog.
func (s *Server) Sync(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.revision.Load()
	stored, revision, changed, err := s.Store.Definitions(ctx, seen)
	if err != nil {
		return err
	}
	if !changed {
		s.revision.Store(max(seen, revision))
		return nil
	}
	s.enter(stored)
	// Who can use a resource finds that its definition says so: the status comes
	// first. Requests wait for what is being done here.
	for name, e := range s.entries {
		if !e.unsettled {
			continue
		}
		// Not for long: what a write waits for may itself wait for this.
		bounded, cancel := context.WithTimeout(ctx, statusWithin)
		err := s.settleStatus(bounded, name, s.takenFrom)
		cancel()
		if err != nil {
			s.Logger.Warn("status of a custom resource definition could not be written", "name", name, "error", err)
			continue
		}
		e.unsettled = false
	}
	if err := s.publish(); err != nil {
		return err
	}
	s.revision.Store(revision)
	return nil
}

// enter takes over a state.
func (s *Server) enter(stored []Stored) {
	if s.entries == nil {
		s.entries = map[string]*entry{}
	}
	freed := map[string]bool{} // groups in which names have become free
	there := make(map[string]bool, len(stored))
	for i := range stored {
		there[stored[i].Name] = true
	}
	for name, e := range s.entries {
		if !there[name] {
			freed[e.group] = true
			delete(s.entries, name)
		}
	}
	// All come in before any is decided on: names that one was given are not for
	// another, whichever is looked at first.
	var decide []decision
	for i := range stored {
		rec := &stored[i]
		old := s.entries[rec.Name]
		if old != nil && old.revision == rec.Revision {
			continue
		}
		crd, err := outline(rec.JSON)
		if err != nil {
			s.Logger.Error("custom resource definition cannot be decoded", "name", rec.Name, "error", err)
			continue
		}
		decide = append(decide, decision{crd, rec, old})
		if old == nil {
			s.entries[rec.Name] = &entry{group: crd.Spec.Group, names: crd.Status.AcceptedNames}
		}
	}
	for _, d := range decide {
		s.decide(d, freed)
	}
	// Names that have become free are for those who could not have them.
	for i := 0; len(freed) > 0 && i < len(stored); i++ {
		e := s.entries[stored[i].Name]
		if e == nil || !e.refused || !freed[e.group] {
			continue
		}
		if crd, err := outline(stored[i].JSON); err == nil {
			s.decide(decision{crd, &stored[i], e}, freed)
		}
	}
}

// decision is a definition that is to be decided on, and what it was before.
type decision struct {
	crd *apiextensions.CustomResourceDefinition
	rec *Stored
	old *entry // nil if it is new
}

func (s *Server) decide(d decision, freed map[string]bool) {
	e := s.entry(d.crd, d.rec, d.old)
	if d.old != nil && !reflect.DeepEqual(d.old.names, e.names) {
		freed[e.group] = true
	}
	s.entries[d.rec.Name] = e
}

// entry decides what becomes of a definition.
func (s *Server) entry(crd *apiextensions.CustomResourceDefinition, rec *Stored, old *entry) *entry {
	e := &entry{revision: rec.Revision, group: crd.Spec.Group, going: !crd.DeletionTimestamp.IsZero()}
	e.cleanup = e.going && slices.Contains(crd.Finalizers, finalizer)
	settled := *crd // without a copy of the schemas, which nobody changes
	settled.Status = *crd.Status.DeepCopy()
	serve := s.takenFrom(crd).settle(&settled, metav1.Now())
	e.unsettled = !equalStatus(&settled.Status, &crd.Status)
	e.names = settled.Status.AcceptedNames
	e.refused = !isTrue(&settled.Status, apiextensions.NamesAccepted)
	if !serve {
		return e
	}
	e.of = made{crd.UID, crd.Generation, e.going, fmt.Sprint(e.names)}
	if old != nil && old.definition != nil && old.of == e.of {
		e.definition, e.source = old.definition, old.source
		e.source.set(rec.JSON)
		return e
	}
	e.source = new(source)
	e.source.set(rec.JSON)
	def := s.define(&settled, e.source)
	def.Epoch = rec.Revision
	e.definition = &def
	return e
}

// publish brings the catalog up to date.
func (s *Server) publish() error {
	var put []*resource.Definition
	var gone []schema.GroupResource
	next := make(map[string]*resource.Definition, len(s.entries))
	for name, e := range s.entries {
		if e.definition == nil {
			continue
		}
		next[name] = e.definition
		if s.published[name] != e.definition {
			put = append(put, e.definition)
		}
	}
	for name, was := range s.published {
		if is := next[name]; is == nil || is.Resource != was.Resource {
			gone = append(gone, schema.GroupResource{Group: was.Group, Resource: was.Resource})
		}
	}
	if len(put) == 0 && len(gone) == 0 {
		return nil
	}
	if err := s.Publish(put, gone); err != nil {
		return err
	}
	s.published = next
	return nil
}

// statusWithin is how long a status may take to be written while others wait.
const statusWithin = time.Second

// settleStatus writes the status of a definition as it should be.
func (s *Server) settleStatus(ctx context.Context, name string, names func(*apiextensions.CustomResourceDefinition) taken) error {
	err := s.Store.UpdateStatus(ctx, name, func(crd *apiextensions.CustomResourceDefinition) error {
		names(crd).settle(crd, metav1.NewTime(request.From(ctx).Received))
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// takenFrom returns the names that a definition cannot have. The lock is held.
func (s *Server) takenFrom(crd *apiextensions.CustomResourceDefinition) taken {
	var names taken
	for name, other := range s.entries {
		if name != crd.Name && other.group == crd.Spec.Group {
			names = append(names, &other.names)
		}
	}
	return names
}

func equalStatus(a, b *apiextensions.CustomResourceDefinitionStatus) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && string(x) == string(y)
}
