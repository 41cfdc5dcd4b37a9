// Package rest is the HTTP verbs on resources.
//
// A verb is a file: get.go, list.go, watch.go, create.go, update.go, patch.go,
// delete.go. Handlers return errors; status.go is the one place that turns them
// into answers. What kind a request is about comes from a resource.Definition,
// and no verb knows any kind by name. The bytes of an answer are made by package
// wire; respond.go is the HTTP around them.
//
// # The order of a write
//
//	create (insert)                      update, patch, apply (changeObject, prepareChange)
//
//	decode, Version.Default, ToHub       the same for the body of an update; a patch and an
//	                                     applied configuration are merged into the live object
//	clear metadata of the server         compare the uid, if the body has one
//	ownership of fields                  ownership of fields
//	mutating admission                   mutating admission
//	set metadata: name, uid, times       compare the resourceVersion; keep what cannot change
//	Strategy.PrepareCreate               Strategy.PrepareUpdate, Strategy.Generation
//	Strategy.Begin reserves              Strategy.Begin reserves
//	rules for metadata, Validate         rules for metadata, ValidateUpdate
//	validating admission                 validating admission
//	store.Resource.Create                store.Resource.Update; after a conflict all of it again
//	end of Begin                         end of Begin
//
// Ownership comes before the strategy: what the server fills in belongs to nobody. Begin
// comes before validation, which judges the whole object. The answer is made from the
// record that was committed. order_test.go holds the code to this list, and
// docs/design/0002-api-core.md has the reasons.
//
// # A list
//
//	Route → scope → list options (resourceVersion, limit, continue, selectors)
//	→ store.Resource.Snapshot → records that match → wire.Encoder writes the list
//
// # A watch
//
//	Route → scope → store.Resource.Watch → wire.EventEncoder, all events that are there → one flush
package rest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace"
	"github.com/apikeel/kelson/trace/timed"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Handler serves the resources of a catalog from a store.
type Handler struct {
	// Catalog returns what is served now.
	Catalog func() *resource.Catalog
	Store   *store.Store
	// Shards makes lists and watches heed the parameter shardSelector, which is
	// otherwise ignored.
	Shards bool
	// KeyRoot is the path in etcd that errors name instead of storage.Root, which is the
	// default.
	KeyRoot string
	// NoInitialEvents refuses the parameter sendInitialEvents of watches: the feature gate
	// WatchList is disabled.
	NoInitialEvents bool
	// LimitAny treats every kind like one that is Uncached, as kube-apiserver does without
	// its watch cache.
	LimitAny bool
	// NoUnsafeDeletes ignores the option of a delete to remove an object that cannot be
	// read, and reports such objects one at a time, without their keys. It is what the gate
	// AllowUnsafeMalformedObjectDeletion does when it is off.
	NoUnsafeDeletes bool
	// NoCompression never compresses responses: the gate APIResponseCompression is off.
	NoCompression bool
	// NoWatchCompression does not compress watches that begin with what there is either: the
	// gate WatchListCompression is off.
	NoWatchCompression bool
	// SharedStore says that other servers write to the store: a write may be abandoned, as admission
	// wants it.
	SharedStore bool
	// Owners keeps track of who owns which fields; nil keeps none.
	Owners Owners
	// Admission is asked about every write of a client; nil admits all.
	Admission *admission.Chain
	// Connector opens the connections of subresources; without one there are
	// none.
	Connector Connector
	// Authorizer is asked when a request does more than its verb says: an update
	// that creates, a get that runs a command. Nil allows it.
	Authorizer authz.Authorizer
	// MinWatch is how long a watch lasts at least whose client does not say; at
	// most it is twice as long, so that not all end at the same time. The default
	// is half an hour; below zero is for ever.
	MinWatch time.Duration
	// Metrics counts what cannot be seen of requests from outside; nil does not.
	Metrics Metrics
	// Memory bounds what requests hold; nil does not.
	Memory *budget.Memory
	// Logger gets what no client can be told; nil discards it.
	Logger *slog.Logger
	// Server becomes request.Request.Server of every request; nil if no definition in the
	// catalog asks for it.
	Server any

	chunks    wire.ChunkCache // of lists
	encodable wire.EncodableCheck
}

// Metrics counts what handlers do.
type Metrics interface {
	// Watched returns what is told the size of each event of a watch.
	Watched(group, version, resource string) func(bytes int)
	// Listed counts a list: how many objects were looked at, and how many of them
	// are in the answer.
	Listed(group, resource string, evaluated, returned int)
	// WatchListed notes how long it took a watch to send what there was.
	WatchListed(what *request.Info, took time.Duration)
	// Deprecated counts a request for a version that goes, with the warning that
	// clients get.
	Deprecated(group, version, resource, subresource, warning string)
}

// Owners keeps metadata.managedFields, and merges server-side applies.
type Owners interface {
	// Update returns obj, the result of a write other than apply, with the
	// ownership that follows from live, nil on create.
	Update(s *resource.Served, subresource string, live, obj resource.Object, manager string, now time.Time) (resource.Object, error)
	// KeepTimes undoes new times in the ownership of obj if nothing else
	// differs from live, so that it is no write.
	KeepTimes(obj, live resource.Object)
	// Apply merges an applied configuration into live, nil on create.
	Apply(s *resource.Served, subresource string, live resource.Object, patch []byte, manager string, force bool, now time.Time) (resource.Object, error)
	// CheckPatch returns what a strict reader would not accept in an applied
	// configuration.
	CheckPatch(patch []byte) error
	// Project gives a projection of obj the owners of its fields. Update and
	// Apply for the subresource are about such projections.
	Project(s *resource.Served, sub *resource.Subresource, obj, projection resource.Object) error
	// Restore gives obj the owners that its projection has after a write.
	Restore(s *resource.Served, sub *resource.Subresource, obj, projection resource.Object) error
}

// scope is one request: what it is about, and how the answer is wanted.
type scope struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	req     *request.Request
	served  *resource.Served
	def     *resource.Definition
	sub     *resource.Subresource // nil for the resource itself
	objects *trackedObjects
	enc     wire.Encoder // makes the bytes of the answer
	applied bool         // by server-side apply, which has settled who owns what
	// noManagedFields makes the write store an object without its managedFields.
	noManagedFields bool
	// validation is what the request wants to become of unknown fields.
	validation fieldValidation
	context    context.Context
	// span is of the verb; what happens to the request is noted there.
	span     timed.Span
	bodySize int    // of what was sent
	sent     []byte // the body of a create or update, and its format
	sentAs   wire.MediaType
	release  []func() // called when the request has been answered
	forBody  int64    // bytes of the body, or of the object that it changes, for which holdBody holds memory
	decoded  func()   // gives back what holdDecoded holds; nil if that is nothing
	// changed is the memory for what becomes of the object beyond its body.
	changed heldMemory
	abandon func() // breaks the write off as at its deadline; nil unless SharedStore
	unsent  int    // bytes of Memory.Unsent that it holds
	hurried bool   // the client has a deadline to read each piece of the response
	// leftOut are the objects that a list leaves out, since they cannot be decoded.
	leftOut store.UnreadableObjects
}

// Route serves a request for a resource, and reports whether the resource is
// known here.
func (h *Handler) Route(w http.ResponseWriter, r *http.Request) bool {
	req := request.From(r.Context())
	if !req.IsResource || req.Resource == "" || req.Group == "" && strings.HasPrefix(req.Path, "/apis/") {
		return false
	}
	served, ok := h.Catalog().Lookup(req.Group, req.Version, req.Resource)
	if !ok {
		return false
	}
	req.Server = h.Server
	s := &scope{h: h, w: w, r: r, req: req, served: served, def: served.Definition, context: r.Context()}
	if !s.pathFits() {
		return false
	}
	s.startSpan()
	if h.SharedStore && s.isWrite() {
		var abandon context.CancelCauseFunc
		s.context, abandon = context.WithCancelCause(s.context)
		defer abandon(nil)
		s.abandon = func() { abandon(context.DeadlineExceeded) }
	}
	defer s.endHolds()
	if err := s.serve(); err != nil {
		if errors.Is(err, context.Canceled) && errors.Is(context.Cause(s.context), context.DeadlineExceeded) {
			err = context.DeadlineExceeded // it was abandoned
		}
		s.fail(s.errorAfterWrite(err))
	}
	s.span.EndVerb(s.req)
	return true
}

// startSpan begins the span of the verb, which is logged and traced if it takes long.
func (s *scope) startSpan() {
	var name string
	switch s.req.Verb {
	case request.Get:
		name = "Get"
	case request.List:
		name = "List"
	case request.Create:
		name = "Create"
	case request.Update:
		name = "Update"
	case request.Patch:
		name = "Patch"
	case request.Delete, request.DeleteCollection:
		name = "Delete"
	}
	// A watch takes as long as its client wants.
	if name == "" || s.sub != nil && s.sub.Connect != nil && !s.sub.Connect.Text {
		return
	}
	s.context, s.span = timed.Verb(s.context, s.req, name, func() []trace.Attribute {
		verb := s.r.Method
		if s.req.Verb == request.List {
			verb = "LIST"
		}
		return timed.Attributes(s.r, s.req, verb)
	})
}

// pathFits checks the scope of the path against that of the resource, and
// finds the subresource.
func (s *scope) pathFits() bool {
	if s.def.Answer != nil && (s.req.Name != "" || s.def.Namespaced && s.req.Namespace == "") {
		return false // there are no objects to name, and none of all namespaces
	}
	if !s.def.Namespaced && s.req.Namespace != "" {
		// The path of a namespace is in that namespace, but a namespace is in no
		// other: who has a right to namespaces in one must not get at the rest.
		if s.def.Resource != "namespaces" || strings.Contains(s.req.Path, "/namespaces/"+s.req.Namespace+"/namespaces") {
			return false
		}
	}
	if s.def.Namespaced && s.req.Namespace == "" && (len(s.req.Parts) > 1 || s.served.Unstructured && !s.isListOrWatch()) {
		return false
	}
	// In front of the resource the path may say watch, if that can be watched,
	// and long ago it could say proxy.
	prefixed := strings.Contains(s.req.Path, "/"+s.req.Version+"/"+s.req.Verb+"/")
	unwatched := s.def.Source != nil || s.def.Answer != nil || s.req.Subresource != "" && !s.served.Unstructured
	if s.req.Verb == "proxy" || prefixed && s.req.Verb == request.Watch && unwatched {
		return false
	}
	if s.req.Subresource == "" {
		return len(s.req.Parts) <= 2
	}
	if s.sub = s.served.Subresource(s.req.Subresource); s.sub != nil {
		return len(s.req.Parts) <= 3 || s.sub.Connect != nil && s.sub.Connect.Path
	}
	return s.served.Unstructured // which serve says that it has not
}

// isWrite reports whether the request creates or changes an object.
func (s *scope) isWrite() bool {
	return s.req.Verb == request.Create || s.req.Verb == request.Update || s.req.Verb == request.Patch
}

// isListOrWatch reports whether the request is about many objects.
func (s *scope) isListOrWatch() bool {
	return s.req.Verb == request.List || s.req.Verb == request.Watch
}

// checkMapVerb checks what the path of objects that are maps names. Their paths come
// and go, so they are not told apart by their form: a request is judged by its
// verb.
func (s *scope) checkMapVerb(verb string) error {
	switch {
	case s.req.Subresource != "" && s.sub == nil:
		return apierrors.NewNotFound(s.groupResource(), s.req.Name)
	case !slices.Contains(s.verbs(), verb):
		return apierrors.NewMethodNotSupported(s.groupResource(), verb)
	case verb == request.Patch && s.req.Name == "":
		if _, err := s.patchType(); err != nil {
			return err
		}
		return errNameless()
	case verb == request.Update && s.req.Name == "":
		return errNameless()
	case verb == request.Create && !s.methodFits(verb):
		// The name in the path was authorized, and would be judged, instead of that in the body.
		return errMethodNotAllowed()
	case s.isListOrWatch() && s.r.Method != http.MethodGet && s.r.Method != http.MethodHead:
		return errMethodNotAllowed() // behind the prefix watch
	}
	return nil
}

// serve runs the verb.
func (s *scope) serve() error {
	verb := s.req.Verb
	if s.sub != nil && s.sub.Connect != nil {
		return s.connect()
	}
	if verb == request.Watch && s.def.Source != nil {
		s.req.Warn(s.served.Version.Deprecation)
		return apierrors.NewMethodNotSupported(s.groupResource(), verb)
	}
	if s.served.Unstructured {
		s.warnDeprecated()
		if err := s.checkMapVerb(verb); err != nil {
			return err
		}
	} else if s.isNameless() {
		return s.nameless(s.verbs())
	} else if !slices.Contains(s.verbs(), verb) || !s.methodFits(verb) || s.r.Method == http.MethodHead {
		return errMethodNotAllowed()
	}
	if verb == request.Patch {
		if _, err := s.patchType(); err != nil {
			return err // before what the client accepts is looked at
		}
	}
	if !s.served.Unstructured {
		if err := s.representable(); err != nil {
			return err // before anything is said of the version
		}
		s.warnDeprecated()
	}
	format, err := s.negotiate()
	if err != nil {
		return err
	}
	s.enc = wire.Encoder{Served: s.served, Format: format, Now: s.req.Received, Chunks: &s.h.chunks}
	if s.def.Source != nil {
		return s.compute()
	}
	if s.def.Answer == nil {
		s.objects = track(s.h.objects(s.def))
		s.objects.check = s.checkNamespace
	}
	if ns := s.req.Namespace; (ns == "." || ns == "..") && verb != request.Create {
		return errBare(fmt.Errorf("invalid key: %q", strings.TrimSuffix("/"+s.def.StorageKey+"/"+ns+"/"+s.req.Name, "/")))
	}
	switch verb {
	case request.Get:
		return s.get()
	case request.List:
		clock := s.clock()
		defer clock.stop(request.Serialize)
		return s.list()
	case request.Watch:
		return s.watch()
	case request.Create:
		return s.create()
	case request.Update:
		return s.update()
	case request.Patch:
		return s.patch()
	case request.Delete:
		return s.delete()
	case request.DeleteCollection:
		return s.deleteCollection()
	}
	return errMethodNotAllowed()
}

// warnDeprecated warns of a version that is deprecated.
func (s *scope) warnDeprecated() {
	warning := s.served.Version.Deprecation
	if warning == "" {
		return
	}
	s.req.Warn(warning)
	s.req.Deprecation = warning
	if s.h.Metrics != nil {
		s.h.Metrics.Deprecated(s.req.Group, s.req.Version, s.req.Resource, s.req.Subresource, warning)
	}
}

// isNameless reports whether the path has a subresource, but no name before it, as
// pods//status. It was authorized as a list, which a subresource has not, and a field
// selector may have given the list a name: that must not stand for the one that is
// missing, or who may list could do what needs another verb.
func (s *scope) isNameless() bool { return s.sub != nil && s.req.Parts[1] == "" }

// nameless refuses a path without a name.
func (s *scope) nameless(verbs []string) error {
	verb := s.req.Verb
	switch s.r.Method {
	case http.MethodGet:
		verb = request.Get
	case http.MethodDelete:
		verb = request.Delete
	}
	if !slices.Contains(verbs, verb) || s.r.Method == http.MethodHead {
		return errMethodNotAllowed()
	}
	if verb == request.Patch {
		if _, err := s.patchType(); err != nil {
			return err
		}
	}
	return errNameless()
}

// methodFits checks that a verb on one object names it, and that one on many
// does not.
func (s *scope) methodFits(verb string) bool {
	switch verb {
	case request.Get, request.Update, request.Patch, request.Delete:
		return s.req.Name != ""
	case request.DeleteCollection:
		return !s.def.Namespaced || s.req.Namespace != "" // never all there are
	case request.List, request.Watch:
		return s.r.Method == http.MethodGet
	case request.Create:
		return (s.req.Name != "") == (s.sub != nil) && (!s.def.Namespaced || s.req.Namespace != "" || s.def.Answer != nil)
	}
	return true
}

// allVerbs returns the verbs of a resource whose definition names none.
func allVerbs() []string {
	return []string{request.Get, request.List, request.Watch, request.Create, request.Update, request.Patch, request.Delete, request.DeleteCollection}
}

// verbs returns what can be done with what the path names.
func (s *scope) verbs() []string {
	switch {
	case s.sub == nil && s.def.Verbs != nil:
		return s.def.Verbs
	case s.sub == nil && s.def.Answer != nil:
		return []string{request.Create}
	case s.sub == nil:
		return allVerbs()
	case s.sub.Verbs != nil:
		return s.sub.Verbs
	case s.sub.Action != nil:
		return []string{request.Create}
	}
	return []string{request.Get, request.Update, request.Patch}
}

// objects returns the objects of a definition.
func (h *Handler) objects(def *resource.Definition) *store.Resource {
	return h.Store.Resource(def)
}

// ctx is the context of the request.
func (s *scope) ctx() context.Context { return s.context }

// key is where the object that the path names is kept.
func (s *scope) key() string { return s.objects.Key(s.req.Namespace, s.req.Name) }

// strategy returns the rules for writing what the path names.
func (s *scope) strategy() *resource.Strategy {
	if s.sub != nil && s.sub.Part != nil {
		return s.sub.Part
	}
	return &s.def.Strategy
}

// attributesFor returns the request with another verb, for the authorizer.
func (s *scope) attributesFor(verb string) *authz.Attributes {
	return &authz.Attributes{
		User: &s.req.User, Verb: verb, IsResource: true, Path: s.req.Path,
		Group: s.req.Group, Version: s.req.Version, Namespace: s.req.Namespace,
		Resource: s.req.Resource, Subresource: s.req.Subresource, Name: s.req.Name,
	}
}

func (h *Handler) log() *slog.Logger {
	if h.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Logger
}
