package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	internalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/apikeel/kelson/builtin/apiserverinternal"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// storageVersionsEvery is how often it is looked whether what is told is still there.
const storageVersionsEvery = 10 * time.Minute

// StorageVersions tells in which versions a server keeps the objects of built-in kinds.
type StorageVersions struct{ Identity *Identity }

// Start tells it, and sees to it that it stays told. The lease of the server comes
// first: what servers without one have said is removed.
func (v StorageVersions) Start(ctx context.Context) error {
	if err := v.Identity.Renew(ctx); err != nil {
		return err
	}
	if err := v.write(ctx); err != nil {
		return err
	}
	versions := newPresence("storage versions", v.Identity.Logger)
	v.Identity.Running.Go(func() { versions.keep(ctx, storageVersionsEvery, v.write) })
	return nil
}

func (v StorageVersions) write(ctx context.Context) error {
	all := v.Identity.Objects(serverManager, internalv1alpha1.GroupName, "storageversions")
	var errs []error
	for _, d := range v.Identity.Catalog().Definitions() {
		if d.Virtual() || d.CreateOn != "" || d.Stored().Unstructured {
			continue
		}
		if err := writeStorageVersion(ctx, all, d, v.Identity.Name); err != nil {
			errs = append(errs, fmt.Errorf("storage version of %s: %w", d.Resource, err))
		}
	}
	return errors.Join(errs...)
}

// writeStorageVersion says in which version a server keeps the objects of a resource,
// and which it can read.
func writeStorageVersion(ctx context.Context, all resource.Objects, d *resource.Definition, server string) error {
	told := internalv1alpha1.ServerStorageVersion{APIServerID: server, EncodingVersion: d.StorageAPIVersion()}
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
	for i := range d.Old {
		if v := &d.Old[i]; d.GroupOf(v) == d.Group {
			told.DecodableVersions = append(told.DecodableVersions, schema.GroupVersion{Group: d.Group, Version: v.Name}.String())
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
