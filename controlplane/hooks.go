package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/controller"
	"github.com/apikeel/kelson/internal/clock"
	"github.com/apikeel/kelson/internal/protect"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// Hooks have the names, and the order, that kube-apiserver has for them: they are
// names of health checks, and can be switched off by name.

// nowAndEvery calls f at once, and then after each period until ctx ends.
func nowAndEvery(ctx context.Context, period time.Duration, f func()) {
	f()
	for range clock.Every(ctx, period) {
		f()
	}
}

// commonHooks are those that no one of the servers has for itself: what decides
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
	inBackground("generic-apiserver-start-informers", a.authn.Watch, a.authz.Run)
	if a.flow != nil {
		add("priority-and-fairness-config-consumer", a.flow.Sync)
		add("priority-and-fairness-filter", a.runFlow)
	}
	return hooks
}

// hooks are what the core server does when it starts: what every cluster has is
// made, or brought up to date.
func (a *assembly) hooks(self *identity) []kelson.Hook {
	patient := func(name string, run func(ctx context.Context) error) kelson.Hook {
		return kelson.Hook{Name: name, Run: func(ctx context.Context) error { return patiently(ctx, name, run, a.Logger) }}
	}
	hooks := slices.Concat([]kelson.Hook{
		patient("start-system-namespaces-controller", a.ensureNamespaces),
	}, a.coordinationHooks(), []kelson.Hook{
		patient("start-cluster-authentication-info-controller", a.ensureTrust),
	}, self.hooks(), []kelson.Hook{
		{Name: "storage-readiness", Run: a.awaitStorage},
		patient("start-legacy-token-tracking-controller", a.ensureTracking),
		patient("start-service-ip-repair-controllers", func(ctx context.Context) error {
			return repairing(ctx, a.allocator, &a.running, a.Logger, a.measured)
		}),
		patient("rbac/bootstrap-roles", func(ctx context.Context) error {
			return a.ensureAll(ctx, bootstrap.RBAC(a.Gates), bootstrap.ReconcileRBAC)
		}),
		patient("scheduling/bootstrap-system-priority-classes", func(ctx context.Context) error {
			return a.ensureAll(ctx, bootstrap.PriorityClasses(), nil)
		}),
		patient("priority-and-fairness-config-producer", a.ensureFlow),
		patient("bootstrap-controller", a.ensureService),
		patient("start-kubernetes-service-cidr-controller", a.allocator.EnsureRanges),
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
// too busy for that is no reason not to start.
func (a *assembly) awaitStorage(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, storageReadyWithin)
	defer cancel()
	for _, p := range a.places {
		if err := p.current(bounded); err != nil && ctx.Err() == nil {
			a.Logger.Warn("the storage is not ready yet", "error", err)
		}
	}
	return nil
}

// ensureNamespaces creates the namespaces that every cluster has.
func (a *assembly) ensureNamespaces(ctx context.Context) error {
	var objs []resource.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		objs = append(objs, &corev1.Namespace{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		})
	}
	return a.ensureAll(ctx, objs, nil)
}

// storageReadyWithin is how long the start waits for caches.
const storageReadyWithin = time.Minute

// ensureWorkers is how many objects are made at a time: the store makes few
// commits of them.
const ensureWorkers = 32

// ensureAll creates objects that are not there, and brings others up to date as
// reconcile says.
func (a *assembly) ensureAll(ctx context.Context, objs []resource.Object, reconcile func(existing, wanted resource.Object) (resource.Object, bootstrap.Action)) error {
	return inParallel(len(objs), func(i int) error {
		if err := a.ensure(ctx, objs[i], reconcile); err != nil {
			return fmt.Errorf("%s %s: %w", objs[i].GetObjectKind().GroupVersionKind().Kind, objs[i].GetName(), err)
		}
		return nil
	})
}

// inParallel calls write with the numbers below n. Each worker does several: what
// goes as deep as a write makes a goroutine grow its stack, once.
func inParallel(n int, write func(i int) error) error {
	var next atomic.Int64
	var all protect.Group
	errs := make([]error, n)
	for range min(n, ensureWorkers) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				errs[i] = write(int(i))
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (a *assembly) ensure(ctx context.Context, wanted resource.Object, reconcile func(existing, wanted resource.Object) (resource.Object, bootstrap.Action)) error {
	kind := wanted.GetObjectKind().GroupVersionKind()
	served, ok := a.catalogs.get().LookupKind(kind)
	if !ok {
		return nil // switched off
	}
	objects := a.resources.Objects(kind.Group, served.Definition.Resource)
	existing, err := objects.Get(ctx, wanted.GetNamespace(), wanted.GetName())
	// One that cannot be read is there, if nothing is to be changed about it.
	if apierrors.IsNotFound(err) || err != nil && reconcile == nil {
		if err = objects.Create(ctx, wanted.DeepCopyObject().(resource.Object)); apierrors.IsAlreadyExists(err) {
			return nil // another server was faster
		}
		return err
	}
	if err != nil || reconcile == nil {
		return err
	}
	switch next, action := reconcile(existing, wanted); action {
	case bootstrap.Update:
		return objects.Update(ctx, wanted.GetNamespace(), wanted.GetName(), func(obj resource.Object) error {
			next, _ = reconcile(obj, wanted)
			reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(next).Elem())
			return nil
		})
	case bootstrap.Recreate:
		if err := objects.Delete(ctx, wanted.GetNamespace(), wanted.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return objects.Create(ctx, wanted.DeepCopyObject().(resource.Object))
	}
	return nil
}

// kubernetes is the name of the service by which the members of a cluster reach
// its API.
const kubernetes = "kubernetes"

// ensureService makes the service kubernetes, and has its endpoints kept.
func (a *assembly) ensureService(ctx context.Context) error {
	if err := a.ensureNamespaces(ctx); err != nil {
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
	ip, err := a.outer.AdvertiseAddress()
	if err != nil {
		return err
	}
	labels := map[string]string{"component": "apiserver", "provider": kubernetes}
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: labels},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: a.allocator.First().String(), SessionAffinity: corev1.ServiceAffinityNone,
			IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			Ports:          []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt(port)}},
		},
	}
	if a.ServiceNodePort != 0 {
		service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, a.ServiceNodePort
	}
	if err := a.ensureAll(ctx, []resource.Object{service}, a.pointService); err != nil {
		return err
	}
	a.endpoints.Store(a.newEndpoints(ip.String(), int32(port)))
	return a.endpoints.Load().start(ctx)
}

// pointService brings the port up to date that the service leads to, if there is
// no other server whose port it could be.
func (a *assembly) pointService(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
	now, want := existing.(*corev1.Service), wanted.(*corev1.Service)
	if a.shared() || len(now.Spec.Ports) != 1 || now.Spec.Ports[0].TargetPort == want.Spec.Ports[0].TargetPort {
		return existing, bootstrap.Keep
	}
	now = now.DeepCopy()
	now.Spec.Ports[0].TargetPort = want.Spec.Ports[0].TargetPort
	return now, bootstrap.Update
}

// endHooks are what the core server does when it is about to end.
func (a *assembly) endHooks(self *identity) []kelson.Hook {
	return append(self.endHooks(), kelson.Hook{Name: "stop-kubernetes-service-controller", Run: func(ctx context.Context) error {
		if e := a.endpoints.Load(); e != nil {
			return e.stop(ctx)
		}
		return nil
	}})
}

// ensureTracking makes the config map that says since when the use of tokens in
// secrets is noted, which is what authentication does.
func (a *assembly) ensureTracking(ctx context.Context) error {
	if err := a.ensureNamespaces(ctx); err != nil {
		return err
	}
	return a.ensureAll(ctx, []resource.Object{&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: controller.TrackingConfigMap, Namespace: metav1.NamespaceSystem},
		Data:       map[string]string{controller.TrackingSince: request.From(ctx).Received.UTC().Format(time.DateOnly)},
	}}, func(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
		now, want := existing.(*corev1.ConfigMap), wanted.(*corev1.ConfigMap)
		if _, err := time.Parse(time.DateOnly, now.Data[controller.TrackingSince]); err == nil {
			return existing, bootstrap.Keep
		}
		now = now.DeepCopy()
		now.Data = maps.Clone(now.Data)
		if now.Data == nil {
			now.Data = map[string]string{}
		}
		now.Data[controller.TrackingSince] = want.Data[controller.TrackingSince]
		return now, bootstrap.Update
	})
}
