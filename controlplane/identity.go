package controlplane

import (
	"context"
	"os"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// The names and times are those of kube-apiserver, which keeps the same leases.
const (
	identityLabel    = "apiserver.kubernetes.io/identity"
	identitySeconds  = 3600 // a server that has not been heard of for so long is gone
	identityEvery    = 10 * time.Second
	forgetOthersEach = time.Hour
)

// identity keeps a lease that tells which servers share a store. Where nobody can
// share it there is none: it would be written for nothing.
type identity struct {
	*assembly
	leases resource.Objects
	name   string // of servers on this machine
	holder string // this one
	*presence
}

// newIdentity returns nil if this server is alone, and need not say who it is.
func (a *assembly) newIdentity() *identity {
	if _, ok := a.catalogs.get().Definition(coordinationv1.GroupName, "leases"); !ok || !a.Gates.Enabled("APIServerIdentity") || !a.shared() && !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	name := measure.ServerName()
	return &identity{assembly: a, leases: a.resources.Objects(coordinationv1.GroupName, "leases"), name: name, holder: name + "_" + uuid.NewString(),
		presence: newPresence("the lease of this server", a.Logger)}
}

func (i *identity) hooks() []kelson.Hook {
	if i == nil {
		return nil
	}
	return []kelson.Hook{
		{Name: "start-kube-apiserver-identity-lease-controller", Run: i.start},
		{Name: "start-kube-apiserver-identity-lease-garbage-collector", Run: func(ctx context.Context) error {
			others := newPresence("leases of other servers", i.Logger)
			i.running.Go(func() { others.keep(ctx, forgetOthersEach, i.forgetOthers) })
			return nil
		}},
	}
}

func (i *identity) endHooks() []kelson.Hook {
	if i == nil {
		return nil
	}
	return []kelson.Hook{{Name: "stop-kube-apiserver-identity-lease-controller", Run: func(ctx context.Context) error {
		i.takeBack(ctx, func(ctx context.Context) error { return i.remove(ctx, i.name) })
		return nil
	}}}
}

// start takes away the lease of one that died here.
func (i *identity) start(ctx context.Context) error {
	if err := i.ensureNamespaces(ctx); err != nil {
		return err
	}
	if err := i.remove(ctx, i.name); err != nil {
		i.Logger.Warn("the old lease of this server is still there", "error", err)
	}
	i.running.Go(func() { i.keep(ctx, identityEvery, i.renew) })
	return nil
}

func (i *identity) renew(ctx context.Context) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	hold := func(obj resource.Object) error {
		lease := obj.(*coordinationv1.Lease)
		if lease.Labels == nil {
			lease.Labels = map[string]string{}
		}
		lease.Labels[identityLabel], lease.Labels[corev1.LabelHostname] = "kube-apiserver", host
		lease.Spec.LeaseDurationSeconds = new(int32(identitySeconds))
		lease.Spec.RenewTime = new(metav1.NewMicroTime(request.From(ctx).Received))
		return nil
	}
	err = i.leases.Update(ctx, metav1.NamespaceSystem, i.name, hold)
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: i.name, Namespace: metav1.NamespaceSystem},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &i.holder},
	}
	if err := hold(lease); err != nil {
		return err
	}
	if err = i.leases.Create(ctx, lease); apierrors.IsAlreadyExists(err) {
		return nil // one on the same machine was faster, and has the same name
	}
	return err
}

// forgetOthers removes leases of servers that are gone.
func (i *identity) forgetOthers(ctx context.Context) error {
	all, err := i.leases.List(ctx, metav1.NamespaceSystem)
	if err != nil {
		return err
	}
	now := request.From(ctx).Received
	for _, obj := range all {
		lease := obj.(*coordinationv1.Lease)
		spec := &lease.Spec
		if lease.Labels[identityLabel] != "kube-apiserver" ||
			spec.RenewTime != nil && spec.LeaseDurationSeconds != nil && spec.RenewTime.Add(time.Duration(*spec.LeaseDurationSeconds)*time.Second).After(now) {
			continue
		}
		if err := i.remove(ctx, lease.Name); err != nil {
			return err
		}
	}
	return nil
}

func (i *identity) remove(ctx context.Context, name string) error {
	err := i.leases.Delete(ctx, metav1.NamespaceSystem, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
