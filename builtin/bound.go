package builtin

import (
	"context"
	"errors"
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
// the servers of a process share them. What they use of a server (its authorizer, its
// rules against escalation) they find in the context of the request (server). A few have
// functions without a context, and are bound to a server: each server has its own.

// isBound reports whether the definition of a kind uses a function or an interface in
// a Config without a context.
func (c *Config) isBound(group, name string) bool {
	switch group {
	case "":
		return slices.Contains([]string{"componentstatuses", "pods", "serviceaccounts", "services"}, name)
	case "certificates.k8s.io":
		return c.Certificates.Issued != nil && name == "certificatesigningrequests"
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
// Their requests must have the Config of their server (request.Request.Server), and
// definitions that are bound to a server must be replaced by those of Bound: without a
// server they refuse, or panic.
func Unbound(cfg Config) []resource.Group {
	unbound := Config{Gates: cfg.Gates, DenyPrivileged: cfg.DenyPrivileged}
	unbound.Authentication.Reviewer = anyServer{}
	unbound.Authorization = authorization.Config{Authorizer: anyServer{}, Rules: anyServer{}}
	unbound.RBAC = rbac.Config{Escalation: func(ctx context.Context, obj, old resource.Object) error {
		cfg, err := serverOf(ctx)
		if err != nil {
			return err
		}
		return cfg.RBAC.Escalation(ctx, obj, old)
	}}
	unbound.Admission = cfg.Admission
	unbound.Admission.Params = func(ctx context.Context, obj resource.Object) error {
		cfg, err := serverOf(ctx)
		if err != nil {
			return err
		}
		return cfg.Admission.Params(ctx, obj)
	}
	if cfg.Certificates.MaySign != nil {
		unbound.Certificates.MaySign = func(ctx context.Context, signer string) bool {
			cfg, err := serverOf(ctx)
			return err == nil && cfg.Certificates.MaySign(ctx, signer)
		}
	}
	if cfg.Devices.AdminNamespace != nil {
		unbound.Devices.AdminNamespace = func(ctx context.Context, namespace string) (bool, error) {
			cfg, err := serverOf(ctx)
			if err != nil {
				return false, err
			}
			return cfg.Devices.AdminNamespace(ctx, namespace)
		}
	}
	if cfg.Devices.MayBind != nil {
		unbound.Devices.MayBind = func(ctx context.Context) error {
			cfg, err := serverOf(ctx)
			if err != nil {
				return err
			}
			return cfg.Devices.MayBind(ctx)
		}
	}
	if cfg.Devices.MayReport != nil {
		unbound.Devices.MayReport = func(ctx context.Context, driver string, verbs []string) error {
			cfg, err := serverOf(ctx)
			if err != nil {
				return err
			}
			return cfg.Devices.MayReport(ctx, driver, verbs)
		}
	}
	unbound.Core = core.Config{
		KubeletAddresses: cfg.Core.KubeletAddresses, KubeletPort: cfg.Core.KubeletPort, SplitLogs: cfg.Core.SplitLogs, EventTTL: cfg.Core.EventTTL,
		Allocator: noServer{}, Tokens: cfg.Core.Tokens,
	}
	if cfg.Core.Tokens.Issuer != nil {
		unbound.Core.Tokens.Issuer = noServer{}
	}
	return Groups(unbound)
}

// serverOf returns the Config of the server that a request came to. Without one there is an
// error: to go on could allow what nobody has judged.
func serverOf(ctx context.Context) (*Config, error) {
	if cfg, ok := request.From(ctx).Server.(*Config); ok {
		return cfg, nil
	}
	return nil, errors.New("the definition of a built-in kind is used by a request without a server")
}

// noServer stands for everything that definitions bound to a server have.
type noServer struct {
	core.Allocator
	core.TokenIssuer
}

// anyServer is the server that a request came to.
type anyServer struct{}

func (anyServer) ReviewToken(ctx context.Context, token string, audiences []string) (authenticationv1.TokenReviewStatus, error) {
	cfg, err := serverOf(ctx)
	if err != nil {
		return authenticationv1.TokenReviewStatus{}, err
	}
	return cfg.Authentication.Reviewer.ReviewToken(ctx, token, audiences)
}

func (anyServer) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	cfg, err := serverOf(ctx)
	if err != nil {
		return authz.Deny, "", err
	}
	return cfg.Authorization.Authorizer.Authorize(ctx, a)
}

func (anyServer) RulesFor(ctx context.Context, user *request.User, namespace string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	cfg, err := serverOf(ctx)
	if err != nil {
		return nil, nil, false, err
	}
	return cfg.Authorization.Rules.RulesFor(ctx, user, namespace)
}
