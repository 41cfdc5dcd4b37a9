package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Forbidden is the error that a client gets who may not do something.
func Forbidden(a *Attributes, reason string) *apierrors.StatusError {
	// Nothing that a client sends may come back looking like HTML. The reason
	// is the server's own.
	text := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(cannot(a))
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(text))
}

// cannot says who cannot do what.
func cannot(a *Attributes) string {
	user := ""
	if a.User != nil {
		user = a.User.Name
	}
	if !a.IsResource {
		return fmt.Sprintf("User %q cannot %s path %q", user, a.Verb, a.Path)
	}
	resource, scope := a.Resource, "at the cluster scope"
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	if a.Namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", a.Namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", user, a.Verb, resource, a.Group, scope)
}

// Check returns nil if an authorizer allows something, and what the client is
// told if not. An authorizer can allow in spite of an error.
func Check(ctx context.Context, authorizer Authorizer, a *Attributes) error {
	decision, reason, err := authorizer.Authorize(ctx, a)
	switch {
	case decision == Allow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return Forbidden(a, reason)
}
