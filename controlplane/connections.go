package controlplane

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// alsoAllowed returns who tells whether a request would have been let in with
// another verb, by the authorizer that the server has then.
func alsoAllowed(server *kelson.Server) func(ctx context.Context, verb string) error {
	return func(ctx context.Context, verb string) error {
		if server.Authorizer == nil {
			return nil
		}
		req := request.From(ctx)
		decision, reason, err := server.Authorizer.Authorize(ctx, &authz.Attributes{
			User: &req.User, Verb: verb, IsResource: req.IsResource, Path: req.Path,
			Group: req.Group, Version: req.Version, Namespace: req.Namespace,
			Resource: req.Resource, Subresource: req.Subresource, Name: req.Name,
		})
		if err != nil || decision == authz.Allow {
			return err
		}
		return apierrors.NewForbidden(schema.GroupResource{Group: req.Group, Resource: req.Resource}, req.Name, errors.New(reason))
	}
}
