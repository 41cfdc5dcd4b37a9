package controlplane

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/builtin/core"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/encrypt"
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

// place is a store of objects, and the backend below it.
type place struct {
	backend storage.Backend
	objects *store.Store
	health  *storeHealth
}

// places are where the objects of a server are. The first has all that no override
// puts elsewhere.
type places struct {
	all []place
	// find returns the number of the etcd that overrides put a resource into, -1 for
	// none; nil if there are no overrides.
	find func(group, name string) int
}

// openPlaces opens a store on each backend, the first of which is for everything that
// no override puts into one of the others.
func openPlaces(ctx context.Context, backends []storage.Backend, overrides []EtcdOverride, meters *meters, users *userNotes, options store.Options) (*places, error) {
	p := &places{}
	if len(backends) > 1 {
		_, p.find = etcds(overrides)
	}
	for i, backend := range backends {
		_, encrypts := backend.(*encrypt.Backend)
		wrapped := &measured{Backend: backend, meters: meters, plain: !encrypts}
		if i == 0 {
			wrapped.users = users
		}
		backend = wrapped
		options.Elsewhere = nil
		if i == 0 && p.find != nil {
			options.Elsewhere = func(def *resource.Definition) *store.Store { return p.all[p.of(def)].objects }
		}
		objects, err := store.Open(ctx, backend, options)
		if err != nil {
			p.close()
			return nil, err
		}
		p.all = append(p.all, place{backend, objects, &storeHealth{revision: backend.Revision}})
	}
	return p, nil
}

func (p *places) close() {
	for _, place := range p.all {
		place.objects.Close()
	}
}

// shared reports whether other servers may use the same data.
func (p *places) shared() bool { return p.all[0].backend.Shared() }

// backends returns the backends of all places.
func (p *places) backends() (all []storage.Backend) {
	for _, place := range p.all {
		all = append(all, place.backend)
	}
	return all
}

// number returns which place a resource is in.
func (p *places) number(group, name string) int {
	if p.find == nil {
		return 0
	}
	return p.find(group, name) + 1
}

// of returns the number of the place that has the objects of a definition. The
// ranges that services take from are with the services.
func (p *places) of(def *resource.Definition) int {
	name := def.Resource
	switch {
	case def.Group == crd.Group, def.Group == aggregator.Group, def.Stored() != nil && def.Stored().Unstructured:
		return 0
	case def.Group == "" && name == core.RangeResource:
		name = "services"
	}
	return p.number(def.Group, name)
}

// current waits until the caches of a place have all that is acknowledged by now.
func (p *place) current(ctx context.Context) error {
	revision, err := p.backend.Revision(ctx)
	if err != nil {
		return err
	}
	return p.objects.WaitFor(ctx, revision)
}
