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

// Store is what Server needs from the store of objects.
type Store interface {
	// Definitions returns all stored definitions and the revision of that state. It
	// includes every write that was acknowledged before the call. changed is false,
	// and nothing is returned, if the state is still that of revision seen.
	Definitions(ctx context.Context, seen int64) (stored []Stored, revision int64, changed bool, err error)
	// Wait returns when definitions may have changed after a revision.
	Wait(ctx context.Context, revision int64) error
	// UpdateStatus changes the status of a definition as the server itself.
	UpdateStatus(ctx context.Context, name string, change func(crd *apiextensions.CustomResourceDefinition) error) error
	// Release is UpdateStatus that may remove finalizers too, and with the last
	// one the definition.
	Release(ctx context.Context, name string, change func(crd *apiextensions.CustomResourceDefinition) error) error
	// DeleteObjects deletes all objects of a resource. It returns how many are left,
	// and the revision of that count, for WaitObjects.
	DeleteObjects(ctx context.Context, group, resource string) (left int, revision int64, err error)
	// WaitObjects returns when objects of a resource may have changed after a
	// revision.
	WaitObjects(ctx context.Context, group, resource string, revision int64) error
}

// Stored is a stored definition.
type Stored struct {
	Name     string
	Revision int64
	// JSON of the definition.
	JSON []byte
}

// Server follows the stored CustomResourceDefinitions, writes their status and publishes
// their Definitions.
type Server struct {
	Store Store
	// Publish adds or replaces definitions in the catalog (put), and removes some
	// (gone).
	Publish func(put []*resource.Definition, gone []schema.GroupResource) error
	// BuiltIn reports whether a resource cannot be a custom one in a version, because
	// that belongs to built-in kinds; nil if there are none. Such versions are not
	// served: a definition must not be able to take the place of a built-in kind, whose
	// objects it would change and delete.
	BuiltIn func(group, version, resource string) bool
	// Webhooks calls conversion webhooks.
	Webhooks *webhook.Client
	// Metrics may be nil.
	Metrics measure.Sink
	Logger  *slog.Logger
	// StoreCBOR stores custom resources in CBOR, not JSON.
	StoreCBOR bool
	// MaxSchemas is how many bytes compiled schemas may take, of which the rules of one may have
	// half; 0 is 128 MiB.
	MaxSchemas int64

	schemas schemas

	revision atomic.Int64 // of the definitions that are published

	// mu is held while Sync runs.
	mu      sync.Mutex
	entries map[string]*entry
	// published are the definitions in the catalog, by the name of the CRD.
	published map[string]*resource.Definition
}

// entry is what is known of one CustomResourceDefinition. Guarded by Server.mu.
type entry struct {
	revision int64
	// group, and the accepted names in it.
	group string
	names apiextensions.CustomResourceDefinitionNames
	// of identifies what definition was made from.
	of basis
	// definition is nil if the resource is not served; source is what it reads.
	definition *resource.Definition
	source     *source
	// refused says that another definition has a name that this one wants.
	refused bool
	// statusPending says that the status has yet to be written.
	statusPending bool
	// deleting says that the CRD is being deleted, cleanup that it has the finalizer and
	// waits for its objects to be deleted.
	deleting, cleanup bool
}

// basis identifies what a Definition was made from. While it is equal, the Definition is
// kept, and with it the watches and the watch cache of the resource. That a definition is being
// deleted is not part of it: who watches the objects must see them go.
type basis struct {
	uid        types.UID
	generation int64
	names      string
}

// Run keeps the catalog and the statuses up to date until ctx ends.
func (s *Server) Run(ctx context.Context) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		var left []remaining
		// A panic on a definition must not end the process.
		err := protect.Call(func() (err error) {
			if err = s.Sync(ctx); err == nil {
				left, err = s.finishPending(ctx)
			}
			return err
		})
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("CustomResourceDefinitions could not be synchronized; retrying", "error", err)
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

// wait returns when definitions may have changed after a revision, or objects that are
// left of definitions being deleted.
func (s *Server) wait(ctx context.Context, revision int64, left []remaining) {
	ctx, cancel := context.WithCancel(ctx)
	var waits sync.WaitGroup
	for _, l := range left {
		waits.Go(func() {
			defer cancel()
			if err := s.Store.WaitObjects(ctx, l.group, l.resource, l.revision); err != nil && ctx.Err() == nil {
				s.Logger.Warn("custom objects of a CustomResourceDefinition being deleted cannot be watched; retrying", "resource", l.resource, "group", l.group, "error", err)
				select { // it may pass
				case <-ctx.Done():
				case <-time.After(retryAfter):
				}
			}
		})
	}
	if err := s.Store.Wait(ctx, revision); err != nil && ctx.Err() == nil {
		s.Logger.Warn("CustomResourceDefinitions cannot be watched; retrying", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retryAfter):
		}
	}
	cancel()
	waits.Wait()
}

// retryAfter is the delay after a failed watch.
const retryAfter = time.Second

// Revision returns the revision of the definitions that are published.
func (s *Server) Revision() int64 { return s.revision.Load() }

// Sync publishes every definition that was acknowledged before the call.
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
	s.updateEntries(stored)
	// The status is written before the resource is published, so that a client that
	// can use the resource finds Established. Requests wait for Sync.
	for name, e := range s.entries {
		if !e.statusPending {
			continue
		}
		// Bounded: an admission webhook for the status may send requests that wait
		// for this Sync.
		bounded, cancel := context.WithTimeout(ctx, statusWithin)
		err := s.writeStatus(bounded, name, s.takenFrom)
		cancel()
		if err != nil {
			s.Logger.Warn("status of a CustomResourceDefinition could not be written; retrying", "name", name, "error", err)
			continue
		}
		e.statusPending = false
	}
	if err := s.publish(); err != nil {
		return err
	}
	s.revision.Store(revision)
	return nil
}

// updateEntries updates the entries to a new state of the stored definitions.
func (s *Server) updateEntries(stored []Stored) {
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
	// First all known names are entered, then decisions are made: a name that was
	// given to one definition is not given to another, whatever the order.
	var decide []decision
	for i := range stored {
		rec := &stored[i]
		old := s.entries[rec.Name]
		if old != nil && old.revision == rec.Revision {
			continue
		}
		crd, err := outline(rec.JSON)
		if err != nil {
			s.Logger.Error("CustomResourceDefinition cannot be decoded; its last state that could be is kept", "name", rec.Name, "error", err)
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
	// Freed names go to definitions that were refused them.
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

// decision is a definition whose names are to be decided, and its entry before.
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

// entry makes the entry of a definition.
func (s *Server) entry(crd *apiextensions.CustomResourceDefinition, rec *Stored, old *entry) *entry {
	e := &entry{revision: rec.Revision, group: crd.Spec.Group, deleting: !crd.DeletionTimestamp.IsZero()}
	e.cleanup = e.deleting && slices.Contains(crd.Finalizers, finalizer)
	settled := *crd // shallow: the schemas are shared and not changed
	settled.Status = *crd.Status.DeepCopy()
	serve := s.takenFrom(crd).setStatus(&settled, metav1.Now())
	structure := condition(&crd.Status, apiextensions.NonStructuralSchema)
	e.statusPending = !equalStatus(&settled.Status, &crd.Status) || structure == nil && crd.Spec.PreserveUnknownFields ||
		structure != nil && old != nil && old.of.generation != crd.Generation
	e.names = settled.Status.AcceptedNames
	e.refused = !isTrue(&settled.Status, apiextensions.NamesAccepted)
	if !serve {
		return e
	}
	e.of = basis{crd.UID, crd.Generation, fmt.Sprint(e.names)}
	if old != nil && old.definition != nil && old.of == e.of {
		e.definition, e.source = old.definition, old.source
		e.source.set(rec.JSON)
		e.source.deleting.Store(e.deleting)
		return e
	}
	e.source = new(source)
	e.source.set(rec.JSON)
	e.source.deleting.Store(e.deleting)
	def := s.define(&settled, e.source)
	def.Epoch = rec.Revision
	if s.withoutBuiltIn(&def) {
		e.definition = &def
	}
	return e
}

// withoutBuiltIn switches versions off that belong to built-in kinds, and reports
// whether others are left.
func (s *Server) withoutBuiltIn(def *resource.Definition) bool {
	if s.BuiltIn == nil {
		return true
	}
	left := false
	for i := range def.Versions {
		v := &def.Versions[i]
		builtIn := s.BuiltIn(def.Group, v.Name, def.Resource)
		v.Off = v.Off || builtIn
		left = left || !builtIn
	}
	return left
}

// publish updates the catalog to the entries.
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
	if err := s.Publish(put, gone); err == nil {
		s.published = next
		return nil
	}
	return s.publishEach(gone, next)
}

// publishEach publishes definitions one at a time, because one of them cannot be
// published: it must not keep the others from being served.
func (s *Server) publishEach(gone []schema.GroupResource, next map[string]*resource.Definition) error {
	if err := s.Publish(nil, gone); err != nil {
		return err
	}
	for name, def := range next {
		if s.published[name] == def {
			continue
		}
		if err := s.Publish([]*resource.Definition{def}, nil); err != nil {
			s.Logger.Error("CustomResourceDefinition cannot be served", "name", name, "error", err)
		}
	}
	s.published = next
	return nil
}

// statusWithin bounds how long Sync, and the requests that wait for it, wait for the
// write of one status.
const statusWithin = time.Second

// writeStatus writes the status of a definition.
func (s *Server) writeStatus(ctx context.Context, name string, names func(*apiextensions.CustomResourceDefinition) taken) error {
	err := s.Store.UpdateStatus(ctx, name, func(crd *apiextensions.CustomResourceDefinition) error {
		now := metav1.NewTime(request.From(ctx).Received)
		names(crd).setStatus(crd, now)
		setStructure(crd, now)
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// takenFrom returns the names of other definitions in the group. The caller holds mu.
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
