package aggregator

import (
	"cmp"
	"maps"
	"slices"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/apikeel/kelson/discovery"
	"github.com/apikeel/kelson/resource"
)

// This file merges the discovery of all groups.

// merged caches the result of mergedDiscovery, with the catalog and the value of
// Server.changed that it belongs to.
type merged struct {
	catalog *resource.Catalog
	changed int64
	value   *discovery.Merged
}

// mergedDiscovery returns all groups: those of APIServices, and those of the catalog
// whose APIService does not exist yet. It is computed again when something has changed.
func (s *Server) mergedDiscovery(catalog *resource.Catalog) *discovery.Merged {
	s.merging.Lock()
	defer s.merging.Unlock()
	if changed := s.changed.Load(); s.merged.value == nil || s.merged.catalog != catalog || s.merged.changed != changed {
		s.merged = merged{catalog, changed, s.merge(catalog)}
	}
	return s.merged.value
}

func (s *Server) merge(catalog *resource.Catalog) *discovery.Merged {
	// The group of APIServices has no APIService itself, and is always first.
	out := &discovery.Merged{Groups: []discovery.MergedGroup{{Name: Group, Versions: []discovery.MergedVersion{{Name: "v1"}}}}}
	services, deleted := s.servicesWith(LocalServices(catalog))
	for _, group := range byGroup(append(services, deleted...)) {
		g := discovery.MergedGroup{Name: group[0].Spec.Group}
		for _, service := range group {
			v := discovery.MergedVersion{Name: service.Spec.Version, Unlisted: slices.Contains(deleted, service)}
			if service.Spec.Service != nil {
				v.Remote = &apidiscovery.APIVersionDiscovery{Version: v.Name, Freshness: apidiscovery.DiscoveryFreshnessStale}
				if b := s.remote(service); b != nil {
					v.Remote = b.discovered(v.Remote)
				}
			}
			g.Versions = append(g.Versions, v)
		}
		if g.Name != Group {
			out.Groups = append(out.Groups, g)
		}
	}
	return out
}

// remote returns the backend of an APIService, nil if it is local.
func (s *Server) remote(service *apiregistration.APIService) *backend {
	return (*s.remotes.Load())[schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version}]
}

// groups returns the APIServices by group.
func (s *Server) groups() [][]*apiregistration.APIService {
	services, _ := s.servicesWith(nil)
	return byGroup(services)
}

// servicesWith returns the APIServices, including the expected ones that do not exist yet.
// A built-in one that somebody has deleted is not expected before the next start; those
// are returned as deleted. Another server that does not serve the version deletes it when
// it starts.
func (s *Server) servicesWith(expected []*apiregistration.APIService) (services, deleted []*apiregistration.APIService) {
	s.mu.Lock()
	defer s.mu.Unlock()
	services = slices.Collect(maps.Values(s.services))
	for _, wanted := range expected {
		switch {
		case s.services[wanted.Name] != nil:
		case !s.started || wanted.Labels[automanaged] == always:
			services = append(services, wanted)
		default:
			deleted = append(deleted, wanted)
		}
	}
	return services, deleted
}

// byGroup groups APIServices. Groups are ordered by their highest priority, and the
// versions of a group by preference.
func byGroup(services []*apiregistration.APIService) [][]*apiregistration.APIService {
	slices.SortFunc(services, compareServices)
	var groups [][]*apiregistration.APIService
	index := map[string]int{}
	for _, service := range services {
		i, ok := index[service.Spec.Group]
		if !ok {
			i = len(groups)
			index[service.Spec.Group] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], service)
	}
	for _, group := range groups {
		slices.SortFunc(group, func(a, b *apiregistration.APIService) int {
			if c := cmp.Compare(b.Spec.VersionPriority, a.Spec.VersionPriority); c != 0 {
				return c
			}
			return version.CompareKubeAwareVersionStrings(b.Spec.Version, a.Spec.Version)
		})
	}
	return groups
}
