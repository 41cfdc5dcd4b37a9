package rest

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// What was allowed for a namespace must not be done in the next one of that name, whose owner has allowed
// nothing: which one it is, is noted before the request is authorized, and compared when its write is
// given to the store.

// NoteNamespaces returns an authorizer that notes for which namespace it has judged a write.
func (h *Handler) NoteNamespaces(a authz.Authorizer) authz.Authorizer { return noting{a, h} }

type noting struct {
	authz.Authorizer
	h *Handler
}

// Authorize implements authz.Authorizer.
func (n noting) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	switch a.Verb {
	case request.Create, request.Update, request.Patch, request.Delete, request.DeleteCollection:
		if a.IsResource && a.Namespace != "" {
			request.From(ctx).NamespaceUID = n.h.namespaceUID(ctx, a.Namespace)
		}
	}
	return n.Authorizer.Authorize(ctx, a)
}

// namespaceUID returns the UID of a namespace, as far as this server knows; "" if there is none.
func (h *Handler) namespaceUID(ctx context.Context, name string) types.UID {
	ns, err := h.namespace(ctx, name)
	if err != nil || ns == nil {
		return ""
	}
	return ns.GetUID()
}

// namespace returns a namespace, as this server knows it with all that it has acknowledged; nil if
// namespaces are not served.
func (h *Handler) namespace(ctx context.Context, name string) (resource.Object, error) {
	namespaces, ok := h.Stored("", "namespaces")
	if !ok {
		return nil, nil
	}
	return namespaces.View(store.Read{Acknowledged: true}).Shared().Get(ctx, "", name)
}

// checkNamespace returns an error if the namespace is not the one for which the write was allowed. A create
// needs it to be there; other writes may tidy up behind one that is gone.
func (s *scope) checkNamespace(creates bool) error {
	was := s.req.NamespaceUID
	if was == "" || !s.def.Namespaced || s.req.Namespace == "" {
		return nil
	}
	ns, err := s.h.namespace(s.ctx(), s.req.Namespace)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		if creates {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, s.req.Namespace)
		}
		return nil
	case err != nil:
		return err
	case ns != nil && ns.GetUID() != was:
		return apierrors.NewConflict(s.groupResource(), s.req.Name, fmt.Errorf(
			"the namespace %q was deleted and made again since the request was authorized; send it again if it is meant for the new one", s.req.Namespace))
	}
	return nil
}

// slowBody is how long a body may take to arrive before its request is authorized again.
const slowBody = time.Second

// authorizeAgain authorizes a request whose body has begun to arrive a while ago: rights may have been
// taken away since, and the namespace may be another one.
func (s *scope) authorizeAgain(began time.Time) error {
	if s.h.Authorizer == nil || time.Since(began) < slowBody {
		return nil
	}
	return authz.Check(s.ctx(), s.h.NoteNamespaces(s.h.Authorizer), authz.AttributesOf(s.req))
}
