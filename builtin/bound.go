package builtin

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/builtin/authorization"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Most definitions depend on nothing but plain settings (gates, ports, durations), so
// the servers of a process can share them. The others are bound to a server: they use
// its authorizer, its allocator or its issuer of tokens.

// isBound reports whether the definition of a kind uses a function or an interface in
// a Config.
func (c *Config) isBound(group, name string) bool {
	switch group {
	case "":
		return slices.Contains([]string{"componentstatuses", "pods", "serviceaccounts", "services"}, name)
	case "authentication.k8s.io":
		return name == "tokenreviews"
	case "authorization.k8s.io", "rbac.authorization.k8s.io":
		return true
	case "admissionregistration.k8s.io":
		return name != "mutatingwebhookconfigurations" && name != "validatingwebhookconfigurations"
	case "certificates.k8s.io":
		return c.Certificates.MaySign != nil && name == "podcertificaterequests" ||
			c.Certificates.Issued != nil && name == "certificatesigningrequests"
	case "resource.k8s.io":
		return c.Devices.AdminNamespace != nil || c.Devices.MayBind != nil || c.Devices.MayReport != nil
	}
	return false
}

// Bound returns the definitions in Groups(cfg) that are bound to a server. Pods are
// among them, so that who assembles a server can add to their connections.
func Bound(cfg Config) []resource.Group {
	groups := makeGroups(cfg, false)
	for i := range groups {
		g := &groups[i]
		g.Resources = slices.DeleteFunc(g.Resources, func(d resource.Definition) bool { return !cfg.isBound(g.Name, d.Resource) })
	}
	return complete(cfg, groups)
}

// Unbound returns Groups(cfg) for any number of servers with the same plain settings.
// Definitions that are bound to a server must be replaced by those of Bound before they
// are used: here they panic instead of asking a server.
func Unbound(cfg Config) []resource.Group {
	unbound := Config{Gates: cfg.Gates, DenyPrivileged: cfg.DenyPrivileged}
	unbound.Authentication.Reviewer = noServer{}
	unbound.Authorization = authorization.Config{Authorizer: noServer{}, Rules: noServer{}}
	unbound.RBAC = rbac.Config{Escalation: func(context.Context, resource.Object, resource.Object) error { return unboundUse() }}
	unbound.Admission = cfg.Admission
	unbound.Admission.Params = func(context.Context, resource.Object) error { return unboundUse() }
	unbound.Core = core.Config{
		KubeletAddresses: cfg.Core.KubeletAddresses, KubeletPort: cfg.Core.KubeletPort, SplitLogs: cfg.Core.SplitLogs, EventTTL: cfg.Core.EventTTL,
		Allocator: noServer{}, Tokens: cfg.Core.Tokens,
	}
	if cfg.Core.Tokens.Issuer != nil {
		unbound.Core.Tokens.Issuer = noServer{}
	}
	return Groups(unbound)
}

// unboundUse stops who uses a definition that needs a server without one: to go on
// could allow what nobody has judged.
func unboundUse() error { panic("builtin: a definition is used that is not bound to a server") }

// noServer stands for everything that a server has.
type noServer struct {
	core.Allocator
	core.TokenIssuer
}

func (noServer) ReviewToken(context.Context, string, []string) (authenticationv1.TokenReviewStatus, error) {
	return authenticationv1.TokenReviewStatus{}, unboundUse()
}

func (noServer) Authorize(context.Context, *authz.Attributes) (authz.Decision, string, error) {
	return authz.Deny, "", unboundUse()
}

func (noServer) RulesFor(context.Context, *request.User, string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	return nil, nil, false, unboundUse()
}
