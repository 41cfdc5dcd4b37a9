// Package delegated authorizes with another API server, by SubjectAccessReviews: an
// aggregated API server has no roles of its own and asks the server that it is
// registered with. Start at New. It never decides itself, except for administrators and
// health checks.
package delegated

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/webhook"
)

// cacheTTL is how long an answer is cached.
const cacheTTL = 10 * time.Second

// New returns an authorizer that asks the parent. Members of system:masters, and
// requests for the health paths, are allowed without asking.
func New(parent *rest.Config, log *slog.Logger) (authz.Authorizer, error) {
	client := rest.CopyConfig(parent)
	client.Host = strings.TrimSuffix(client.Host, "/") + "/apis/authorization.k8s.io/v1/subjectaccessreviews"
	client.APIPath = ""
	reviews, err := webhook.New(webhook.Config{
		Client: client, Version: "v1", AuthorizedTTL: cacheTTL, UnauthorizedTTL: cacheTTL, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return authz.Func(func(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		if slices.Contains(a.User.Groups, authz.Masters) || !a.IsResource && isHealth(a.Path) {
			return authz.Allow, "", nil
		}
		return reviews.Authorize(ctx, a)
	}), nil
}

func isHealth(path string) bool {
	switch strings.Trim(path, "/") {
	case "healthz", "readyz", "livez":
		return true
	}
	return false
}
