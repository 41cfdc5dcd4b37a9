package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/controller/apiserver"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/metrics/servercert"
	"github.com/apikeel/kelson/openapi"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/status"
)

// Aggregation says how API servers behind this one are reached.
type Aggregation struct {
	// ProxyCertificate and ProxyKey are files with the certificate that they know
	// this one by: --proxy-client-cert-file and --proxy-client-key-file. They are
	// read for each connection, so that they can be replaced. The default is a
	// certificate of an authority that is there for nothing else.
	ProxyCertificate, ProxyKey string
	// EndpointRouting sends requests to endpoints of services instead of their
	// cluster IPs: --enable-aggregator-routing.
	EndpointRouting bool
	// ForwardRedirects passes redirects on to clients:
	// --aggregator-reject-forwarding-redirect=false.
	ForwardRedirects bool
	// Resolve finds the address of a service where there is no cluster network;
	// nil looks at the service.
	Resolve func(ctx context.Context, namespace, name string, port int32) (*url.URL, error)
}

func (g *Aggregation) validate() error {
	if (g.ProxyCertificate == "") != (g.ProxyKey == "") {
		return errors.New("--proxy-client-cert-file and --proxy-client-key-file belong together")
	}
	return nil
}

// frontProxy is the name that this server has for those behind it.
const frontProxy = "front-proxy-client"

// aggregation makes the API of the outermost server.
func (a *assembly) aggregation() error {
	certificate, err := a.proxyCertificate()
	if err != nil {
		return err
	}
	log := a.Logger
	a.aggregator = aggregator.New(aggregator.Config{
		NoEnums:  !a.Gates.Enabled("OpenAPIEnums"),
		NoHashes: !a.Gates.Enabled(features.StorageVersionHash), NoUID: !a.Gates.Enabled(remoteUID),
		Services: a.resources.Follow(schema.GroupResource{Group: aggregator.Group, Resource: aggregator.Resource}),
		Network:  a.resources.Follow(schema.GroupResource{Resource: "services"}, schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}),
		Objects:  func(group, name string) resource.Lister { return a.resources.Objects(group, name).Cached() },
		Loopback: a.outer.Loopback(loopbackUser()), Create: a.createService, Hold: a.outer.Hold,
		Catalog: a.catalogs.get, Settled: a.custom.Sync, Routes: a.issuerRoutes(), CBOR: a.Gates.Enabled(features.CBOR), Certificate: certificate,
		EndpointRouting: a.Aggregation.EndpointRouting, ForwardRedirects: a.Aggregation.ForwardRedirects, Resolve: a.Aggregation.Resolve,
		Fail:   func(w http.ResponseWriter, r *http.Request, err error) { rest.WriteError(w, r, err, a.resources) },
		Dial:   a.Egress.For("cluster"),
		Logger: log, Certificates: servercert.New(a.measured, measure.AggregatorNoNames, measure.AggregatorSHA1, log),
	})
	if a.peers != nil {
		a.aggregator.Discovery().Peers, a.aggregator.Discovery().Metrics = a.peers, a.measured
	}
	others := a.catalogs.onChange
	a.catalogs.onChange = func() {
		if others != nil {
			others()
		}
		a.aggregator.Changed()
	}
	a.outer.API = a.aggregator
	const registration = "kube-apiserver-autoregistration"
	registered := make(chan struct{}) // closed when all that is served here has an APIService
	awaitRegistered := func(ctx context.Context) error {
		select {
		case <-registered:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.outer.HealthChecks = append(a.outer.HealthChecks, kelson.HealthCheck{Name: "autoregister-completion", After: registration, Check: func(context.Context) error {
		select {
		case <-registered:
			return nil
		default:
			return errors.New("missing APIService")
		}
	}})
	add := func(hooks ...kelson.Hook) { a.outer.PostStartHooks = append(a.outer.PostStartHooks, hooks...) }
	if a.Aggregation.ProxyCertificate != "" {
		// It is read whenever it is shown.
		add(kelson.Hook{Name: "aggregator-reload-proxy-client-cert", Run: func(context.Context) error {
			_, err := certificate()
			return err
		}})
	}
	// What has these names elsewhere is one part here, which begins to follow
	// APIServices when all that is served here has one. Each of them is done then.
	for _, name := range []string{
		"start-kube-aggregator-informers", "apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"apiservice-registration-controller", "apiservice-discovery-controller",
	} {
		add(kelson.Hook{Name: name, Run: awaitRegistered})
	}
	add(a.storageVersionHooks()...)
	add(kelson.Hook{Name: registration, Run: func(ctx context.Context) error {
		if err := awaitSync(ctx, a.aggregator.Register); err != nil {
			return err
		}
		a.running.Go(func() { a.aggregator.Run(ctx) })
		close(registered)
		return nil
	}})
	add(kelson.Hook{Name: "apiservice-openapi-controller", Run: awaitRegistered}, kelson.Hook{Name: "apiservice-openapiv3-controller", Run: awaitRegistered})
	return nil
}

// createService creates an APIService of what is served here.
func (a *assembly) createService(ctx context.Context, obj resource.Object) error {
	return a.resources.Objects(aggregator.Group, aggregator.Resource).Create(ctx, obj)
}

// temporaryAuthorities reports whether the data outlives the certificate authorities of
// this server: nobody may be told to trust them, or each start would leave one behind.
// Like kube-apiserver the server shows no certificate to others then, unless it is given
// one.
func (a *assembly) temporaryAuthorities() bool { return a.NoFolder && a.places.shared() }

// proxyCertificate returns what this server shows to those behind it.
func (a *assembly) proxyCertificate() (func() (*tls.Certificate, error), error) {
	if g := a.Aggregation; g.ProxyCertificate != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(g.ProxyCertificate, g.ProxyKey)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("certificate for servers behind this one: %w", err)
		}
		return load, nil
	}
	if a.temporaryAuthorities() {
		return func() (*tls.Certificate, error) { return &tls.Certificate{}, nil }, nil
	}
	// An authority of its own, so that no user can have a certificate of it.
	var err error
	if !a.keeps() {
		a.proxies, err = pki.NewIssuer()
	} else {
		a.proxies, err = pki.OpenIssuer(filepath.Join(a.DataDir, "front-proxy"))
	}
	if err != nil {
		return nil, err
	}
	// It is issued for the first server behind this one.
	return sync.OnceValues(func() (*tls.Certificate, error) {
		bundle, err := a.proxies.IssueClient(frontProxy)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(bundle, bundle)
		return &pair, err
	}), nil
}

// trust returns whom this server believes who a user is. Proxies whose authority a flag
// names tell the UID of a user only if a flag names the header, as with kube-apiserver.
func (a *assembly) trust() (trust apiserver.Trust, err error) {
	header := a.Authentication.RequestHeader
	var clients, proxies []byte
	for _, file := range []struct {
		path string
		into *[]byte
	}{{a.Authentication.X509.CAFile, &clients}, {header.CAFile, &proxies}} {
		if file.path == "" {
			continue
		}
		content, err := os.ReadFile(file.path)
		if err != nil {
			return trust, err
		}
		*file.into = append(*file.into, content...)
	}
	if a.authority != nil && !a.temporaryAuthorities() {
		clients = append(clients, a.authority.CertificatePEM()...)
	}
	names := slices.Clone(header.AllowedNames)
	if a.proxies != nil {
		proxies = append(proxies, a.proxies.CertificatePEM()...)
		if header.CAFile == "" || len(names) > 0 {
			names = append(names, frontProxy)
		}
	}
	return apiserver.Trust{
		Clients: clients, Proxies: proxies, Names: names,
		UsernameHeaders: header.UsernameHeaders, UIDHeaders: header.UIDHeaders, GroupHeaders: header.GroupHeaders,
		ExtraHeaderPrefixes: header.ExtraHeaderPrefixes, NoUID: !a.Gates.Enabled(remoteUID) || a.proxies == nil && len(header.UIDHeaders) == 0,
	}, nil
}

// issuerRoutes describes the documents of the issuer of service account tokens, if
// they are served.
func (a *assembly) issuerRoutes() (routes []openapi.Route) {
	for _, r := range []openapi.Route{
		{Path: serviceaccount.ConfigurationPath, Operation: "getServiceAccountIssuerOpenIDConfiguration", Tag: "WellKnown", Produces: []string{status.JSON},
			Description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'"},
		{Path: serviceaccount.KeysPath, Operation: "getServiceAccountIssuerOpenIDKeyset", Produces: []string{serviceaccount.KeysMedia},
			Description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)"},
	} {
		if a.outer.Paths[r.Path] != nil {
			routes = append(routes, r)
		}
	}
	return routes
}
