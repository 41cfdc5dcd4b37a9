package controlplane

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
)

// encrypting returns the backends that encrypt, or the same ones if nothing is to be.
func (a *assembly) encrypting(backends []storage.Backend) ([]storage.Backend, error) {
	if a.Encryption.File == "" {
		return backends, nil
	}
	opts := a.Encryption
	opts.Logger, opts.Metrics, opts.Resource = a.Logger, a.measured, (&keyOwners{catalog: a.catalogs.get}).of
	opts.Reloaded = func(changed func(group, resource string) bool) {
		for _, p := range a.places.all {
			if err := p.objects.Doubt(context.Background(), func(def *resource.Definition) bool { return changed(def.Group, def.Resource) }); err != nil {
				a.Logger.Error("objects in the cache may be shown although their keys are gone", "error", err)
			}
		}
	}
	opts.KMSv1 = a.Gates.Enabled("KMSv1")
	if a.Storage == StorageEtcd {
		opts.Prefix = a.Etcd.Prefix
	}
	var err error
	if a.encrypted, err = encrypt.Open(backends[0], opts); err != nil {
		return nil, err
	}
	a.onClose(a.encrypted.Release)
	all := []storage.Backend{a.encrypted}
	for _, backend := range backends[1:] {
		all = append(all, a.encrypted.Over(backend))
	}
	return all, nil
}

// keyOwners tells which resources keys belong to.
type keyOwners struct {
	catalog func() *resource.Catalog
	builtin atomic.Pointer[map[string]groupResource] // by storage key
}

type groupResource struct{ group, resource string }

// of returns the resource that a key belongs to. What has a name with a dot
// first is in that group, as all custom resources are. What servers keep for
// themselves, such as the node ports in use, belongs to none.
func (o *keyOwners) of(key string) (group, name string) {
	rest, ok := strings.CutPrefix(key, storage.Root)
	builtin := o.all()
	if !ok || builtin == nil {
		return "", ""
	}
	first, more, _ := strings.Cut(rest, "/")
	second, _, _ := strings.Cut(more, "/")
	for _, stored := range []string{first, first + "/" + second} {
		if gr, ok := builtin[stored]; ok {
			return gr.group, gr.resource
		}
	}
	if strings.Contains(first, ".") {
		return first, second
	}
	return "", ""
}

// all are the resources of the first catalog: what comes later is custom.
func (o *keyOwners) all() map[string]groupResource {
	if known := o.builtin.Load(); known != nil {
		return *known
	}
	catalog := o.catalog()
	if catalog == nil {
		return nil // nobody has asked for an object yet
	}
	known := map[string]groupResource{}
	for _, def := range catalog.Definitions() {
		if !def.Virtual() && def.CreateOn == "" {
			known[def.StorageKey] = groupResource{def.Group, def.Resource}
		}
	}
	o.builtin.Store(&known)
	return known
}
