package discovery

import (
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// Merged is the discovery of all groups when some are served by other servers: the
// groups in the order in which they are listed; those of the catalog get their content
// from it. It must not be changed once it is returned.
type Merged struct{ Groups []MergedGroup }

// MergedGroup is a group, with its preferred version first.
type MergedGroup struct {
	Name     string
	Versions []MergedVersion
}

// MergedVersion is a version of a group.
type MergedVersion struct {
	Name string
	// Remote is the discovery of another server for the version; nil if the catalog has
	// it.
	Remote *apidiscovery.APIVersionDiscovery
	// Unlisted: only aggregated discovery has the version. It is served, but its APIService
	// was deleted.
	Unlisted bool
}

// listed returns the group without versions that are unlisted, and whether it has others.
func (g MergedGroup) listed() (MergedGroup, bool) {
	if slices.ContainsFunc(g.Versions, func(v MergedVersion) bool { return v.Unlisted }) {
		g.Versions = slices.DeleteFunc(slices.Clone(g.Versions), func(v MergedVersion) bool { return v.Unlisted })
	}
	return g, len(g.Versions) > 0
}

// Merge makes the handler use what f returns for a catalog. f must return the same
// value until something changes.
func (h *Handler) Merge(f func(*resource.Catalog) *Merged) { h.merge = f }

// Resources converts a resource list of another server to the form of aggregated
// discovery. Subresources without their resource are left out.
func Resources(list []metav1.APIResource) []apidiscovery.APIResourceDiscovery {
	below := map[string][]metav1.APIResource{}
	for _, r := range list {
		if parent, _, ok := strings.Cut(r.Name, "/"); ok {
			below[parent] = append(below[parent], r)
		}
	}
	var sorted []metav1.APIResource
	for _, r := range list {
		if !strings.Contains(r.Name, "/") {
			sorted = append(append(sorted, r), below[r.Name]...)
			delete(below, r.Name)
		}
	}
	return nestSubresources(sorted)
}

// view is the input of discovery for one request.
type view struct {
	catalog *resource.Catalog
	merged  *Merged // nil if there is only the catalog
}

func (h *Handler) view() view {
	v := view{catalog: h.catalog()}
	if h.merge != nil {
		v.merged = h.merge(v.catalog)
	}
	return v
}

func (v view) groups() []MergedGroup {
	if v.merged != nil {
		return v.merged.Groups
	}
	var groups []MergedGroup
	for _, g := range v.catalog.Groups() {
		groups = append(groups, catalogGroup(g))
	}
	return groups
}

func (v view) group(name string) (MergedGroup, bool) {
	if v.merged != nil {
		for _, g := range v.merged.Groups {
			if g.Name == name {
				return g.listed()
			}
		}
		return MergedGroup{}, false
	}
	g, ok := v.catalog.Group(name)
	if !ok {
		return MergedGroup{}, false
	}
	return catalogGroup(g), true
}

func catalogGroup(g *resource.ServedGroup) MergedGroup {
	group := MergedGroup{Name: g.Name}
	for i := range g.Versions {
		group.Versions = append(group.Versions, MergedVersion{Name: g.Versions[i].Name})
	}
	return group
}

// content returns the resources of a version, nil if they are not known.
func (v view) content(group string, version MergedVersion) *apidiscovery.APIVersionDiscovery {
	if version.Remote != nil {
		return version.Remote
	}
	if g, ok := v.catalog.Group(group); ok {
		if served, ok := g.Version(version.Name); ok {
			content := &apidiscovery.APIVersionDiscovery{
				Version: version.Name, Resources: nestSubresources(resources(served)), Freshness: apidiscovery.DiscoveryFreshnessCurrent,
			}
			if isCustom(served) {
				fillKinds(content.Resources, group, version.Name)
			}
			return content
		}
	}
	return nil
}

// fillKinds fills in the group and version of kinds that have none, as only custom
// resources do.
func fillKinds(list []apidiscovery.APIResourceDiscovery, group, version string) {
	spell := func(kind *metav1.GroupVersionKind) {
		if kind.Version == "" {
			kind.Group, kind.Version = group, version
		}
	}
	for i := range list {
		spell(list[i].ResponseKind)
		for j := range list[i].Subresources {
			spell(list[i].Subresources[j].ResponseKind)
		}
	}
}
