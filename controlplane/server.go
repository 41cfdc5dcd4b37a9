package controlplane

import (
	"context"
	"fmt"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/builtin/core"
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
	objects, err := store.Open(ctx, backend, store.Options{Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	resources := &rest.Handler{Store: objects, Owners: &owners{}, Logger: c.Logger}
	catalog, err := resource.NewCatalog(builtin.Groups(builtin.Config{Core: core.Config{
		Log:       c.Logger,
		Allocator: core.NewMemoryAllocator(core.MemoryAllocatorConfig{Existing: services(resources)}),
	}})...)
	if err != nil {
		objects.Close()
		return nil, fmt.Errorf("built-in kinds: %w", err)
	}
	current := func() *resource.Catalog { return catalog }
	resources.Catalog = current

	extensions := &kelson.Server{Name: "extensions", API: notFound{resources}}
	main := &kelson.Server{
		Name: "core", API: newAPI(current, resources), Delegate: extensions,
		PostStartHooks: []kelson.Hook{{Name: "start-system-namespaces-controller", Run: func(ctx context.Context) error {
			return ensureNamespaces(ctx, resources)
		}}},
		HealthChecks: []kelson.HealthCheck{{Name: "etcd", Check: func(ctx context.Context) error {
			_, err := backend.Revision(ctx)
			return err
		}}},
		Close: []func() error{func() error { objects.Close(); return nil }},
	}
	return &kelson.Server{Name: "aggregator", Delegate: main, Logger: c.Logger}, nil
}

// services lists the services that exist, for who hands out their addresses.
func services(resources *rest.Handler) func(context.Context) ([]*corev1.Service, error) {
	return func(ctx context.Context) ([]*corev1.Service, error) {
		l, err := resources.Lister("", "services")
		if err != nil {
			return nil, err
		}
		objs, err := l.List(ctx, "")
		if err != nil {
			return nil, err
		}
		out := make([]*corev1.Service, len(objs))
		for i, obj := range objs {
			out[i] = obj.(*corev1.Service)
		}
		return out, nil
	}
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
