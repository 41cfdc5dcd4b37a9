package controlplane

import (
	"context"
	"fmt"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/rest"
)

// admission puts the plugins into the way of writes.
func (a *assembly) admission() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("failed to apply admission: %w", err)
		}
	}()
	if _, err := a.Admission.Configuration(""); err != nil {
		return err // for which no plugin is to blame
	}
	objects := rest.AdmissionObjects{Handler: a.resources}
	cfg := a.Admission
	// A pod may come before the controller has seen its namespace. Without that controller, the
	// accounts are somebody else's business.
	cfg.MakeAccounts = cfg.MakeAccounts || a.runsController(controller.ServiceAccountsName)
	measured := a.measured
	brought, err := a.policies(objects, measured)
	if err != nil {
		return err
	}
	charges := a.charges
	if !a.runsController(controller.QuotasName) {
		charges = nil
	}
	a.resources.Admission, err = plugin.New(cfg, plugin.Deps{
		Charges:   charges,
		Gates:     a.Gates.Enabled,
		Objects:   objects,
		Authorize: authorizeUser(a.authz),
		Kinds:     a.catalogs.kinds,
		Plugins:   append(brought, a.Plugins...),
		Metrics:   measured,
		Log:       a.Logger,
	})
	return err
}

// authorizeUser returns the plugin.Authorize of an authorizer.
func authorizeUser(a authz.Authorizer) plugin.Authorize {
	return func(ctx context.Context, user *request.User, what request.Info) (bool, string, error) {
		decision, reason, err := a.Authorize(ctx, &authz.Attributes{
			User: user, Verb: what.Verb, IsResource: what.IsResource, Path: what.Path,
			Group: what.Group, Version: what.Version, Namespace: what.Namespace,
			Resource: what.Resource, Subresource: what.Subresource, Name: what.Name,
		})
		return decision == authz.Allow, reason, err
	}
}
