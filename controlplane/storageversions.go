package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin/apiserverinternal"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// storageVersionAPI is the gate that has servers tell in which versions they keep
// objects.
const storageVersionAPI = "StorageVersionAPI"

// storageVersionsEvery is how often it is looked whether what is told is still there.
const storageVersionsEvery = 10 * time.Minute

// checkStorageVersions wants the resources to be served in which servers tell it, and
// that they are there.
func (a *assembly) checkStorageVersions() error {
	if !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	if _, ok := a.catalogs.get().Definition(internalv1alpha1.GroupName, "storageversions"); !ok {
		return fmt.Errorf("--feature-gates: this server needs --runtime-config=%s=true for %s", internalv1alpha1.SchemeGroupVersion, storageVersionAPI)
	}
	if _, ok := a.catalogs.get().Definition(coordinationv1.GroupName, "leases"); !ok {
		return fmt.Errorf("--feature-gates: this server needs leases for %s", storageVersionAPI)
	}
	return nil
}

// storageVersionHooks write the versions in which built-in kinds are kept. It is done
// when the lease of this server is there: what servers without one have said is
// removed.
func (a *assembly) storageVersionHooks() []kelson.Hook {
	if !a.Gates.Enabled(storageVersionAPI) {
		return nil
	}
	return []kelson.Hook{{Name: "built-in-resources-storage-version-updater", Run: func(ctx context.Context) error {
		if err := a.self.renew(ctx); err != nil {
			return err
		}
		if err := a.tellStorageVersions(ctx); err != nil {
			return err
		}
		told := newPresence("storage versions", a.Logger)
		a.running.Go(func() { told.keep(ctx, storageVersionsEvery, a.tellStorageVersions) })
		return nil
	}}}
}

func (a *assembly) tellStorageVersions(ctx context.Context) error {
	all := a.resources.Objects(internalv1alpha1.GroupName, "storageversions")
	var errs []error
	for _, d := range a.catalogs.get().Definitions() {
		if d.Virtual() || d.CreateOn != "" || d.Stored().Unstructured {
			continue
		}
		if err := tellStorageVersion(ctx, all, d, a.self.name); err != nil {
			errs = append(errs, fmt.Errorf("storage version of %s: %w", d.Resource, err))
		}
	}
	return errors.Join(errs...)
}

// tellStorageVersion says in which version a server keeps the objects of a resource,
// and which it can read.
func tellStorageVersion(ctx context.Context, all resource.Objects, d *resource.Definition, server string) error {
	told := internalv1alpha1.ServerStorageVersion{APIServerID: server, EncodingVersion: d.HubAPIVersion()}
	for i := range d.Versions {
		v := &d.Versions[i]
		gv := schema.GroupVersion{Group: d.Group, Version: v.Name}
		if v.Group != "" {
			gv.Group = v.Group
		}
		// Of other groups only what is served is told.
		if own := gv.Group == d.Group; own || !v.Off {
			told.DecodableVersions = append(told.DecodableVersions, gv.String())
			if own && !v.Off {
				told.ServedVersions = append(told.ServedVersions, gv.String())
			}
		}
	}
	group := d.Group
	if group == "" {
		group = "core"
	}
	name := group + "." + d.Resource
	say := func(obj resource.Object) error {
		v := obj.(*internalv1alpha1.StorageVersion)
		i := slices.IndexFunc(v.Status.StorageVersions, func(s internalv1alpha1.ServerStorageVersion) bool { return s.APIServerID == server })
		if i >= 0 {
			v.Status.StorageVersions[i] = told
		} else {
			v.Status.StorageVersions = append(v.Status.StorageVersions, told)
		}
		apiserverinternal.Agree(v, request.From(ctx).Received)
		return nil
	}
	for {
		err := all.Update(ctx, "", name, say)
		if !apierrors.IsNotFound(err) {
			return err
		}
		err = all.Create(ctx, &internalv1alpha1.StorageVersion{
			TypeMeta:   metav1.TypeMeta{APIVersion: internalv1alpha1.SchemeGroupVersion.String(), Kind: "StorageVersion"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}
