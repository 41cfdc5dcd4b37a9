package controlplane

import (
	"fmt"
	"sync"

	"github.com/apikeel/kelson/aggregator"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/crd"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/wire"
)

// kindsKey is what decides about the definitions of built-in kinds that are not bound
// to a server. Which of the functions in builtin.Config there are follows from the gates.
type kindsKey struct {
	gates, runtimeConfig string
	emulation            builtin.Emulation
	denyPrivileged       bool
	core                 string // plain settings of the core group
	media                string // that objects are stored in
}

func (c *Config) kindsKey(b *builtin.Config) kindsKey {
	return kindsKey{
		gates: c.Gates.Key(), runtimeConfig: fmt.Sprint(c.RuntimeConfig), // maps are printed in the order of their keys
		emulation: c.Emulation, denyPrivileged: b.DenyPrivileged,
		core:  fmt.Sprint(b.Core.KubeletAddresses, b.Core.KubeletPort, b.Core.SplitLogs, b.Core.EventTTL, b.Core.Tokens.Issuer != nil),
		media: c.StorageMediaType,
	}
}

// maxSharedKinds bounds how many catalogs are kept for servers to come: tests run with
// few configurations, and a command with one.
const maxSharedKinds = 8

// sharedKinds has the catalogs of unbound definitions, which never change, and the
// images of what is written first.
type sharedKinds struct {
	mu       sync.Mutex
	catalogs map[kindsKey]*resource.Catalog
	images   map[imageKey]*image
}

// kindsOfProcess is what the servers of a process share.
var kindsOfProcess = sync.OnceValue(func() *sharedKinds { return &sharedKinds{} })

// get returns the catalog of a key, and makes it if it is the first to be asked for.
func (s *sharedKinds) get(key kindsKey, c *Config, b builtin.Config) (*resource.Catalog, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.catalogs[key]; known != nil {
		return known, nil
	}
	groups, err := builtin.SelectAs(builtin.Unbound(b), c.RuntimeConfig, c.Gates, c.Emulation)
	if err != nil {
		return nil, err
	}
	storeAs(c.StorageMediaType, groups)
	catalog, err := resource.NewCatalog(append(groups, crd.Definitions(nil), aggregator.Definitions())...)
	if err != nil {
		return nil, fmt.Errorf("built-in kinds: %w", err)
	}
	if s.catalogs == nil || len(s.catalogs) >= maxSharedKinds {
		s.catalogs = map[kindsKey]*resource.Catalog{}
	}
	s.catalogs[key] = catalog
	return catalog, nil
}

// image returns the image of a key, which may still have to be made.
func (s *sharedKinds) image(key imageKey) *image {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.images == nil || s.images[key] == nil && len(s.images) >= maxSharedKinds {
		s.images = map[imageKey]*image{}
	}
	if s.images[key] == nil {
		s.images[key] = &image{key: key}
	}
	return s.images[key]
}

// builtinCatalog returns the catalog of built-in kinds: those that are bound to this
// server, and others that it shares.
func (a *assembly) builtinCatalog(b builtin.Config) (*resource.Catalog, error) {
	a.kinds = a.kindsKey(&b)
	shared, err := kindsOfProcess().get(a.kinds, &a.Config, b)
	if err != nil {
		return nil, err
	}
	a.resources.Server = &b
	bound := builtin.Bound(b)
	countLogs(bound, a.measured)
	storeAs(a.StorageMediaType, bound)
	definitions, err := resource.WithGates([]resource.Group{crd.Definitions(a.measured)}, a.Gates)
	if err != nil {
		return nil, err
	}
	catalog, err := shared.Replace(append(bound, definitions...)...)
	if err != nil {
		return nil, fmt.Errorf("built-in kinds: %w", err)
	}
	return catalog, nil
}

// storeAs sets the encoding in which objects of built-in kinds are stored.
func storeAs(media string, groups []resource.Group) {
	for i := range groups {
		for j := range groups[i].Resources {
			def := &groups[i].Resources[j]
			def.StoreJSON, def.StoreYAML = media == wire.TypeJSON, media == wire.TypeYAML
		}
	}
}
