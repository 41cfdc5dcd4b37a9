package apiserver

import (
	"context"
	"os"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// Identity keeps a lease that tells which servers share a store. Where nobody can
// share it there is no need for one.
type Identity struct {
	*Server
	// Name is that of the lease: all servers of this machine have the same.
	Name string
	// PeerAddress, if it is not empty, is the host and port for an annotation of the lease,
	// which tells where other servers reach this one. It is set before Start.
	PeerAddress string
	// Replaces: another process of this machine may hold the lease, and end when this one
	// is ready. The lease is taken over then, instead of being made anew, so that it is
	// never missing.
	Replaces bool

	leases resource.Objects
	holder string // this server
	took   bool   // the lease has been written with this holder; used by renewals only
	lease  *presence
}

// NewIdentity returns the identity of a server whose catalog has leases.
func NewIdentity(s *Server) *Identity {
	name := measure.ServerName()
	return &Identity{Server: s, Name: name, leases: s.Objects(serverManager, coordinationv1.GroupName, "leases"),
		holder: name + "_" + uuid.NewString(), lease: newPresence("the lease of this server", s.Logger)}
}

// Start takes away the lease of a server that died here, and keeps that of this one.
func (i *Identity) Start(ctx context.Context) error {
	if err := i.EnsureNamespaces(ctx); err != nil {
		return err
	}
	if i.Replaces {
		i.Running.Go(func() { i.lease.keep(ctx, identityEvery, i.Renew) })
		return nil
	}
	if err := i.remove(ctx, i.Name); err != nil {
		i.Logger.Warn("the old lease of this server is still there", "error", err)
	}
	i.Running.Go(func() { i.lease.keep(ctx, identityEvery, i.Renew) })
	return nil
}

// StartCollector removes the leases of servers that are gone, now and then.
func (i *Identity) StartCollector(ctx context.Context) error {
	others := newPresence("leases of other servers", i.Logger)
	i.Running.Go(func() { others.keep(ctx, forgetOthersEach, i.forgetOthers) })
	return nil
}

// Stop removes the lease of this server, unless another process on this machine has
// replaced it and holds the lease now.
func (i *Identity) Stop(ctx context.Context) error {
	i.lease.takeBack(ctx, func(ctx context.Context) error {
		obj, err := i.leases.Get(ctx, metav1.NamespaceSystem, i.Name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		lease := obj.(*coordinationv1.Lease)
		if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != i.holder {
			return nil
		}
		err = i.leases.Delete(ctx, metav1.NamespaceSystem, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID}})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil // another process has it now
		}
		return err
	})
	return nil
}

// Renew writes the lease.
func (i *Identity) Renew(ctx context.Context) error {
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
		if i.PeerAddress != "" {
			if lease.Annotations == nil {
				lease.Annotations = map[string]string{}
			}
			lease.Annotations[corev1.AnnotationPeerAdvertiseAddress] = i.PeerAddress
		}
		if !i.took {
			lease.Spec.HolderIdentity = &i.holder
		}
		lease.Spec.LeaseDurationSeconds = new(int32(identitySeconds))
		lease.Spec.RenewTime = new(metav1.NewMicroTime(request.From(ctx).Received))
		return nil
	}
	err = i.leases.Update(ctx, metav1.NamespaceSystem, i.Name, hold)
	i.took = i.took || err == nil
	if !apierrors.IsNotFound(err) {
		return err
	}
	lease := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease"},
		ObjectMeta: metav1.ObjectMeta{Name: i.Name, Namespace: metav1.NamespaceSystem},
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
func (i *Identity) forgetOthers(ctx context.Context) error {
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

func (i *Identity) remove(ctx context.Context, name string) error {
	err := i.leases.Delete(ctx, metav1.NamespaceSystem, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
