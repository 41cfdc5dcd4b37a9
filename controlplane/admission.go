package controlplane

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
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
	// The controller that makes the accounts may not run, or not yet be there.
	cfg.MakeAccounts = true
	measured := a.measured
	brought, err := a.policies(objects, measured)
	if err != nil {
		return err
	}
	a.resources.Admission, err = plugin.New(cfg, plugin.Deps{
		Gates:     a.Gates.Enabled,
		Objects:   objects,
		Authorize: a.may,
		Kinds:     a.kinds,
		Plugins:   append(brought, a.Plugins...),
		Metrics:   measured,
		Log:       a.Logger,
	})
	return err
}

// may implements plugin.Authorize.
func (a *assembly) may(ctx context.Context, user *request.User, what request.Info) (bool, string, error) {
	decision, reason, err := a.authz.Authorize(ctx, &authz.Attributes{
		User: user, Verb: what.Verb, IsResource: what.IsResource, Path: what.Path,
		Group: what.Group, Version: what.Version, Namespace: what.Namespace,
		Resource: what.Resource, Subresource: what.Subresource, Name: what.Name,
	})
	return decision == authz.Allow, reason, err
}

// kinds returns how a kind is served.
func (a *assembly) kinds(kind schema.GroupVersionKind) []*resource.Served {
	if served, ok := a.catalogs.get().LookupKind(kind); ok {
		return []*resource.Served{served}
	}
	return nil
}
