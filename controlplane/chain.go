package controlplane

import (
	"context"
	"net/http"
	"time"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/peer"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/store"
)

// chain makes the servers that a request is offered to, one after the other.
func (a *assembly) chain() error {
	a.identity = a.newIdentity()
	if err := a.newPeers(); err != nil {
		return err
	}
	a.publishAddress()
	api := newAPI(a.catalogs.get, a.resources, a.Gates)
	a.outer.Delegate = a.core(api, a.extensions(api))
	return a.aggregation()
}

// core is the server of the built-in kinds.
func (a *assembly) core(api *api, delegate *kelson.Server) *kelson.Server {
	definitions, _ := a.resources.Stored(crd.Group, crd.Resource)
	return &kelson.Server{
		Name: "core", API: currentAPI{api, a.custom, definitions}, Delegate: delegate,
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
		Publish: a.catalogs.publish, BuiltIn: a.catalogs.isBuiltin, Logger: a.Logger,
		Webhooks: a.caller("kube-apiserver"), Metrics: a.measured, StoreCBOR: a.Gates.Enabled(features.CBOR),
		MaxSchemas: a.Memory.Schemas(),
	}
	a.Memory.Report(budget.Holder{Name: "schemas", Limit: custom.MaxSchemas, Held: custom.HeldSchemas})
	a.custom = custom
	return &kelson.Server{
		Name: "extensions", API: extensions{custom, api, a.peers},
		PostStartHooks: append(a.commonHooks(), []kelson.Hook{
			{Name: "start-apiextensions-informers", Run: func(ctx context.Context) error {
				_ = custom.Sync(ctx) // Run tries again, and logs it
				return nil
			}},
			{Name: "start-apiextensions-controllers", Run: func(ctx context.Context) error {
				a.running.Go(func() { custom.Run(ctx) })
				return nil
			}},
			{Name: "crd-informer-synced", Run: func(ctx context.Context) error { return awaitSync(ctx, custom.Sync) }},
		}...),
	}
}

// awaitSync calls sync until it succeeds or ctx ends. A definition that cannot be read
// keeps the server from being ready, and must not end it: somebody has to delete it.
func awaitSync(ctx context.Context, sync func(ctx context.Context) error) error {
	for {
		err := sync(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(syncAgainAfter):
		}
	}
}

// syncAgainAfter is how long to wait before definitions are read again that could not be.
const syncAgainAfter = 100 * time.Millisecond

// api is the core server's part of the chain: the resources of a catalog, and
// what is told about them.
type api struct {
	*kelson.API
	catalog func() *resource.Catalog
}

func newAPI(catalog func() *resource.Catalog, resources *rest.Handler, gates features.Gates) *api {
	return &api{kelson.NewAPI(catalog, resources, gates), catalog}
}

// currentAPI is an api that serves custom resources as the definitions say that this
// server has acknowledged.
type currentAPI struct {
	*api
	custom      *crd.Server
	definitions *store.Resource // nil if they are not served
}

// Route implements kelson.Router.
func (c currentAPI) Route(w http.ResponseWriter, r *http.Request) bool {
	if c.definitions != nil && c.definitions.Acknowledged() > c.custom.Revision() {
		req := request.From(r.Context())
		if s, ok := c.catalog().Lookup(req.Group, req.Version, req.Resource); ok && s.Unstructured {
			// If it fails, there is still what was there before.
			_ = c.custom.Sync(r.Context())
		}
	}
	return c.api.Route(w, r)
}

// extensions ends the chain: it looks once more for custom resources whose
// definitions have just come, asks whether another server has what this one lacks, and
// then says that there is nothing.
type extensions struct {
	custom *crd.Server
	core   *api
	peers  *peer.Proxy // nil if no request is forwarded
}

// Paths implements kelson.Router.
func (extensions) Paths() []string { return nil }

// Route implements kelson.Router.
func (e extensions) Route(w http.ResponseWriter, r *http.Request) bool {
	req := request.From(r.Context())
	if req.IsResource && req.Group != "" {
		// The core server is asked again even if Sync has nothing to do: the definition may
		// have been published since the core server was asked first.
		if err := e.custom.Sync(r.Context()); err == nil && e.core.Route(w, r) {
			return true
		}
	}
	if e.peers != nil && e.peers.Route(w, r) {
		return true
	}
	if e.isCustom(req.Group) {
		return false
	}
	return e.core.NotFound(w, r)
}

// isCustom reports whether a group has nothing but custom resources: of such a
// one, nobody knows which paths there might be.
func (e extensions) isCustom(name string) bool {
	group, ok := e.core.catalog().Group(name)
	if !ok {
		return false
	}
	for i := range group.Versions {
		for _, s := range group.Versions[i].Resources {
			if !s.Unstructured {
				return false
			}
		}
	}
	return true
}

var _ kelson.Router = extensions{}
