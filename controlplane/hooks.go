package controlplane

import (
	"context"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/controller/apiserver"
)

// Hooks have the names, and the order, that kube-apiserver has for them: they are
// names of health checks, and can be switched off by name.

// commonHooks are the post-start hooks that all servers of the chain share: what decides
// about requests is followed, in files and in the store.
func (a *assembly) commonHooks() (hooks []kelson.Hook) {
	add := func(name string, run func(ctx context.Context) error) {
		hooks = append(hooks, kelson.Hook{Name: name, Run: run})
	}
	inBackground := func(name string, follow ...func(ctx context.Context)) {
		add(name, func(ctx context.Context) error {
			for _, f := range follow {
				a.running.Go(func() { f(ctx) })
			}
			return nil
		})
	}
	if a.encrypted != nil && a.Encryption.Reload {
		inBackground("start-encryption-provider-config-automatic-reload", a.encrypted.Follow)
	}
	var admission []func(ctx context.Context)
	for _, dir := range a.manifestDirs {
		admission = append(admission, dir.Watch)
	}
	inBackground("start-apiserver-admission-initializer", admission...)
	// Accounts have no hook of their own: hooks are health checks that clients see.
	inBackground("generic-apiserver-start-informers", a.authn.Watch, a.authz.Run, func(ctx context.Context) { a.usage.Start(ctx, &a.running) })
	if a.flow != nil {
		add("priority-and-fairness-config-consumer", a.flow.Sync)
		inBackground("priority-and-fairness-filter", a.flow.Run)
	}
	return hooks
}

// hooks are what the core server does when it starts: what every cluster has is
// made, or brought up to date.
func (a *assembly) hooks() []kelson.Hook {
	patient := func(name string, run func(ctx context.Context) error) kelson.Hook {
		return kelson.Hook{Name: name, Run: func(ctx context.Context) error { return patiently(ctx, name, run, a.Logger) }}
	}
	hooks := slices.Concat([]kelson.Hook{
		patient("start-system-namespaces-controller", a.own.StartNamespaces),
	}, a.coordinationHooks(), a.peerHooks(), []kelson.Hook{
		patient("start-cluster-authentication-info-controller", func(ctx context.Context) error {
			again, err := a.own.StartTrust(ctx, a.trust)
			if err == nil {
				a.publishTrust.Store(&again)
			}
			return err
		}),
	}, a.identityHooks(), []kelson.Hook{
		{Name: "storage-readiness", Run: a.awaitStorage},
		patient("start-legacy-token-tracking-controller", a.own.EnsureTokenTracking),
		patient("start-service-ip-repair-controllers", func(ctx context.Context) error {
			changed := a.resources.Follow(schema.GroupResource{Resource: "services"}, schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"})
			return repairing(ctx, a.allocator.ClusterAllocator, changed, &a.running, a.Logger, a.measured)
		}),
		patient("rbac/bootstrap-roles", func(ctx context.Context) error {
			if a.image == nil { // else there are no old roles
				if err := a.own.InheritRoles(ctx); err != nil {
					return err
				}
			}
			return a.own.Ensure(ctx, a.bootstrapRoles(), bootstrap.ReconcileRBAC)
		}),
		patient("scheduling/bootstrap-system-priority-classes", func(ctx context.Context) error {
			return a.own.Ensure(ctx, bootstrap.PriorityClasses(), nil)
		}),
		patient("priority-and-fairness-config-producer", (&apiserver.FlowControl{Server: a.own}).Start),
		patient("bootstrap-controller", a.startService),
		patient("start-kubernetes-service-cidr-controller", func(ctx context.Context) error {
			return ensuringRanges(ctx, a.allocator.ClusterAllocator, &a.running, a.Logger)
		}),
	})
	if on, err := controller.Enabled(a.manager.Controllers, a.manager.Enabled); err != nil || len(on) > 0 {
		hooks = append(hooks, kelson.Hook{Name: "start-controllers", Run: a.startControllers})
	}
	return hooks
}

// How long, and how often, the start tries to write what every cluster has.
const (
	patience   = 30 * time.Second
	retryAfter = time.Second
)

// patiently calls run until it succeeds: a store that has no leader for a moment, or is
// slow, must not end a server that has just begun. What is wrong for longer does.
func patiently(ctx context.Context, name string, run func(ctx context.Context) error, log *slog.Logger) error {
	for begin := time.Now(); ; {
		err := run(ctx)
		if err == nil || ctx.Err() != nil || time.Since(begin) >= patience {
			return err
		}
		log.Warn("a part of the start failed, and is tried again", "hook", name, "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryAfter):
		}
	}
}

// awaitStorage waits until caches are as new as what is stored. A store that is
// too busy for that is no reason not to start. From then on it is known whether stores
// that are shared can be reached.
func (a *assembly) awaitStorage(ctx context.Context) error {
	for _, p := range a.places.all {
		if p.backend.Shared() {
			a.running.Go(func() { p.health.run(ctx) })
		}
	}
	bounded, cancel := context.WithTimeout(ctx, storageReadyWithin)
	defer cancel()
	for _, p := range a.places.all {
		if err := p.current(bounded); err != nil && ctx.Err() == nil {
			a.Logger.Warn("the storage is not ready yet", "error", err)
		}
	}
	return nil
}

// storageReadyWithin is how long the start waits for caches.
const storageReadyWithin = time.Minute

// startService makes the service kubernetes, and has its endpoints kept.
func (a *assembly) startService(ctx context.Context) error {
	if err := a.own.EnsureNamespaces(ctx); err != nil {
		return err
	}
	if err := a.allocator.EnsureRanges(ctx); err != nil {
		return err
	}
	address, err := url.Parse(a.outer.URL())
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		return err
	}
	endpoints := a.EndpointReconciler
	ip, err := a.outer.AdvertiseAddress()
	if err != nil {
		if a.places.shared() {
			return err
		}
		// A machine without a network has no pods that would need the endpoints.
		a.Logger.Warn("the service kubernetes gets no endpoints, until the server is started again with a network or --advertise-address", "error", err)
		endpoints = EndpointNone
	}
	service := apiserver.NewService(apiserver.ServiceConfig{
		Server: a.own, ClusterIP: a.allocator.First().String(), NodePort: a.ServiceNodePort, IP: ip.String(), Port: int32(port),
		Shared: a.places.shared(), Replaces: a.Serving.PermitPortSharing, Endpoints: endpoints, Servers: a.Servers,
		Leases: a.places.all[a.places.number("", leaseResource)].backend, Ready: a.outer.Signals().MuxAndDiscoveryComplete.Happened(),
	})
	a.service.Store(service)
	return service.Start(ctx)
}

// identityHooks keep the lease of this server, if it has one.
func (a *assembly) identityHooks() []kelson.Hook {
	if a.identity == nil {
		return nil
	}
	return []kelson.Hook{
		{Name: "start-kube-apiserver-identity-lease-controller", Run: a.startIdentity},
		{Name: "start-kube-apiserver-identity-lease-garbage-collector", Run: a.identity.StartCollector},
	}
}

// endHooks are what the core server does when it is about to end.
func (a *assembly) endHooks() (hooks []kelson.Hook) {
	if a.published != nil {
		hooks = append(hooks, kelson.Hook{Name: "peer-endpoint-reconciler-controller", Run: a.published.Stop})
	}
	if a.identity != nil {
		hooks = append(hooks, kelson.Hook{Name: "stop-kube-apiserver-identity-lease-controller", Run: a.identity.Stop})
	}
	return append(hooks, kelson.Hook{Name: "stop-kubernetes-service-controller", Run: func(ctx context.Context) error {
		if s := a.service.Load(); s != nil {
			return s.Stop(ctx)
		}
		return nil
	}})
}
