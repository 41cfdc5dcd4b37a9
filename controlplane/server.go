package controlplane

import (
	"context"
	"crypto"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission/manifests"
	"github.com/apikeel/kelson/admission/quota"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authn"
	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/loopback"
	"github.com/apikeel/kelson/managedfields"
	"github.com/apikeel/kelson/metrics"
	"github.com/apikeel/kelson/peer"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
	"github.com/apikeel/kelson/store"
	"github.com/apikeel/kelson/usage"
	"github.com/apikeel/kelson/why"
)

// assembly is a server while it is put together: what more than one of its parts needs.
type assembly struct {
	Config
	authority *pki.Authority

	// What there is, and where. The catalog has definitions that need the stages; these
	// and everything else ask for the catalog when they need it.
	places    *places
	encrypted *encrypt.Backend // nil if nothing is
	catalogs  *catalogs
	kinds     kindsKey // of the built-in kinds
	image     *image   // what is written first; nil if the store was not empty

	written    claims[string] // keys of objects that were written from the image
	aggregated claims[int64]  // revisions of cluster roles that were written with aggregated rules
	resources  *rest.Handler
	owners     *managedfields.Owners
	allocator  *measuredAllocator

	// The stages of a request, and the chain of servers.
	authn *authn.Stage
	// publishTrust publishes the CAs of clients again; nil before they were published.
	publishTrust atomic.Pointer[func()]
	authz        *chain.Chain
	denials      *why.Denials // of requests, for those who ask why
	guard        *rbac.Guard
	audit        *audit.Log
	flow         *flow.Control // nil if priority and fairness is off
	outer        *kelson.Server
	aggregator   *aggregator.Server
	custom       *crd.Server

	// What runs beside requests.
	own       *apiserver.Server                 // keeps the objects of the server itself
	identity  *apiserver.Identity               // nil if nobody asks
	published *apiserver.PeerAddress            // where other servers reach this one, nil if there can be none
	peers     *peer.Proxy                       // nil if no request is forwarded
	service   atomic.Pointer[apiserver.Service] // nil before it is kept
	charges   *quota.Ledger                     // of quotas, which admission charges and a controller recounts
	manager   *controller.Manager
	running   sync.WaitGroup // what hooks have started
	closers   []func()       // what is to be done after that, the last first

	// What is measured.
	registry *metrics.Registry
	measured *metrics.Families // of parts that know nothing else of metrics
	slis     *metrics.Registry // of health checks
	usage    *usage.Meter      // what clients cost

	// What one part has made or read and another one needs.
	manifestDirs []*manifests.Directory // followed while the server runs
	synced       func() bool            // flow schemas have been read; nil if there are none
	signer       crypto.Signer          // of tokens of service accounts, nil if the key is in a file
	proxies      *pki.Authority         // of the certificate for servers behind this one, nil if that is in a file
}

// Server builds the chain of servers on a store: aggregator, core, extensions.
// The store stays the caller's to close.
func (c Config) Server(ctx context.Context, backend storage.Backend, authority *pki.Authority) (*kelson.Server, error) {
	a, err := c.assemble(ctx, backend, authority)
	if err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		a.newManager, // controllers.go
		func() error { return a.openImage(ctx) },
		a.admission, // admission.go, policies.go
		a.chain,     // chain.go, aggregation.go
		a.connections,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a.outer, nil
}

// assemble opens the stores, and makes what requests go through and what is served.
func (c Config) assemble(ctx context.Context, backend storage.Backend, authority *pki.Authority) (*assembly, error) {
	if c.Memory == nil {
		c.Memory = budget.Default()
	}
	a := &assembly{Config: c, authority: authority, catalogs: &catalogs{}, owners: &managedfields.Owners{}}
	a.outer = &kelson.Server{Name: "aggregator", Logger: c.Logger, PKI: authority, Serving: c.Serving, RequestTimeout: c.RequestTimeout, Gates: c.Gates, Memory: c.Memory}
	a.outer.Shutdown, a.outer.LivezGrace, a.outer.Now, a.outer.Version = c.Shutdown, c.LivezGrace, c.Now, c.version()
	a.outer.UnconstrainedImpersonation = !c.Gates.Enabled("ConstrainedImpersonation")
	if err := errors.Join(c.Serving.Validate(), c.Flow.Validate()); err != nil {
		return nil, err
	}
	a.registry = metrics.New()
	a.registry.NativeHistograms = c.Gates.Enabled("NativeHistograms")
	a.measured = metrics.NewFamilies(a.registry)
	a.Egress.Measure(a.measured)
	for _, step := range []func() error{
		func() error { return a.openStores(ctx, backend) },
		a.tracing, // tracing.go
		a.stages,  // stages.go, roles.go, flow.go
		a.catalog, // catalog.go
	} {
		if err := step(); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a, nil
}

// storeOptions returns the options of every store of the server.
func (a *assembly) storeOptions() store.Options {
	return store.Options{Logger: a.Logger, Metrics: a.measured}.Within(a.Memory)
}

// openStores opens the stores, and makes what reads and writes the objects in them.
func (a *assembly) openStores(ctx context.Context, backend storage.Backend) error {
	backends, err := a.encrypting(append([]storage.Backend{backend}, a.elsewhere...))
	if err != nil {
		return err
	}
	users := newUserNotes(backend, a.Logger)
	a.places, err = openPlaces(ctx, backends, a.EtcdOverrides, newMeters(a.registry, a.catalogs.get), users, a.storeOptions())
	if err != nil {
		return err
	}
	if users != nil {
		a.onClose(users.flush)
	}
	a.onClose(a.places.close)
	for _, place := range a.places.all {
		place.objects.Report(a.Memory)
	}
	objects := a.places.all[0].objects
	a.catalogs.objects, a.catalogs.owners = objects, a.owners
	a.resources = &rest.Handler{
		SharedStore: a.places.shared(),
		Catalog:     a.catalogs.get, Store: objects, Owners: a.owners,
		MinWatch: a.MinRequestTimeout, Memory: a.Memory, Logger: a.Logger,
		Shards: a.Gates.Enabled("ShardedListAndWatch"), NoInitialEvents: !a.Gates.Enabled("WatchList"),
		LimitAny: a.NoWatchCache, NoUnsafeDeletes: !a.Gates.Enabled(features.UnsafeDeletes),
		NoCompression: !a.Gates.Enabled(features.Compression), NoWatchCompression: !a.Gates.Enabled(features.WatchCompression),
	}
	if a.Storage == StorageEtcd {
		a.resources.KeyRoot = a.Etcd.Prefix
	}
	a.own = &apiserver.Server{
		Catalog: a.catalogs.get, Objects: a.resources.ObjectsAs, Loopback: a.outer.Loopback(loopbackUser()),
		IsWritten: a.isWritten, Running: &a.running, Logger: a.Logger,
	}
	return nil
}

// connections makes what connects clients with kubelets.
func (a *assembly) connections() (err error) {
	a.Kubelets.Metrics = a.measured
	a.resources.Connector, err = connect.New(a.Kubelets)
	return err
}

// client is the server as a client of its own.
func (a *assembly) client() *loopback.Client {
	return &loopback.Client{Transport: a.outer.Loopback(loopbackUser()), Agent: serverName}
}

// loopbackUser is who the server is to itself.
func loopbackUser() request.User {
	return request.User{Name: "system:apiserver", Groups: []string{"system:authenticated", "system:masters"}}
}

// onClose has a function called when the server has ended.
func (a *assembly) onClose(f func()) { a.closers = append(a.closers, f) }

// close ends what the assembly has begun.
func (a *assembly) close() error {
	a.running.Wait()
	for _, f := range slices.Backward(a.closers) {
		f()
	}
	return nil
}
