package controlplane

import (
	"context"
	"testing"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

func TestAlsoAllowed(t *testing.T) {
	server := &kelson.Server{}
	ctx := request.With(t.Context(), &request.Request{Info: request.Info{
		IsResource: true, Verb: request.Get, Version: "v1", Namespace: "ns", Resource: "pods", Subresource: "exec", Name: "p",
	}})
	allowed := alsoAllowed(server)
	if err := allowed(ctx, request.Create); err != nil {
		t.Errorf("without an authorizer: %v", err)
	}
	server.Authorizer = authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		if a.Verb == request.Create && a.Resource == "pods" && a.Subresource == "exec" && a.Name == "p" {
			return authz.NoOpinion, "not you", nil
		}
		return authz.Allow, "", nil
	})
	if err := allowed(ctx, request.Create); err == nil || err.Error() != `pods "p" is forbidden: not you` {
		t.Errorf("forbidden: %v", err)
	}
	if err := allowed(ctx, request.Get); err != nil {
		t.Errorf("allowed: %v", err)
	}
}
