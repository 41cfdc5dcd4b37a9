package main

import (
	"slices"
	"time"

	"github.com/apikeel/kelson/authz/chain"
	"github.com/spf13/pflag"
)

// authzFlags are the flags of authorization.
type authzFlags struct {
	chain.Config
	allowed, denied time.Duration
}

func (f *authzFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.Modes, "authorization-mode", nil, "who decides, in this `order`: AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node (default Node,RBAC)")
	fs.StringVar(&f.PolicyFile, "authorization-policy-file", "", "`file` with the policies of ABAC, one JSON object a line")
	fs.StringVar(&f.ConfigFile, "authorization-config", "", "`file` with an AuthorizationConfiguration, read again when it changes; instead of --authorization-mode and --authorization-webhook-…")
	fs.StringVar(&f.WebhookConfigFile, "authorization-webhook-config-file", "", "kubeconfig `file` of the service that decides in mode Webhook")
	fs.StringVar(&f.WebhookVersion, "authorization-webhook-version", "", "`version` of the SubjectAccessReview that it gets: v1 or v1beta1 (default v1beta1)")
	fs.DurationVar(&f.allowed, "authorization-webhook-cache-authorized-ttl", 5*time.Minute, "how long it is remembered what it has allowed")
	fs.DurationVar(&f.denied, "authorization-webhook-cache-unauthorized-ttl", 30*time.Second, "how long it is remembered what it has not")
}

func (f *authzFlags) apply(s *setup) {
	if s.given("authorization-webhook-cache-authorized-ttl") {
		f.WebhookCacheAuthorizedTTL = &f.allowed
	}
	if s.given("authorization-webhook-cache-unauthorized-ttl") {
		f.WebhookCacheUnauthorizedTTL = &f.denied
	}
	// AlwaysAllow would allow everything to anonymous users.
	if who := &s.config.Authentication; slices.Contains(f.Modes, chain.ModeAlwaysAllow) && !who.DisableAnonymous {
		s.log.Warn("AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should use a different authorizer")
		who.DisableAnonymous = true
	}
	s.config.Authorization = f.Config
	s.refuse(checkAuthorization, f.Validate())
}
