package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/wire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fail answers a request with an error.
func (s *scope) fail(err error) {
	err = s.translate(err)
	s.endDecoded() // the client may be slow to read
	s.changed.end()
	s.releaseSeats(0)
	WriteError(s.w, s.r, err, s.h)
}

// translate gives errors of the store the words that clients know.
func (s *scope) translate(err error) error {
	if errors.Is(err, budget.ErrBusy) {
		// Who has asked for memory is not to blame: a conversion webhook is named in err.
		return apierrors.NewTooManyRequests(budget.ErrBusy.Error()+", please try again later", 1)
	}
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		return err
	}
	if err := s.unreadableError(err); err != nil {
		return err
	}
	gr := schema.GroupResource{Group: s.served.GroupVersion.Group, Resource: s.def.Resource}
	name := s.req.Name
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return apierrors.NewNotFound(gr, name)
	case errors.Is(err, storage.ErrExists):
		return apierrors.NewAlreadyExists(gr, name)
	case errors.Is(err, storage.ErrConflict):
		return apierrors.NewConflict(gr, name, errModified)
	case errors.Is(err, storage.ErrCompacted), errors.Is(err, store.ErrExpired):
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, storage.ErrTooLarge):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, wire.ErrNotStorable):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError(status.TimeoutMessage, 0)
	case errors.Is(err, storage.ErrUncertain):
		// Without Retry-After: clients would send the write again by themselves, and it
		// may have been applied.
		return uncertainError{apierrors.NewTimeoutError(fmt.Sprintf("the write may or may not have been applied: %v", err), 0)}
	case errors.Is(err, storage.ErrUnavailable), errors.Is(err, storage.ErrClosed):
		return errStoreUnavailable(err)
	case errors.Is(err, storage.ErrNoSpace), errors.Is(err, storage.ErrReadOnly):
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: "InsufficientStorage", Message: err.Error()}}
	}
	return apierrors.NewInternalError(err)
}

// uncertainError is the error of a write that may have been applied, or was: not to be sent again.
type uncertainError struct{ *apierrors.StatusError }

// isTimeout reports whether a request failed because its deadline has passed. An uncertain
// write says more than that, so it is none.
func isTimeout(r *http.Request, err error, answer *metav1.Status) bool {
	return answer.Reason == metav1.StatusReasonTimeout && !errors.As(err, new(uncertainError)) &&
		errors.Is(r.Context().Err(), context.DeadlineExceeded)
}

// errStoreUnavailable is the answer to a request that did nothing, since the store cannot be
// reached. Clients send it again after a second.
func errStoreUnavailable(cause error) error {
	err := apierrors.NewServiceUnavailable(cause.Error())
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// WriteError answers a request with the Status of an error, in the form that
// the client asks for if that is possible, else in JSON.
func WriteError(w http.ResponseWriter, r *http.Request, err error, h *Handler) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	answer := known.Status()
	if answer.Code == 0 {
		answer.Code = http.StatusInternalServerError
	}
	if answer.Code >= 500 && h != nil && !errors.Is(r.Context().Err(), context.Canceled) {
		h.log().Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if isTimeout(r, err, &answer) {
		if req := request.From(r.Context()); req != nil && req.Audit != nil {
			timeout := apierrors.NewTimeoutError(status.TimeoutMessage, 0).ErrStatus
			req.Audit.AnsweredStatus(&timeout, func() ([]byte, error) { return json.Marshal(&timeout) })
		}
		status.WriteTimeout(w)
		return
	}
	answer.Status = metav1.StatusFailure
	status.Write(w, r, answer)
}

// writeStatus writes a Status of success.
func writeStatus(w http.ResponseWriter, format wire.Format, code int, answer *metav1.Status) {
	body, media := status.Encode(answer, format.Media.String(), format.Pretty)
	w.Header().Set("Content-Type", media)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

func errMethodNotAllowed() error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "the server does not allow this method on the requested resource",
		Details: &metav1.StatusDetails{},
	}}
}

// errBare is an error for which kube-apiserver has no reason.
func errBare(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error(),
	}}
}

// reserveError maps an error of Strategy.Begin, or of a conversion, to an API error: it is
// a Status already, or becomes one without a reason.
func reserveError(err error) error {
	if errors.As(err, new(apierrors.APIStatus)) || errors.Is(err, budget.ErrBusy) {
		return err
	}
	return errBare(err)
}

func errUnsupportedMedia(accepted string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request was in an unknown format - accepted media types include: %s", accepted),
	}}
}

func errNotAcceptable(accepted string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: fmt.Sprintf("only the following media types are accepted: %s", accepted),
	}}
}
