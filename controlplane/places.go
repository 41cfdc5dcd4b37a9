package controlplane

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/apikeel/kelson/store"
)

// EtcdOverride puts a resource into an etcd of its own: --etcd-servers-overrides.
// Custom resources, their definitions and API services are always with the rest.
type EtcdOverride struct {
	Group string
	// Resource "*" is all of the group that have no override of their own.
	Resource string
	Servers  []string
}

// set names the servers, in whatever order they are.
func (o *EtcdOverride) set() string {
	return strings.Join(slices.Sorted(slices.Values(o.Servers)), ";")
}

// leaseResource is by which name an override chooses where the leases of servers are.
const leaseResource = "apiServerIPInfo"

// etcds returns the servers of each etcd that overrides name, and which of them a
// resource is in: -1 is none. Of two overrides the later counts.
func etcds(overrides []EtcdOverride) (servers [][]string, find func(group, name string) int) {
	type key struct{ group, resource string }
	numbers, chosen := map[string]int{}, map[key]int{}
	for i := range overrides {
		o := &overrides[i]
		n, known := numbers[o.set()]
		if !known {
			n = len(servers)
			numbers[o.set()], servers = n, append(servers, o.Servers)
		}
		chosen[key{o.Group, o.Resource}] = n
	}
	return servers, func(group, name string) int {
		for _, name := range []string{name, "*"} {
			if n, ok := chosen[key{group, name}]; ok {
				return n
			}
		}
		return -1
	}
}

// openElsewhere connects to the etcds that overrides name.
func (c *Config) openElsewhere(ctx context.Context) error {
	servers, _ := etcds(c.EtcdOverrides)
	for _, endpoints := range servers {
		options := c.Etcd
		options.Endpoints = endpoints
		backend, err := etcd.Open(ctx, options)
		if err != nil {
			return errors.Join(err, c.closeElsewhere())
		}
		c.elsewhere = append(c.elsewhere, backend)
	}
	return nil
}

func (c *Config) closeElsewhere() error {
	var errs []error
	for _, backend := range c.elsewhere {
		errs = append(errs, backend.Close())
	}
	c.elsewhere = nil
	return errors.Join(errs...)
}

// place is where objects are. The first has all that no other one has.
type place struct {
	backend storage.Backend
	objects *store.Store
}

// openPlaces opens the stores of a server, the first on the backend that is given.
func (a *assembly) openPlaces(ctx context.Context, backend storage.Backend) error {
	meters := newMeters(a.registry, a.catalogs.get)
	var find func(group, name string) int
	if len(a.elsewhere) > 0 {
		_, find = etcds(a.EtcdOverrides)
	}
	a.where = func(group, name string) int {
		if find == nil {
			return 0
		}
		return find(group, name) + 1
	}
	options := store.Options{Logger: a.Logger, Metrics: a.measured}
	for i, backend := range append([]storage.Backend{backend}, a.elsewhere...) {
		if a.encrypted != nil && i > 0 {
			backend = a.encrypted.Over(backend)
		}
		p := place{backend: &measured{backend, meters}}
		options.Elsewhere = nil
		if i == 0 && find != nil {
			options.Elsewhere = func(def *resource.Definition) *store.Store { return a.places[a.placeOf(def)].objects }
		}
		var err error
		if p.objects, err = store.Open(ctx, p.backend, options); err != nil {
			a.closePlaces()
			return err
		}
		a.places = append(a.places, p)
	}
	a.objects = a.places[0].objects
	return nil
}

// shared reports whether other servers may use the same store.
func (a *assembly) shared() bool { return a.places[0].backend.Shared() }

// outlivesAuthorities reports whether the data stays when the certificate authorities
// of this server are gone: nobody may be told to trust them, or each start would leave
// one behind. Like kube-apiserver the server shows no certificate to others then,
// unless it is given one.
func (a *assembly) outlivesAuthorities() bool { return a.NoFolder && a.shared() }

// backends are those of all places.
func (a *assembly) backends() (all []storage.Backend) {
	for _, p := range a.places {
		all = append(all, p.backend)
	}
	return all
}

func (a *assembly) closePlaces() {
	for _, p := range a.places {
		p.objects.Close()
	}
}

// placeOf returns the number of the place that has the objects of a definition. The
// ranges that services take from are with the services.
func (a *assembly) placeOf(def *resource.Definition) int {
	name := def.Resource
	switch {
	case def.StoreJSON:
		return 0
	case def.Group == "" && name == core.RangeResource:
		name = "services"
	}
	return a.where(def.Group, name)
}

// current waits until the caches of a place have all that is acknowledged by now.
func (p *place) current(ctx context.Context) error {
	revision, err := p.backend.Revision(ctx)
	if err != nil {
		return err
	}
	return p.objects.WaitFor(ctx, revision)
}
