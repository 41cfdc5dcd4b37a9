package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/store"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxRevisionWait is how long a read waits for a revision that the cache has not
// reached.
const maxRevisionWait = 3 * time.Second

// get answers with one object, or a projection of it.
func (s *scope) get() error {
	if err := s.checkName(); err != nil {
		return err
	}
	q := s.req.Query
	if q.Bool("export") {
		return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	text := q.Get("resourceVersion")
	revision, err := parseRevision(text)
	if err != nil && s.isUncached() {
		return apierrors.NewBadRequest("invalid resource version: " + err.Error())
	} else if err != nil {
		return err
	}
	s.span.First("About to Get from storage")
	read := store.Read{AtLeast: revision, Any: text == "0"}
	rec, err := waitForRevision(s, read, func(ctx context.Context) (*store.Record, error) {
		return s.objects.Get(ctx, s.key(), read)
	})
	if err != nil {
		return err
	}
	if s.sub != nil && s.sub.Projection != nil {
		obj, err := s.decode(rec)
		if err != nil {
			return err
		}
		return s.readConversionError(rec, s.respondProjection(http.StatusOK, obj))
	}
	return s.readConversionError(rec, s.respond(http.StatusOK, rec))
}

// isUncached reports whether kube-apiserver would read from storage, where it has no watch
// cache.
func (s *scope) isUncached() bool { return s.h.LimitAny || s.def.Uncached }

// waitForRevision runs a read, and waits until the cache has reached the revision that it
// wants. The error of a revision that does not come in time says that it is too large.
func waitForRevision[T any](s *scope, read store.Read, run func(context.Context) (T, error)) (T, error) {
	if read.AtLeast == 0 {
		return run(s.ctx())
	}
	ctx, cancel := context.WithTimeout(s.ctx(), maxRevisionWait)
	defer cancel()
	v, err := run(ctx)
	if errors.Is(err, context.DeadlineExceeded) && s.ctx().Err() == nil {
		err = errTooLargeRevision(read.AtLeast, s.objects.Revision())
	}
	return v, err
}

// parseRevision reads a resourceVersion; the empty one is 0.
func parseRevision(text string) (int64, error) {
	n, err := request.ParseRevision(text)
	if err != nil {
		return 0, errRevision(text, err)
	}
	return n, nil
}

// errRevision is the error for a resourceVersion that is no number.
func errRevision(text string, err error) error {
	return errBare(field.Invalid(field.NewPath("resourceVersion"), text, err.Error()))
}

// errTooLargeRevision is the error for a resourceVersion that the store has not reached yet.
func errTooLargeRevision(asked, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}
