package controlplane

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/builtin/authentication"
	"github.com/apikeel/kelson/builtin/authorization"
	"github.com/apikeel/kelson/builtin/core"
	builtinrbac "github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/store"
)

// catalog makes the catalog of built-in kinds.
func (a *assembly) catalog() (err error) {
	services, err := allocator(a.resources, a.Config)
	if err != nil {
		return err
	}
	a.allocator = &measuredAllocator{services, a.resources, a.measured}
	longest, extended := a.authn.TokenLifetime()
	catalog, err := a.builtinCatalog(builtin.Config{
		Gates:          a.Gates,
		Authentication: authentication.Config{Reviewer: a.authn},
		Authorization:  authorization.Config{Authorizer: a.authz, Rules: a.authz},
		RBAC:           builtinrbac.Config{Escalation: a.guard.Check},
		Admission:      admissionregistration.Config{Params: (&paramAccess{a.catalogs.get, a.resources.Objects, a.authz}).mayReadParams},
		Certificates:   a.signers(),
		Devices:        a.devices(),
		DenyPrivileged: a.DenyPrivileged,
		Core: core.Config{
			Log: a.Logger, EventTTL: a.EventTTL,
			KubeletAddresses: a.KubeletAddresses, KubeletPort: a.KubeletPort, Components: components(a.places.backends()),
			Allocator: a.allocator,
			Tokens: core.Tokens{
				Issuer: a.authn, Audiences: a.authn.Audiences(),
				MaxExpiration: longest, MaxExtended: extended, NoExtension: a.Authentication.ServiceAccounts.NoExtension,
				MayAttest: a.attester(), AnyUID: !a.Gates.Enabled("TokenRequestServiceAccountUIDValidation"),
			},
		},
	})
	if err != nil {
		return err
	}
	a.catalogs.builtin = catalog
	a.catalogs.current.Store(catalog)
	return a.checkStorageVersions()
}

// catalogs is the catalog as it is now: built-in kinds, and the custom ones
// that come and go.
type catalogs struct {
	mu      sync.Mutex // held by who changes it
	builtin *resource.Catalog
	current atomic.Pointer[resource.Catalog]
	objects *store.Store // that of the first place
	owners  *managedfields.Owners
	// onChange is called when there is another catalog; nil if nobody cares.
	onChange func()
}

func (c *catalogs) get() *resource.Catalog { return c.current.Load() }

// isBuiltin implements crd.Server.BuiltIn. As with kube-apiserver, a group that has
// built-in kinds has no custom ones, whatever their version; but for the group of the
// definitions themselves, in which versions without built-in kinds are free.
func (c *catalogs) isBuiltin(group, version, resource string) bool {
	g, ok := c.builtin.Group(group)
	if !ok || group != crd.Group {
		return ok
	}
	_, hasVersion := g.Version(version)
	_, hasResource := c.builtin.Definition(group, resource)
	return hasVersion || hasResource
}

// kinds returns how a kind is served.
func (c *catalogs) kinds(kind schema.GroupVersionKind) []*resource.Served {
	if served, ok := c.get().LookupKind(kind); ok {
		return []*resource.Served{served}
	}
	return nil
}

// publish brings custom resources into the catalog, and takes others out.
func (c *catalogs) publish(put []*resource.Definition, gone []schema.GroupResource) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.get()
	next, err := old.Change(put, gone)
	if err != nil {
		return err
	}
	c.current.Store(next)
	if c.onChange != nil {
		defer c.onChange()
	}
	groups := map[string]bool{}
	for _, def := range put {
		groups[def.Group] = true
	}
	for _, gr := range gone {
		groups[gr.Group] = true
		if was, ok := old.Definition(gr.Group, gr.Resource); ok {
			c.objects.Forget(was)
		}
	}
	for name := range groups {
		if _, ok := old.Group(name); ok {
			c.owners.Forget(name)
		}
	}
	return nil
}
