package rest

//lint:file-ignore SA1019 clients may still send orphanDependents

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/internal/problems"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/internal/yamltext"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// delete begins, and unless something holds the object finishes, its deletion.
func (s *scope) delete() error {
	opts, err := s.deleteOptions()
	if err != nil {
		return err
	}
	if err := s.checkName(); err != nil {
		return err
	}
	s.span.Event("About to delete object from database")
	if unsafe := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; unsafe != nil && *unsafe {
		return s.discard()
	}
	s.warnOrphans(opts)
	done, err := s.remove(s.key(), opts)
	if err != nil {
		return err
	}
	obj, gone := done.obj, done.gone
	s.span.Event("Object deleted from database")
	code := http.StatusOK
	if !gone && opts.OrphanDependents != nil && !*opts.OrphanDependents {
		code = http.StatusAccepted
	}
	if gone && s.req.DryRun && len(obj.GetFinalizers()) > 0 {
		// It would have had to take these away first, and what that had left is not known:
		// clients get an empty object.
		return s.respondObject(code, s.def.HubVersion().New())
	}
	if gone && !s.def.Strategy.ReturnDeleted && !s.served.Version.ReturnDeleted {
		if err := s.readInclude(); err != nil {
			return err // although the object is gone
		}
		s.respondStatus(code, &metav1.Status{Status: metav1.StatusSuccess, Details: &metav1.StatusDetails{
			Name: obj.GetName(), Group: s.served.GroupVersion.Group, Kind: s.def.Resource, UID: obj.GetUID(),
		}})
		return nil
	}
	return s.respondRemoved(code, done)
}

// respondRemoved answers with an object that is marked for deletion, or that is gone. The delete
// cannot be taken back, so it must not fail: the stored bytes are used where they are small and in
// memory, and if that fails before anything was sent, the object is encoded.
func (s *scope) respondRemoved(code int, done removal) error {
	var err error
	switch rec := done.rec; {
	case rec == nil || rec.StoredSize() > budget.Small || !isInMemory(rec):
		return s.respondObject(code, done.obj)
	case done.marked:
		err = s.respondWritten(code, rec, done.obj)
	case s.served.Unstructured: // to read it again costs more than to encode it
		return s.respondObject(code, done.obj)
	default: // stored by an earlier write, so it is converted and defaulted like any other read
		s.enc.ForWriter = true
		err = s.respond(code, rec)
	}
	if err != nil {
		return s.respondObject(code, done.obj)
	}
	return nil
}

// isInMemory reports whether the stored bytes of a record need not be read again.
func isInMemory(rec *store.Record) bool {
	_, in := rec.InMemory()
	return in
}

// deleteOptions reads the options of a delete from its body or its parameters.
func (s *scope) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	body, err := s.readBody()
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		m, err := s.deleteMedia()
		if err != nil {
			return nil, err
		}
		if err := decodeDeleteOptions(body, m, opts); err != nil {
			return nil, err
		}
		s.auditDeleteOptions(opts)
	} else if err := s.deleteParameters(opts); err != nil {
		return nil, err
	}
	if s.h.NoUnsafeDeletes {
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	if err := validateDelete(opts); err != nil {
		return nil, err
	}
	s.req.DryRun = len(opts.DryRun) > 0
	return opts, nil
}

// warnOrphans tells who does not say what should become of dependents what will.
func (s *scope) warnOrphans(opts *metav1.DeleteOptions) {
	if w := s.def.Strategy.OrphanWarning; w != "" && opts.PropagationPolicy == nil && opts.OrphanDependents == nil {
		s.req.Warn(w)
	}
}

func validateDelete(opts *metav1.DeleteOptions) error {
	if errs := metavalidation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return problems.Invalid(metav1.SchemeGroupVersion.WithKind("DeleteOptions").GroupKind(), "", errs)
	}
	return nil
}

func (s *scope) deleteMedia() (wire.MediaType, error) {
	if s.r.Header.Get("Content-Type") == "" {
		return wire.JSON, nil
	}
	return s.bodyMedia()
}

func decodeDeleteOptions(body []byte, m wire.MediaType, opts *metav1.DeleteOptions) error {
	sent := body
	if m == wire.Protobuf {
		apiVersion, kind, raw, err := openEnvelope(body)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := deleteOptionsKind(schema.FromAPIVersionAndKind(apiVersion, kind), sent); err != nil {
			return err
		}
		if err := opts.Unmarshal(raw); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		return nil
	}
	if m == wire.CBOR {
		got, err := cborKind(body)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := deleteOptionsKind(got, sent); err != nil {
			return err
		}
		if _, err := unmarshalCBOR(body, orWanted(got, metav1.SchemeGroupVersion.WithKind("DeleteOptions")), opts, false); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		return nil
	}
	if m == wire.YAML {
		j, err := yamltext.ToJSON(body)
		if yamltext.IsRefusal(err) {
			return err
		}
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		body = j
	}
	got, err := kindOf(body)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := deleteOptionsKind(got, sent); err != nil {
		return err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, opts); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// deleteOptionsKind refuses a body of another kind.
func deleteOptionsKind(got schema.GroupVersionKind, sent []byte) error {
	switch got = orWanted(got, metav1.SchemeGroupVersion.WithKind("DeleteOptions")); {
	case got.Version == "":
		return apierrors.NewBadRequest(missing("apiVersion", sent).Error())
	case metaKind(got):
		return apierrors.NewBadRequest(fmt.Sprintf("converting (v1.%s) to (v1.DeleteOptions): unknown conversion", got.Kind))
	case got.Kind != "DeleteOptions":
		return apierrors.NewBadRequest(errUnregistered(got).Error())
	}
	return nil
}

// metaKind reports whether a kind is another one of those that belong to no group,
// or to that of the options.
func metaKind(kind schema.GroupVersionKind) bool {
	switch kind.Kind {
	case "CreateOptions", "UpdateOptions", "Status", "APIVersions", "APIGroupList", "APIGroup", "APIResourceList":
		return true // in all versions
	case "ListOptions", "GetOptions", "PatchOptions", "WatchEvent":
		return kind.GroupVersion() == metav1.SchemeGroupVersion
	case "Table", "TableOptions", "PartialObjectMetadata", "PartialObjectMetadataList":
		return kind.Group == metav1.GroupName && (kind.Version == "v1" || kind.Version == "v1beta1")
	}
	return false
}

func (s *scope) deleteParameters(opts *metav1.DeleteOptions) error {
	q := s.req.Query
	if q.Has("gracePeriodSeconds") {
		n, err := q.Int("gracePeriodSeconds")
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		opts.GracePeriodSeconds = &n
	}
	if q.Has("orphanDependents") {
		b := q.Bool("orphanDependents")
		opts.OrphanDependents = &b
	}
	if q.Has("propagationPolicy") {
		p := metav1.DeletionPropagation(q.Get("propagationPolicy"))
		opts.PropagationPolicy = &p
	}
	opts.DryRun = q.All("dryRun")
	if q.Has("ignoreStoreReadErrorWithClusterBreakingPotential") {
		b := q.Bool("ignoreStoreReadErrorWithClusterBreakingPotential")
		opts.IgnoreStoreReadErrorWithClusterBreakingPotential = &b
	}
	uid, version := types.UID(q.Get("uid")), q.Get("resourceVersion")
	if uid != "" || version != "" {
		opts.Preconditions = &metav1.Preconditions{}
	}
	if uid != "" {
		opts.Preconditions.UID = &uid
	}
	if version != "" {
		opts.Preconditions.ResourceVersion = &version
	}
	return nil
}

// removal is what a delete has done.
type removal struct {
	obj resource.Object
	// rec is the last stored state of the object, with the revision of the deletion if it is gone.
	// It is nil in a dry run.
	rec    *store.Record
	marked bool // obj was stored with a mark, or would have been in a dry run
	gone   bool
}

// remove deletes an object, or marks it if something holds it.
func (s *scope) remove(key string, opts *metav1.DeleteOptions) (done removal, err error) {
	for again := true; again; {
		done, again, err = s.tryRemove(key, opts)
	}
	return done, err
}

// tryRemove is remove, which has to be tried again if the object has changed meanwhile.
func (s *scope) tryRemove(key string, opts *metav1.DeleteOptions) (done removal, again bool, err error) {
	rec, err := s.objects.Get(s.ctx(), key, store.Read{})
	if err != nil {
		return done, false, err
	}
	free, err := s.holdStored(rec)
	if err != nil {
		return done, false, err
	}
	defer free()
	live, err := s.decode(rec)
	if err != nil {
		return done, false, err
	}
	// Who deletes must be able to read.
	seen, err := s.toWriteVersion(live)
	if err != nil {
		return done, false, s.readConversionError(rec, err)
	}
	if err := s.admitDelete(seen, opts); err != nil {
		return done, false, err
	}
	next, err := s.mark(live, opts)
	if err != nil {
		return done, false, err
	}
	done, err = s.carryOut(rec, live, next)
	return done, errors.Is(err, storage.ErrConflict), err
}

// carryOut does what a delete has decided on: it stores the marked object, if
// there is one, and deletes it unless something holds it.
func (s *scope) carryOut(rec *store.Record, live, next resource.Object) (removal, error) {
	gone := next == nil || s.def.Strategy.GracePeriod != nil && s.canFinishDeletion(next)
	marked := next != nil
	switch {
	case !marked:
		next = live
	case s.req.DryRun:
	default:
		changed, err := s.objects.Replace(s.ctx(), rec, next, s.ttl(next))
		if err != nil {
			return removal{}, err
		}
		rec = changed
		next.SetResourceVersion(wire.RevisionString(rec.Revision))
	}
	if s.req.DryRun {
		return removal{obj: next, marked: marked, gone: gone}, nil
	}
	if !gone {
		return removal{obj: next, rec: rec, marked: true}, nil
	}
	end, err := s.beginDelete(next)
	if err != nil {
		return removal{}, err
	}
	deleted, err := s.objects.Delete(s.ctx(), rec.Key, unchanged(rec))
	end(outcome(err))
	switch {
	case errors.Is(err, storage.ErrNotFound) && marked:
		return removal{obj: next, rec: rec, marked: true, gone: true}, nil // somebody saw the mark, and was quicker
	case err != nil:
		return removal{}, err
	}
	next.SetResourceVersion(wire.RevisionString(deleted.Revision))
	return removal{obj: next, rec: deleted, marked: marked, gone: true}, nil
}

func (s *scope) beginDelete(live resource.Object) (func(resource.Outcome), error) {
	if begin := s.def.Strategy.Begin; begin != nil {
		end, err := begin(s.ctx(), nil, live)
		if err != nil {
			return nil, err
		}
		if end != nil {
			return end, nil
		}
	}
	return func(resource.Outcome) {}, nil
}

func unchanged(seen *store.Record) func(*store.Record) error {
	return func(current *store.Record) error {
		if current.Revision != seen.Revision {
			return storage.ErrConflict
		}
		return nil
	}
}

// mark returns an object as it is stored when its deletion begins or is made
// quicker, nil if nothing needs to be stored before it goes.
func (s *scope) mark(live resource.Object, opts *metav1.DeleteOptions) (resource.Object, error) {
	if p := opts.Preconditions; p != nil {
		if err := s.deletePrecondition(live, p); err != nil {
			return nil, err
		}
	}
	obj := live.DeepCopyObject().(resource.Object)
	st := &s.def.Strategy
	first := live.GetDeletionTimestamp() == nil
	grace, asked := live.GetDeletionGracePeriodSeconds(), opts.GracePeriodSeconds
	if asked != nil && *asked < 0 {
		one := int64(1)
		asked = &one
	}
	graceful := st.GracePeriod != nil && (first || grace != nil && *grace > 0)
	switch {
	case graceful && first:
		seconds := st.GracePeriod(obj, asked)
		setDeletion(obj, s.req.Received.Add(time.Duration(seconds)*time.Second), seconds)
	case graceful && (asked == nil || *asked >= *grace), !first && st.Held != nil && st.Held(obj):
		return obj, nil // under way, and it can only be made quicker
	case graceful:
		at, seconds := live.GetDeletionTimestamp().Add(time.Duration(*asked-*grace)*time.Second), *asked
		if at.Before(s.req.Received) {
			// That is over already. Somebody has asked for grace, so a little is left.
			at, seconds = s.req.Received, min(seconds, 1)
		}
		setDeletion(obj, at, seconds)
	}
	s.setFinalizers(obj, opts)
	if !graceful {
		if len(obj.GetFinalizers()) == 0 && (st.Held == nil || !first) {
			return nil, nil
		}
		at := s.req.Received
		if t := live.GetDeletionTimestamp(); t != nil && !t.After(at) {
			at = t.Time
		}
		if st.Held != nil && first {
			// What can be held begins to go by a plain update.
			t := metav1.NewTime(at.UTC().Truncate(time.Second))
			obj.SetDeletionTimestamp(&t)
		} else {
			setDeletion(obj, at, 0)
		}
	}
	if first && st.BeforeDelete != nil {
		st.BeforeDelete(obj)
	}
	return obj, nil
}

// setDeletion sets when an object is deleted. The first time is a change of
// what is wanted, so the generation moves.
func setDeletion(obj resource.Object, at time.Time, grace int64) {
	if obj.GetDeletionTimestamp() == nil && obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	t := metav1.NewTime(at.UTC().Truncate(time.Second))
	obj.SetDeletionTimestamp(&t)
	obj.SetDeletionGracePeriodSeconds(&grace)
}

func (s *scope) deletePrecondition(live resource.Object, p *metav1.Preconditions) error {
	// A kind that can be held begins to go by an update, so it is refused as an
	// update is.
	st := &s.def.Strategy
	refuse := func(what string, want, is any, happened string) error {
		if st.Held != nil && s.req.Verb != request.DeleteCollection {
			failed := "Precondition failed"
			if st.NoPropagation { // a definition of custom resources
				failed = "precondition failed"
			}
			return apierrors.NewConflict(s.groupResource(), live.GetName(), fmt.Errorf(
				"%s: %s in precondition: %v, %s in object meta: %v", failed, what, want, what, is))
		}
		return apierrors.NewConflict(schema.GroupResource{Group: s.def.Group, Resource: s.def.Kind}, live.GetName(), fmt.Errorf(
			"the %s in the precondition (%v) does not match the %s in record (%v). The object might have been %s", what, want, what, is, happened))
	}
	if p.UID != nil && *p.UID != live.GetUID() {
		return refuse("UID", *p.UID, live.GetUID(), "deleted and then recreated")
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != live.GetResourceVersion() {
		return refuse("ResourceVersion", *p.ResourceVersion, live.GetResourceVersion(), "modified")
	}
	return nil
}

// setFinalizers sets the finalizers of garbage collection as the propagation
// policy wants them.
func (s *scope) setFinalizers(obj resource.Object, opts *metav1.DeleteOptions) {
	st := &s.def.Strategy
	if st.NoPropagation && st.Held != nil {
		return // it begins to go by a plain update
	}
	orphan, foreground := false, false
	switch {
	case st.NoPropagation:
	case opts.OrphanDependents != nil:
		orphan = *opts.OrphanDependents
		// Only what can be held takes it so, when it begins to go.
		foreground = !orphan && st.Held != nil &&
			(obj.GetDeletionTimestamp() == nil || slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents))
	case opts.PropagationPolicy != nil:
		orphan = *opts.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *opts.PropagationPolicy == metav1.DeletePropagationForeground
	default:
		// What the object says already stays; the first one, if it says two things.
		said := slices.IndexFunc(obj.GetFinalizers(), isPropagation)
		if said >= 0 {
			orphan = obj.GetFinalizers()[said] == metav1.FinalizerOrphanDependents
			foreground = !orphan
		} else {
			orphan = st.OrphanByDefault || s.served.Version.OrphanByDefault
		}
	}
	kept := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), isPropagation)
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	if !sets.New(kept...).Equal(sets.New(obj.GetFinalizers()...)) { // else they stay as they are
		obj.SetFinalizers(kept)
	}
}

// isPropagation tells the finalizers of garbage collection from others.
func isPropagation(finalizer string) bool {
	return finalizer == metav1.FinalizerOrphanDependents || finalizer == metav1.FinalizerDeleteDependents
}

// deleteWorkers is how many objects of a collection are deleted at a time.
const deleteWorkers = 16

// deleteCollection deletes all objects that match, and answers with the list of
// them as they were.
func (s *scope) deleteCollection() error {
	o, err := s.listOptions(false)
	if err != nil {
		return err
	}
	opts, err := s.deleteOptions()
	if err != nil {
		return err
	}
	if unsafe := opts.IgnoreStoreReadErrorWithClusterBreakingPotential; unsafe != nil && *unsafe {
		return problems.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", field.ErrorList{
			field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true, "is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	s.warnOrphans(opts)
	if o.match == "" && !o.single() {
		o.match = metav1.ResourceVersionMatchExact // as in lists that come in pages
	}
	p, err := s.page(&o)
	if err != nil {
		return err
	}
	s.endDecoded()    // each object is weighed by itself
	if !o.selects() { // of what cannot be read nobody knows whether it matches
		if err := s.mayDiscardAll(); err != nil {
			return err
		}
	}
	if err := s.removeAll(p.Records, opts); err != nil {
		return err
	}
	if !o.selects() {
		if err := s.discardAll(); err != nil {
			return err
		}
	}
	return s.writeList(p)
}

// removeAll deletes objects, several at a time, until one cannot be. Those that are
// gone already are what they should be.
func (s *scope) removeAll(records []*store.Record, opts *metav1.DeleteOptions) error {
	var (
		next    atomic.Int64
		failed  atomic.Bool
		mu      sync.Mutex
		first   error
		workers sync.WaitGroup
	)
	for range min(deleteWorkers, len(records)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(records) && !failed.Load(); i = int(next.Add(1)) - 1 {
				err := protect.Call(func() error {
					_, err := s.remove(records[i].Key, opts)
					return err
				})
				if err != nil && !errors.Is(err, storage.ErrNotFound) {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					failed.Store(true)
				}
			}
		})
	}
	workers.Wait()
	protect.Repeat(first)
	return first
}
