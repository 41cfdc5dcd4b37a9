package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/request"
)

// Forbidden returns the 403 error for a request that was not allowed.
func Forbidden(a *Attributes, reason string) *apierrors.StatusError {
	// Text from the client is escaped so that it never looks like HTML in an answer.
	// The reason comes from the server.
	text := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(forbiddenText(a))
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: a.Group, Resource: a.Resource}, a.Name, errors.New(text))
}

// forbiddenText returns the first part of the message: who cannot do what.
func forbiddenText(a *Attributes) string {
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

// Check returns nil if the authorizer allows a request, and else the API error for the
// client. An authorizer can allow and return an error at the same time.
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

// CheckBeside is Check for what the request of ctx does beside its own verb, such as to read
// objects for a page about them. If its user is impersonated by a right that has constraints, who
// impersonates needs that right for this too, as if it were a request of its own.
func CheckBeside(ctx context.Context, authorizer Authorizer, a *Attributes) error {
	if err := Check(ctx, authorizer, a); err != nil {
		return err
	}
	req := request.From(ctx)
	mode, constrained := strings.CutPrefix(req.ImpersonationConstraint, "impersonate:")
	if req.Impersonator == nil || !constrained {
		return nil
	}
	on := *a
	on.User, on.Verb = req.Impersonator, "impersonate-on:"+mode+":"+a.Verb
	return Check(ctx, authorizer, &on)
}
