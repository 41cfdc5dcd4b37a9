package controlplane

import (
	"context"
	"fmt"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/builtin/certificates"
	"github.com/apikeel/kelson/builtin/dra"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

// Kinds that ask the authorizer about a part of an object: who writes it may need more
// than the permission to write the object.

// devices returns what claims of devices ask the server.
func (a *assembly) devices() dra.Config {
	cfg := dra.Config{AdminNamespace: a.isAdminNamespace}
	if a.Gates.Enabled("DRAResourceClaimGranularStatusAuthorization") {
		cfg.MayBind, cfg.MayReport = a.mayBindClaim, a.mayReportDevices
	}
	return cfg
}

// isAdminNamespace implements dra.Config.AdminNamespace.
func (a *assembly) isAdminNamespace(ctx context.Context, name string) (bool, error) {
	namespace, err := a.resources.Objects("", "namespaces").Get(ctx, "", name)
	if err != nil {
		return false, err
	}
	return namespace.GetLabels()[dra.AdminLabel] == "true", nil
}

// mayBindClaim implements dra.Config.MayBind. The permission is cluster-wide.
func (a *assembly) mayBindClaim(ctx context.Context) error {
	req := request.From(ctx)
	return a.mayUse(ctx, &authz.Attributes{User: &req.User, Verb: req.Verb, Group: resourcev1.GroupName, Version: req.Version,
		Resource: "resourceclaims", Subresource: resourcev1.SubresourceBinding})
}

// mayReportDevices implements dra.Config.MayReport. If no verb is allowed, the error is
// that of the first.
func (a *assembly) mayReportDevices(ctx context.Context, driver string, verbs []string) (first error) {
	req := request.From(ctx)
	for _, verb := range verbs {
		err := a.mayUse(ctx, &authz.Attributes{User: &req.User, Verb: verb, Group: resourcev1.GroupName, Version: req.Version, Namespace: req.Namespace,
			Resource: "resourceclaims", Subresource: resourcev1.SubresourceDriver, Name: driver})
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// mayUse returns an error for the client unless the authorizer allows what is asked for.
func (a *assembly) mayUse(ctx context.Context, what *authz.Attributes) error {
	what.IsResource = true
	decision, reason, err := a.authz.Authorize(ctx, what)
	switch {
	case decision == authz.Allow:
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return authz.Forbidden(what, reason)
}

// webhookTokens is the feature gate of tokens that are bound to configurations of webhooks.
const webhookTokens = "APIServerWebhookAuthenticationToken"

// attester returns core.Tokens.MayAttest, nil while its gate is disabled. An account may
// vouch for an API group if it may attest it.
func (a *assembly) attester() func(ctx context.Context, user *request.User, group string) error {
	if !a.Gates.Enabled(webhookTokens) {
		return nil
	}
	return func(ctx context.Context, user *request.User, group string) error {
		return a.mayUse(ctx, &authz.Attributes{User: user, Verb: "attest", Group: authenticationv1.GroupName, Version: "*",
			Resource: authenticationv1.AttestationAdmissionReviewAPIGroups, Name: group})
	}
}

// countIssued counts certificates by signer; those outside of kubernetes.io, which anybody
// can name, are counted together.
func (a *assembly) countIssued(signer string, honored bool) {
	if !strings.HasPrefix(signer, "kubernetes.io/") {
		signer = "other"
	}
	a.measured.Series(measure.CSRDurationsRequested, signer).Observe(1)
	if honored {
		a.measured.Series(measure.CSRDurationsHonored, signer).Observe(1)
	}
}

// signers returns what requests for certificates ask the server.
func (a *assembly) signers() certificates.Config {
	return certificates.Config{Issued: a.countIssued, MaySign: func(ctx context.Context, signer string) bool {
		for _, name := range certificates.SignerNames(signer) {
			err := a.mayUse(ctx, &authz.Attributes{User: &request.From(ctx).User, Verb: "sign", Group: certificatesv1.GroupName, Version: "*", Resource: "signers", Name: name})
			if err == nil {
				return true
			}
		}
		return false
	}}
}
