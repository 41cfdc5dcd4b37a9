package rest

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unreadableError is the error that clients get for objects that are stored and cannot be
// read; nil if err is about something else. Those that cannot be decoded are left out of
// lists and watches. While there is one that cannot be decrypted, the resource is not
// watched, and listed only as listDirectly does; the others can still be read one by one.
func (s *scope) unreadableError(err error) error {
	var all store.UnreadableObjects
	var one *store.Unreadable
	switch {
	case errors.As(err, &all):
		return s.unlistableError(all)
	case !errors.As(err, &one):
		return nil
	case s.h.NoUnsafeDeletes && one.Revision == 0:
		return apierrors.NewInternalError(one.Err)
	case s.h.NoUnsafeDeletes:
		return errBare(one.Err)
	case s.req.Verb == request.Update || s.req.Verb == request.Patch:
		return errBare(errors.New(undecodable(one.Revision, one.Err)))
	}
	return apierrors.NewInternalError(corrupt("/"+s.def.StorageKey+"/"+strings.TrimPrefix(one.Key, s.objects.Key("", "")), undecodable(one.Revision, one.Err)))
}

// unlistableError is the error of lists and watches of a resource that cannot be loaded,
// because of such objects.
func (s *scope) unlistableError(all store.UnreadableObjects) error {
	return apierrors.NewTooManyRequests("storage is (re)initializing: failed to list <unspecified>: "+s.readErrorMessage(all), 1)
}

// readsDirectly reports whether a list is read without the cache while that cannot be
// loaded, as kube-apiserver does: lists in pages always are, and those of the newest
// state if the cache could be loaded before.
func (s *scope) readsDirectly(o *listOptions, read store.Read) bool {
	if (o.limit > 0 || s.req.Verb == request.DeleteCollection) && o.labels.Empty() && o.fields.Empty() {
		return true
	}
	return read == (store.Read{}) && s.objects.Spoiled()
}

// listDirectly reads a list without the cache. The error tells of each object in the list
// that cannot be read.
func (s *scope) listDirectly(o *listOptions, prefix, start string, revision int64) (snap *store.Snapshot, err error) {
	var all store.UnreadableObjects
	if o.limit > 0 && !o.selects() {
		snap, err = s.objects.DirectPage(s.ctx(), prefix, start, o.most(), revision)
	}
	if snap == nil && !errors.As(err, &all) {
		snap, err = s.objects.Direct(s.ctx(), prefix, revision)
	}
	if !errors.As(err, &all) {
		return snap, err
	}
	if o.limit > 0 && int(o.limit) < len(all) {
		all = all[:o.limit]
	}
	return nil, s.readError(all)
}

// readError is the error of a request for many objects of which some cannot be read.
func (s *scope) readError(all store.UnreadableObjects) error {
	switch {
	case s.h.NoUnsafeDeletes && all[0].Revision == 0:
		return apierrors.NewInternalError(errors.New(s.readErrorMessage(all)))
	case s.h.NoUnsafeDeletes:
		return errBare(all[0].Err)
	}
	all = all[:min(len(all), store.MaxUnreadable)]
	causes := make([]metav1.StatusCause, len(all), len(all)+1)
	for i, one := range all {
		causes[i] = metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: s.h.shownKey(one.Key), Message: corrupt(s.h.shownKey(one.Key), undecodable(one.Revision, one.Err)).Error()}
	}
	if len(causes) == store.MaxUnreadable {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
	}
	gr := s.groupResource()
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError, Message: s.readErrorMessage(all),
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
	}}
}

func (s *scope) readErrorMessage(all store.UnreadableObjects) string {
	switch {
	case s.h.NoUnsafeDeletes && all[0].Revision == 0:
		return fmt.Sprintf("unable to transform key %q: %v", s.h.shownKey(all[0].Key), all[0].Err)
	case s.h.NoUnsafeDeletes:
		return all[0].Err.Error()
	}
	gr := s.groupResource()
	message := fmt.Sprintf("failed to read one or more %s from the storage: %v", gr.String(), corrupt(s.h.shownKey(all[0].Key), undecodable(all[0].Revision, all[0].Err)))
	if more := len(all) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return message
}

func undecodable(revision int64, err error) string {
	what := "object not decodable"
	if revision == 0 {
		what = "data from the storage is not transformable"
	}
	return fmt.Sprintf("%s revision=%d: %v", what, revision, err)
}

func corrupt(key, why string) error {
	return fmt.Errorf("StorageError: corrupt object, Code: 7, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, why)
}

// mayDiscard returns an error if the request may not delete what cannot be read.
func (s *scope) mayDiscard() error {
	const verb = "unsafe-delete-ignore-read-errors"
	if s.h.Authorizer == nil || s.r == nil {
		return nil
	}
	decision, reason, err := s.h.Authorizer.Authorize(s.ctx(), s.attributesFor(verb))
	if err != nil {
		err = fmt.Errorf("error while checking permission for %q, %w", verb, err)
	} else if decision != authz.Allow {
		err = fmt.Errorf("not permitted to do %q, reason: %s", verb, reason)
	}
	if err != nil {
		return apierrors.NewForbidden(s.groupResource(), s.req.Name, err)
	}
	return nil
}

// mayDiscardAll returns an error if a delete of a collection finds objects that cannot be
// read and may not delete them. It may in a namespace that is being deleted, which would
// never be gone, and if its user may do everything, as the part of the server that deletes the
// objects of a definition.
func (s *scope) mayDiscardAll() error {
	if len(s.leftOut) == 0 || slices.Contains(s.req.User.Groups, "system:masters") {
		return nil
	}
	if ns, err := s.h.namespace(s.ctx(), s.req.Namespace); s.def.Namespaced && err == nil && ns != nil && ns.GetDeletionTimestamp() != nil {
		return nil
	}
	if s.h.NoUnsafeDeletes || s.mayDiscard() != nil {
		return s.readError(s.leftOut)
	}
	return nil
}

// discardAll deletes the objects that a delete of a collection cannot read.
func (s *scope) discardAll() error {
	for _, one := range s.leftOut {
		s.h.log().Warn("object that cannot be read is deleted with its collection", "key", one.Key, "revision", one.Revision, "user", s.req.User.Name)
		err := s.objects.Discard(s.ctx(), one.Key, s.req.DryRun)
		if err != nil && !errors.Is(err, store.ErrReadable) && !errors.Is(err, storage.ErrNotFound) {
			return err
		}
	}
	return nil
}

// discard deletes an object because it cannot be read, without asking anybody but
// the authorizer.
func (s *scope) discard() error {
	s.req.Annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	if err := s.mayDiscard(); err != nil {
		return err
	}
	switch err := s.objects.Discard(s.ctx(), s.key(), s.req.DryRun); {
	case errors.Is(err, store.ErrReadable):
		return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage", s.h.shownKey(s.key())))
	case err != nil:
		return err
	}
	s.respondStatus(http.StatusOK, &metav1.Status{
		Status: metav1.StatusSuccess, Code: http.StatusOK, Details: &metav1.StatusDetails{Name: s.req.Name, Kind: s.def.Kind},
	})
	return nil
}
