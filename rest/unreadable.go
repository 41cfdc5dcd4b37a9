package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unreadableError is the error that clients get for objects that are stored and cannot be
// read; nil if err is about something else. While there is one, the resource is
// neither listed nor watched; the others can still be read one by one.
func (s *scope) unreadableError(err error) error {
	var all store.UnreadableObjects
	var one *store.Unreadable
	switch {
	case errors.As(err, &all):
		return s.unlistableError(all)
	case !errors.As(err, &one):
		return nil
	case s.req.Verb == request.Update || s.req.Verb == request.Patch:
		return errBare(errors.New(undecodable(one.Revision, one.Err)))
	}
	return apierrors.NewInternalError(corrupt("/"+s.def.StorageKey+"/"+strings.TrimPrefix(one.Key, s.objects.Key("", "")), undecodable(one.Revision, one.Err)))
}

// unlistableError is the error of lists and watches of a resource with such objects. A
// client that reads in pages is told of each of them.
func (s *scope) unlistableError(all store.UnreadableObjects) error {
	causes := make([]metav1.StatusCause, len(all), len(all)+1)
	for i, one := range all {
		causes[i] = metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: one.Key, Message: corrupt(one.Key, undecodable(one.Revision, one.Err)).Error()}
	}
	q := s.r.URL.Query()
	limit, _ := parseInt(q, "limit")
	paged := limit > 0 || s.req.Verb == request.DeleteCollection
	if limit > 0 && int(limit) < len(causes) {
		causes = causes[:limit]
	}
	gr := s.groupResource()
	message := fmt.Sprintf("failed to read one or more %s from the storage: %s", gr.String(), causes[0].Message)
	if more := len(causes) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	if !paged || s.req.Verb == request.Watch || q.Get("labelSelector")+q.Get("fieldSelector") != "" {
		return apierrors.NewTooManyRequests("storage is (re)initializing: failed to list <unspecified>: "+message, 1)
	}
	if len(causes) == store.MaxUnreadable {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: "too many errors, the list is truncated"})
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonStoreReadError, Message: message,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
	}}
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

// discard deletes an object because it cannot be read, without asking anybody but
// the authorizer.
func (s *scope) discard() error {
	const verb = "unsafe-delete-ignore-read-errors"
	s.req.Annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	if s.h.Authorizer != nil && s.r != nil {
		decision, reason, err := s.h.Authorizer.Authorize(s.ctx(), s.attributesFor(verb))
		if err != nil {
			err = fmt.Errorf("error while checking permission for %q, %w", verb, err)
		} else if decision != authz.Allow {
			err = fmt.Errorf("not permitted to do %q, reason: %s", verb, reason)
		}
		if err != nil {
			return apierrors.NewForbidden(s.groupResource(), s.req.Name, err)
		}
	}
	switch err := s.objects.Discard(s.ctx(), s.key(), s.req.DryRun); {
	case errors.Is(err, store.ErrReadable):
		return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage", s.key()))
	case err != nil:
		return err
	}
	s.respondStatus(http.StatusOK, &metav1.Status{
		Status: metav1.StatusSuccess, Code: http.StatusOK, Details: &metav1.StatusDetails{Name: s.req.Name, Kind: s.def.Kind},
	})
	return nil
}
