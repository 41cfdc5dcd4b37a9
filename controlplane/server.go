package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/store"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Server builds the chain of servers on a store: aggregator, core,
// extensions. The first and the last have nothing of their own yet. The store
// stays the caller's to close.
func (c Config) Server(ctx context.Context, backend storage.Backend) (*kelson.Server, error) {
	connector, err := connect.New(c.Kubelets)
	if err != nil {
		return nil, err
	}
	objects, err := store.Open(ctx, backend, store.Options{Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	owners := &owners{}
	resources := &rest.Handler{Store: objects, Connector: connector, Owners: owners, Logger: c.Logger}
	var running sync.WaitGroup // what hooks have started
	allocator, err := allocator(resources, c)
	if err != nil {
		objects.Close()
		return nil, err
	}
	catalog, err := resource.NewCatalog(append(builtin.Groups(builtin.Config{Core: core.Config{
		Log:              c.Logger,
		KubeletAddresses: c.KubeletAddresses, Components: components(backend),
		Allocator: allocator,
	}}), crd.Definitions())...)
	if err != nil {
		objects.Close()
		return nil, fmt.Errorf("built-in kinds: %w", err)
	}
	catalogs := &catalogs{objects: objects, owners: owners}
	catalogs.current.Store(catalog)
	current := catalogs.get
	resources.Catalog = current

	outer := &kelson.Server{Name: "aggregator", Logger: c.Logger}
	resources.Authorize = alsoAllowed(outer)
	api := newAPI(current, resources)
	custom := &crd.Server{
		Store:   &definitions{objects, current, &http.Client{Transport: outer.Loopback(loopbackUser())}},
		Publish: catalogs.publish, Logger: c.Logger,
	}
	extensions := &kelson.Server{
		Name: "extensions", API: extensions{custom, api, notFound{resources}},
		PostStartHooks: []kelson.Hook{{Name: "start-apiextensions-controllers", Run: func(ctx context.Context) error {
			running.Go(func() { custom.Run(ctx) })
			return custom.Sync(ctx)
		}}},
	}
	main := &kelson.Server{
		Name: "core", API: api, Delegate: extensions,
		PostStartHooks: []kelson.Hook{{Name: "start-system-namespaces-controller", Run: func(ctx context.Context) error {
			return ensureNamespaces(ctx, resources)
		}}, {Name: "start-kubernetes-service-cidr-controller", Run: allocator.EnsureRanges},
			{Name: "start-service-ip-repair-controllers", Run: func(ctx context.Context) error { return repairing(ctx, allocator, &running, c.Logger) }}},
		HealthChecks: []kelson.HealthCheck{{Name: "etcd", Check: func(ctx context.Context) error {
			_, err := backend.Revision(ctx)
			return err
		}}},
		Close: []func() error{func() error { running.Wait(); objects.Close(); return nil }},
	}
	outer.Delegate = main
	return outer, nil
}

// ensureNamespaces creates the namespaces that every cluster has.
func ensureNamespaces(ctx context.Context, resources *rest.Handler) error {
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := resources.Ensure(ctx, "", "namespaces", ns); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	return nil
}
