package controlplane

//lint:file-ignore SA1019 kube-apiserver still makes Endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin/bootstrap"
	"github.com/apikeel/kelson/resource"
)

// hooks are what the core server does when it starts: files are followed, and
// what every cluster has is made, or brought up to date.
func (a *assembly) hooks() []kelson.Hook {
	return append(a.encryptionHooks(), []kelson.Hook{
		{Name: "start-authentication-reload", Run: func(ctx context.Context) error {
			a.running.Go(func() { a.authn.Watch(ctx) })
			return nil
		}},
		{Name: "start-authorization-reload", Run: func(ctx context.Context) error {
			a.running.Go(func() { a.authz.Run(ctx) })
			return nil
		}},
		{Name: "start-system-namespaces-controller", Run: a.ensureNamespaces},
		{Name: "rbac/bootstrap-roles", Run: func(ctx context.Context) error {
			return a.ensureAll(ctx, bootstrap.RBAC(), bootstrap.ReconcileRBAC)
		}},
		{Name: "scheduling/bootstrap-system-priority-classes", Run: func(ctx context.Context) error {
			return a.ensureAll(ctx, bootstrap.PriorityClasses(), nil)
		}},
		{Name: "priority-and-fairness-config-producer", Run: a.ensureFlow},
		{Name: "start-kubernetes-service-cidr-controller", Run: a.allocator.EnsureRanges},
		{Name: "start-service-ip-repair-controllers", Run: func(ctx context.Context) error {
			return repairing(ctx, a.allocator, &a.running, a.Logger)
		}},
		{Name: "bootstrap-controller", Run: a.ensureService},
		{Name: "start-controllers", Run: a.startControllers},
	}...)
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

// ensureWorkers is how many objects are made at a time: the store makes few
// commits of them.
const ensureWorkers = 64

// ensureAll creates objects that are not there, and brings others up to date as
// reconcile says.
func (a *assembly) ensureAll(ctx context.Context, objs []resource.Object, reconcile func(existing, wanted resource.Object) (resource.Object, bootstrap.Action)) error {
	var mu sync.Mutex
	var failed error
	var all sync.WaitGroup
	slots := make(chan struct{}, ensureWorkers)
	for _, obj := range objs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := a.ensure(ctx, obj, reconcile); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = errors.Join(failed, fmt.Errorf("%s %s: %w", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetName(), err))
			}
		})
	}
	all.Wait()
	return failed
}

func (a *assembly) ensure(ctx context.Context, wanted resource.Object, reconcile func(existing, wanted resource.Object) (resource.Object, bootstrap.Action)) error {
	kind := wanted.GetObjectKind().GroupVersionKind()
	served, ok := a.catalogs.get().LookupKind(kind)
	if !ok {
		return nil // switched off
	}
	objects := a.resources.Objects(kind.Group, served.Definition.Resource)
	existing, err := objects.Get(ctx, wanted.GetNamespace(), wanted.GetName())
	if apierrors.IsNotFound(err) {
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

// ensureService makes the service kubernetes, and keeps it pointing here.
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
	family := discoveryv1.AddressTypeIPv4
	if ip.To4() == nil {
		family = discoveryv1.AddressTypeIPv6
	}
	number := int32(port)
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelServiceName: kubernetes},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip.String()}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: &number, Protocol: new(corev1.ProtocolTCP)}},
	}
	endpoints := &corev1.Endpoints{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{
			Name: kubernetes, Namespace: metav1.NamespaceDefault, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"},
		},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: ip.String()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: number, Protocol: corev1.ProtocolTCP}},
		}},
	}
	return a.ensureAll(ctx, []resource.Object{service, slice, endpoints}, pointHere)
}

// pointHere replaces the address of a server that is gone. Several servers on
// one store have each other's addresses there when they keep leases, which is
// the business of a controller.
func pointHere(existing, wanted resource.Object) (resource.Object, bootstrap.Action) {
	switch wanted := wanted.(type) {
	case *discoveryv1.EndpointSlice:
		now := existing.(*discoveryv1.EndpointSlice).DeepCopy()
		if now.AddressType != wanted.AddressType {
			return wanted, bootstrap.Recreate
		}
		now.Endpoints, now.Ports = wanted.Endpoints, wanted.Ports
		return now, bootstrap.Update
	case *corev1.Endpoints:
		now := existing.(*corev1.Endpoints).DeepCopy()
		now.Subsets = wanted.Subsets
		return now, bootstrap.Update
	case *corev1.Service:
		now := existing.(*corev1.Service).DeepCopy()
		if len(now.Spec.Ports) == 1 && now.Spec.Ports[0].TargetPort != wanted.Spec.Ports[0].TargetPort {
			now.Spec.Ports[0].TargetPort = wanted.Spec.Ports[0].TargetPort
			return now, bootstrap.Update
		}
	}
	return existing, bootstrap.Keep
}
