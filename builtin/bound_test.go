package builtin_test

import (
	"context"
	"errors"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// find returns the definition of a kind.
func find(t *testing.T, groups []resource.Group, group, name string) resource.Definition {
	t.Helper()
	for _, g := range groups {
		for _, d := range g.Resources {
			if g.Name == group && d.Resource == name {
				return d
			}
		}
	}
	t.Fatalf("%s of group %q is not there", name, group)
	return resource.Definition{}
}

// TestBoundTakesThePlaceOfUnbound: together they are what Groups has.
func TestBoundTakesThePlaceOfUnbound(t *testing.T) {
	refuse := errors.New("refused")
	cfg := builtin.Config{RBAC: rbac.Config{Escalation: func(context.Context, resource.Object, resource.Object) error { return refuse }}}
	unbound, err := resource.NewCatalog(builtin.Unbound(cfg)...)
	if err != nil {
		t.Fatal(err)
	}
	bound := builtin.Bound(cfg)
	catalog, err := unbound.Replace(bound...)
	if err != nil {
		t.Fatal(err)
	}
	want, err := resource.NewCatalog(builtin.Groups(cfg)...)
	if err != nil {
		t.Fatal(err)
	}
	got := catalog.Definitions()
	for i, d := range want.Definitions() {
		if i >= len(got) || got[i].Group != d.Group || got[i].Resource != d.Resource || len(got[i].Subresources) != len(d.Subresources) {
			t.Fatalf("definition %d: got %s, want %s of group %q", i, got[i].Resource, d.Resource, d.Group)
		}
	}
	d, _ := catalog.Definition("rbac.authorization.k8s.io", "roles")
	other := builtin.Config{RBAC: rbac.Config{Escalation: func(context.Context, resource.Object, resource.Object) error { return nil }}}
	for server, want := range map[*builtin.Config]error{&cfg: refuse, &other: nil} {
		ctx := request.With(t.Context(), &request.Request{Server: server})
		if _, err := d.Strategy.Begin(ctx, d.Versions[0].New(), nil); !errors.Is(err, want) {
			t.Errorf("a definition that two servers share: got %v, want what the server of the request says: %v", err, want)
		}
	}
}

// TestUnboundAllowsNothing: a definition must not judge without a server.
func TestUnboundAllowsNothing(t *testing.T) {
	groups := builtin.Unbound(builtin.Config{})
	roles := find(t, groups, "rbac.authorization.k8s.io", "roles")
	review := find(t, groups, "authorization.k8s.io", "selfsubjectrulesreviews")
	if _, err := roles.Strategy.Begin(t.Context(), roles.Versions[0].New(), nil); err == nil {
		t.Error("escalation: got no error, want one")
	}
	answer, err := review.Answer(t.Context(), &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "a"}})
	if status := answer.(*authorizationv1.SelfSubjectRulesReview).Status; err != nil || len(status.ResourceRules) > 0 || status.EvaluationError == "" {
		t.Errorf("review: got %v, %v, want no rules, and an error in the status", answer, err)
	}
}
