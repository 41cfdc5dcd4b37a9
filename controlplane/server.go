package controlplane

import (
	"context"
	"crypto"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission/manifests"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/admissionregistration"
	"github.com/apikeel/kelson/builtin/authentication"
	"github.com/apikeel/kelson/builtin/authorization"
	"github.com/apikeel/kelson/builtin/core"
	builtinrbac "github.com/apikeel/kelson/builtin/rbac"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/trace/otlp"
	"github.com/apikeel/kelson/webhook"
)

// assembly is a server while it is put together.
type assembly struct {
	Config
	authority *pki.Authority
	places    []place
	where     func(group, name string) int // the place of a resource
	encrypted *encrypt.Backend             // nil if nothing is
	objects   *store.Store
	resources *rest.Handler
	owners    *owners
	catalogs  *catalogs
	own       *apiserver.Server   // what keeps the objects of the server itself
	identity  *apiserver.Identity // nil if nobody asks
	allocator *core.ClusterAllocator

	// The stages of a request.
	authn *authn.Stage
	authz *chain.Chain
	guard *rbac.Guard
	audit *audit.Log
	flow  *flow.Control // nil if priority and fairness is off

	webhooks []*webhook.Client
	// manifestDirs are followed while the server runs.
	manifestDirs []*manifests.Directory
	registry     *metrics.Registry
	measured     *metrics.Families // of parts that know nothing else of metrics
	slis         *metrics.Registry // of health checks
	traces       *otlp.Exporter    // nil if nothing is traced
	// synced reports whether what the server decides by has been read; nil if
	// there is nothing.
	synced func() bool

	outer   *kelson.Server
	running sync.WaitGroup                    // what hooks have started
	service atomic.Pointer[apiserver.Service] // nil before it is kept

	aggregator  *aggregator.Server
	registered  chan struct{} // closed when all that is served here has an APIService
	custom      *crd.Server
	definitions *store.Resource // nil if they are not served
	proxies     *pki.Authority  // of the certificate for servers behind this one; nil if that is in a file

	// signer is what tokens of service accounts are signed with, nil if that is
	// in a file.
	signer  crypto.Signer
	manager *controller.Manager
}

// Server builds the chain of servers on a store: aggregator, core, extensions.
// The store stays the caller's to close.
func (c Config) Server(ctx context.Context, backend storage.Backend, authority *pki.Authority) (*kelson.Server, error) {
	a, err := c.assemble(ctx, backend, authority)
	if err != nil {
		return nil, err
	}
	if a.manager, err = a.newManager(); err == nil {
		err = a.admission()
	}
	if err == nil {
		api := newAPI(a.catalogs.get, a.resources)
		a.outer.Delegate = a.core(api, a.extensions(api))
		err = a.aggregation()
	}
	if err == nil {
		a.Kubelets.Metrics = a.measured
		a.resources.Connector, err = connect.New(a.Kubelets)
	}
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a.outer, nil
}

// assemble opens the stores, and makes what requests go through and what is served.
func (c Config) assemble(ctx context.Context, backend storage.Backend, authority *pki.Authority) (*assembly, error) {
	a := &assembly{Config: c, authority: authority, catalogs: &catalogs{}, owners: &owners{}, registered: make(chan struct{})}
	a.outer = &kelson.Server{Name: "aggregator", Logger: c.Logger, PKI: authority, Serving: c.Serving, RequestTimeout: c.RequestTimeout}
	a.outer.Shutdown, a.outer.LivezGrace, a.outer.Now, a.outer.Version = c.Shutdown, c.LivezGrace, c.Now, c.version()
	if err := errors.Join(c.Serving.Validate(), c.Flow.Validate()); err != nil {
		return nil, err
	}
	a.registry = metrics.New()
	a.measured = metrics.NewFamilies(a.registry)
	a.Egress.Measure(a.measured)
	backend, err := a.encrypting(backend)
	if err != nil {
		return nil, err
	}
	if err = a.openPlaces(ctx, backend); err != nil {
		a.release()
		return nil, err
	}
	a.catalogs.objects, a.catalogs.owners = a.objects, a.owners
	a.resources = &rest.Handler{
		Catalog: a.catalogs.get, Store: a.objects, Owners: a.owners,
		MinWatch: c.MinRequestTimeout, Logger: c.Logger,
	}
	a.own = &apiserver.Server{
		Catalog: a.catalogs.get, Objects: a.resources.ObjectsAs, Loopback: a.outer.Loopback(loopbackUser()),
		Running: &a.running, Logger: c.Logger,
	}
	if err = a.tracing(); err == nil {
		err = a.stages()
	}
	if err == nil {
		err = a.catalog()
	}
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// stages makes what requests go through before they are routed.
func (a *assembly) stages() (err error) {
	cfg := a.Authentication
	cfg.Log, cfg.Objects, cfg.Metrics = a.Logger, authn.Live(a.resources.Objects), a.measured
	if a.Now != nil {
		cfg.Now, cfg.X509.Now = a.Now, time.Now
	}
	if a.authority != nil {
		cfg.X509.CAs = append(cfg.X509.CAs, a.authority.CertificatePEM()...)
	}
	if sa := &cfg.ServiceAccounts; sa.SigningKey == nil && sa.SigningKeyFile == "" && sa.SigningEndpoint == "" {
		if cfg.ServiceAccounts.SigningKey, err = a.signingKey(); err != nil {
			return err
		}
	}
	a.signer = cfg.ServiceAccounts.SigningKey
	if a.authn, err = cfg.New(); err != nil {
		return err
	}
	authorize := a.Authorization
	authorize.Logger, authorize.Metrics = a.Logger, a.measured
	if a.authz, a.guard, err = authorizers(authorize, a.resources); err != nil {
		return err
	}
	if a.Audit.PolicyFile != "" || a.Audit.Log.Path != "" || a.Audit.Webhook.ConfigFile != "" {
		auditing := a.Audit
		auditing.Logger, auditing.Webhook.Certificates = a.Logger, servercert.OfWebhooks(a.measured, a.Logger)
		if a.audit, err = audit.New(auditing); err != nil {
			return err
		}
	}
	s := a.outer
	s.Authenticate, s.Strip, s.ConnContext = a.authn.User, a.authn.Strip, authn.WithConnection
	s.Authorizer, s.Audit = a.authz, a.audit
	a.resources.Authorizer = a.authz
	a.measuring()
	a.control()
	s.Serving.ClientCAs = a.authn.ClientCAs
	s.Paths = a.authn.Paths(func() string {
		address, err := s.ExternalAddress()
		if err != nil {
			a.Logger.Warn("where clients reach the server is not known", "error", err)
		}
		return address
	})
	for path, handler := range s.Paths {
		s.Paths[path] = a.only(handler, http.MethodGet) // not even HEAD
	}
	maps.Copy(s.Paths, a.debugging())
	return nil
}

// only passes on requests with some methods.
func (a *assembly) only(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			rest.WriteError(w, r, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "", 0, false), a.resources)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// signingKey is what tokens of service accounts are signed with: that of the
// data folder, unless nothing is kept.
func (a *assembly) signingKey() (crypto.Signer, error) {
	if !a.keeps() {
		return serviceaccount.NewKey()
	}
	return serviceaccount.OpenKey(filepath.Join(a.DataDir, "pki", "sa.key"))
}

// catalog makes the catalog of built-in kinds.
func (a *assembly) catalog() (err error) {
	if a.allocator, err = allocator(a.resources, a.Config); err != nil {
		return err
	}
	longest, extended := a.authn.TokenLifetime()
	catalog, err := a.builtinCatalog(builtin.Config{
		Gates:          a.Gates,
		Authentication: authentication.Config{Reviewer: a.authn},
		Authorization:  authorization.Config{Authorizer: a.authz},
		RBAC:           builtinrbac.Config{Escalation: a.guard.Check},
		Admission:      admissionregistration.Config{Params: a.mayReadParams},
		DenyPrivileged: a.DenyPrivileged,
		Core: core.Config{
			Log: a.Logger, EventTTL: a.EventTTL,
			KubeletAddresses: a.KubeletAddresses, KubeletPort: a.KubeletPort, Components: components(a.places),
			Allocator: &measuredAllocator{a.allocator, a},
			Tokens: core.Tokens{
				Issuer: a.authn, Audiences: a.authn.Audiences(),
				MaxExpiration: longest, MaxExtended: extended, NoExtension: a.Authentication.ServiceAccounts.NoExtension,
			},
		},
	})
	if err != nil {
		return err
	}
	a.catalogs.current.Store(catalog)
	return a.checkStorageVersions()
}

// core is the server of the built-in kinds.
func (a *assembly) core(api *api, delegate *kelson.Server) *kelson.Server {
	a.identity = a.newIdentity()
	return &kelson.Server{
		Name: "core", API: currentAPI{api, a.custom, a.definitions}, Delegate: delegate,
		PostStartHooks:   a.hooks(),
		PreShutdownHooks: a.endHooks(),
		HealthChecks:     a.checks(),
		Close:            []func() error{a.close},
	}
}

// extensions is the server of custom resources.
func (a *assembly) extensions(api *api) *kelson.Server {
	custom := &crd.Server{
		Store:   &definitions{a.catalogs.get, a.client(), a.resources, a.owners},
		Publish: a.catalogs.publish, Logger: a.Logger,
		Webhooks: a.caller("kube-apiserver"), Metrics: a.measured,
	}
	a.custom = custom
	a.definitions, _ = a.resources.Stored(crd.Group, crd.Resource)
	return &kelson.Server{
		Name: "extensions", API: extensions{custom, api},
		PostStartHooks: append(a.commonHooks(), []kelson.Hook{
			{Name: "start-apiextensions-informers", Run: custom.Sync},
			{Name: "start-apiextensions-controllers", Run: func(ctx context.Context) error {
				a.running.Go(func() { custom.Run(ctx) })
				return nil
			}},
			{Name: "crd-informer-synced", Run: custom.Sync},
		}...),
	}
}

// close ends what the assembly has begun.
func (a *assembly) close() error {
	a.running.Wait()
	if a.authn != nil {
		a.authn.Close()
	}
	for _, c := range a.webhooks {
		c.Close()
	}
	a.closePlaces()
	a.release()
	a.closeTraces()
	return nil
}
