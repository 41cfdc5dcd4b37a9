package controller

import (
	"context"
	"errors"
	"slices"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/apiserverinternal"
)

const (
	serverLabel = "apiserver.kubernetes.io/identity"
	serverKind  = "kube-apiserver"
)

// StorageVersions removes the entries of servers from StorageVersion objects when the
// identity lease of the server is gone.
func StorageVersions() Controller {
	return Controller{Name: "storageversion-garbage-collector-controller", Alias: "storage-version-gc", Account: "storage-version-garbage-collector", Start: func(env *Env) Observer {
		v := &storageVersions{env: env}
		v.queue = NewQueue(env, 1, v.sync)
		return v
	}}
}

// storageVersions checks a StorageVersion when it changes, and all of them when a lease
// is deleted.
type storageVersions struct {
	env   *Env
	queue *Queue[string] // names of storage versions, "" for all
}

// Observe implements Observer.
func (v *storageVersions) Observe(changes []Change) {
	for i := range changes {
		switch c := &changes[i]; {
		case c.Kind.Is(internalv1alpha1.GroupName, "storageversions") && !c.Gone:
			v.queue.Add(c.Name)
		case c.Kind.Is(coordinationv1.GroupName, "leases") && c.Gone && c.Namespace == metav1.NamespaceSystem:
			v.queue.Add("")
		}
	}
}

func (v *storageVersions) sync(ctx context.Context, name string) error {
	kind := v.env.Kind(internalv1alpha1.SchemeGroupVersion.String(), "StorageVersion")
	if kind == nil {
		return nil
	}
	if name != "" {
		var one internalv1alpha1.StorageVersion
		if err := v.env.Get(ctx, kind, "", name, &one); err != nil {
			return ignoreNotFound(err)
		}
		return v.removeGone(ctx, kind, &one)
	}
	var all internalv1alpha1.StorageVersionList
	if err := v.env.List(ctx, kind, "", &all); err != nil {
		return err
	}
	var errs []error
	for i := range all.Items {
		errs = append(errs, v.removeGone(ctx, kind, &all.Items[i]))
	}
	return errors.Join(errs...)
}

// removeGone removes the entries of servers that are gone.
func (v *storageVersions) removeGone(ctx context.Context, kind *Kind, one *internalv1alpha1.StorageVersion) error {
	var left []internalv1alpha1.ServerStorageVersion
	for _, s := range one.Status.StorageVersions {
		switch there, err := v.isAlive(ctx, s.APIServerID); {
		case err != nil:
			return err
		case there:
			left = append(left, s)
		}
	}
	switch {
	case len(left) == len(one.Status.StorageVersions):
		return nil
	case len(left) == 0:
		return mapOutdated(v.env.Delete(ctx, kind, "", one.Name, ifUnchanged(&one.ObjectMeta)))
	}
	one.Status.StorageVersions = slices.Clip(left)
	apiserverinternal.Agree(one, v.env.Now())
	return mapOutdated(v.env.Update(ctx, kind, "", one.Name, "status", one, nil))
}

func (v *storageVersions) isAlive(ctx context.Context, server string) (bool, error) {
	leases := v.env.Kind(coordinationv1.SchemeGroupVersion.String(), "Lease")
	if leases == nil {
		return true, nil
	}
	lease, err := v.env.Metadata(ctx, leases, metav1.NamespaceSystem, server)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return lease.Labels[serverLabel] == serverKind, err
}
