package controlplane

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/authentication"
	"github.com/apikeel/kelson/builtin/authorization"
	"github.com/apikeel/kelson/builtin/core"
	builtinrbac "github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
)

// assembly is a server while it is put together.
type assembly struct {
	Config
	authority *pki.Authority
	backend   *acks
	objects   *store.Store
	resources *rest.Handler
	owners    *owners
	catalogs  *catalogs
	allocator *core.ClusterAllocator

	// The stages of a request.
	authn *authn.Stage
	authz *chain.Chain
	guard *rbac.Guard
	audit *audit.Log

	outer   *kelson.Server
	running sync.WaitGroup // what hooks have started
}

// Server builds the chain of servers on a store: aggregator, core, extensions.
// The first has nothing of its own yet. The store stays the caller's to close.
func (c Config) Server(ctx context.Context, backend storage.Backend, authority *pki.Authority) (*kelson.Server, error) {
	a := &assembly{Config: c, authority: authority, backend: &acks{Backend: backend}, catalogs: &catalogs{}, owners: &owners{}}
	a.outer = &kelson.Server{Name: "aggregator", Logger: c.Logger, PKI: authority, Serving: c.Serving}
	if err := errors.Join(c.Serving.Validate()); err != nil {
		return nil, err
	}
	connector, err := connect.New(c.Kubelets)
	if err != nil {
		return nil, err
	}
	if a.objects, err = store.Open(ctx, a.backend, store.Options{Logger: c.Logger}); err != nil {
		return nil, err
	}
	a.catalogs.objects, a.catalogs.owners = a.objects, a.owners
	a.resources = &rest.Handler{
		Catalog: a.catalogs.get, Store: a.objects, Connector: connector, Owners: a.owners,
		Logger: c.Logger,
	}
	if err = a.stages(); err == nil {
		err = a.catalog()
	}
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.outer.Delegate = a.core(a.extensions())
	return a.outer, nil
}

// stages makes what requests go through before they are routed.
func (a *assembly) stages() (err error) {
	cfg := a.Authentication
	cfg.Log, cfg.Objects = a.Logger, authn.Live(a.resources.Objects)
	if a.authority != nil {
		cfg.X509.CAs = append(cfg.X509.CAs, a.authority.CertificatePEM()...)
	}
	if cfg.ServiceAccounts.SigningKey == nil && cfg.ServiceAccounts.SigningKeyFile == "" {
		if cfg.ServiceAccounts.SigningKey, err = a.signingKey(); err != nil {
			return err
		}
	}
	if a.authn, err = cfg.New(); err != nil {
		return err
	}
	authorize := a.Authorization
	authorize.Logger = a.Logger
	if a.authz, a.guard, err = authorizers(authorize, a.objects, a.catalogs.get, a.backend); err != nil {
		return err
	}
	if a.Audit.PolicyFile != "" || a.Audit.Log.Path != "" || a.Audit.Webhook.ConfigFile != "" {
		auditing := a.Audit
		auditing.Logger = a.Logger
		if a.audit, err = audit.New(auditing); err != nil {
			return err
		}
	}
	s := a.outer
	s.Authenticate, s.Strip, s.ConnContext = a.authn.User, a.authn.Strip, authn.WithConnection
	s.Authorizer, s.Audit = a.authz, a.audit
	a.resources.Authorizer = a.authz
	s.Serving.ClientCAs = a.authn.ClientCAs
	s.Paths = a.authn.Paths(func() string {
		address, err := s.ExternalAddress()
		if err != nil {
			a.Logger.Warn("where clients reach the server is not known", "error", err)
		}
		return address
	})
	return nil
}

// signingKey is what tokens of service accounts are signed with: that of the
// data folder, unless nothing is kept.
func (a *assembly) signingKey() (crypto.Signer, error) {
	if a.DataDir == "" || a.Storage == StorageMemory {
		return serviceaccount.NewKey()
	}
	return serviceaccount.OpenKey(filepath.Join(a.DataDir, "pki", "sa.key"))
}

// catalog makes the catalog of built-in kinds.
func (a *assembly) catalog() (err error) {
	if a.allocator, err = allocator(a.resources, a.Config); err != nil {
		return err
	}
	groups, err := builtin.Select(builtin.Groups(builtin.Config{
		Authentication: authentication.Config{Reviewer: a.authn},
		Authorization:  authorization.Config{Authorizer: a.authz},
		RBAC:           builtinrbac.Config{Escalation: a.guard.Check},
		Core: core.Config{
			Log:              a.Logger,
			KubeletAddresses: a.KubeletAddresses, Components: components(a.backend),
			Allocator: a.allocator,
			Tokens: core.Tokens{
				Issuer: a.authn, Audiences: a.authn.Audiences(),
				MaxExpiration: a.Authentication.ServiceAccounts.MaxExpiration, NoExtension: a.Authentication.ServiceAccounts.NoExtension,
			},
		},
	}), a.RuntimeConfig)
	if err != nil {
		return err
	}
	catalog, err := resource.NewCatalog(append(groups, crd.Definitions())...)
	if err != nil {
		return fmt.Errorf("built-in kinds: %w", err)
	}
	a.catalogs.current.Store(catalog)
	return nil
}

// core is the server of the built-in kinds.
func (a *assembly) core(delegate *kelson.Server) *kelson.Server {
	return &kelson.Server{
		Name: "core", API: newAPI(a.catalogs.get, a.resources), Delegate: delegate,
		PostStartHooks: a.hooks(),
		HealthChecks: []kelson.HealthCheck{{Name: "etcd", Check: func(ctx context.Context) error {
			_, err := a.backend.Revision(ctx)
			return err
		}}},
		Close: []func() error{a.close},
	}
}

// extensions is the server of custom resources.
func (a *assembly) extensions() *kelson.Server {
	custom := &crd.Server{
		Store:   &definitions{a.objects, a.catalogs.get, &http.Client{Transport: a.outer.Loopback(loopbackUser())}},
		Publish: a.catalogs.publish, Logger: a.Logger,
	}
	return &kelson.Server{
		Name: "extensions", API: extensions{custom, newAPI(a.catalogs.get, a.resources), notFound{a.resources}},
		PostStartHooks: []kelson.Hook{{Name: "start-apiextensions-controllers", Run: func(ctx context.Context) error {
			a.running.Go(func() { custom.Run(ctx) })
			return custom.Sync(ctx)
		}}},
	}
}

// close ends what the assembly has begun.
func (a *assembly) close() error {
	a.running.Wait()
	if a.authn != nil {
		a.authn.Close()
	}
	a.objects.Close()
	return nil
}
