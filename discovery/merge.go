package discovery

import (
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/resource"
)

// Merged is what is told when some groups are served by others: all groups in
// the order in which they are shown, of which those of the catalog have their
// content from there. It must not be changed once it is returned.
type Merged struct{ Groups []MergedGroup }

// MergedGroup is a group, with its preferred version first.
type MergedGroup struct {
	Name     string
	Versions []MergedVersion
}

// MergedVersion is a version of a group.
type MergedVersion struct {
	Name string
	// Remote is what another server tells of the version; nil if it is one of
	// the catalog.
	Remote *apidiscovery.APIVersionDiscovery
}

// Merge makes the handler tell what f returns for a catalog, which is to be the
// same value until something changes.
func (h *Handler) Merge(f func(*resource.Catalog) *Merged) { h.merge = f }

// Resources returns the resources of a list, which another server has sent, in
// the form of aggregated discovery. Subresources of nothing that is listed are
// left out.
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
	return nested(sorted)
}

// view is what a request is told about.
type view struct {
	catalog *resource.Catalog
	merged  *Merged // nil if there is but the catalog
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
		groups = append(groups, ofCatalog(g))
	}
	return groups
}

func (v view) group(name string) (MergedGroup, bool) {
	if v.merged != nil {
		for _, g := range v.merged.Groups {
			if g.Name == name {
				return g, true
			}
		}
		return MergedGroup{}, false
	}
	g, ok := v.catalog.Group(name)
	if !ok {
		return MergedGroup{}, false
	}
	return ofCatalog(g), true
}

func ofCatalog(g *resource.ServedGroup) MergedGroup {
	group := MergedGroup{Name: g.Name}
	for i := range g.Versions {
		group.Versions = append(group.Versions, MergedVersion{Name: g.Versions[i].Name})
	}
	return group
}

// content returns what a version has, nil if it is not known.
func (v view) content(group string, version MergedVersion) *apidiscovery.APIVersionDiscovery {
	if version.Remote != nil {
		return version.Remote
	}
	if g, ok := v.catalog.Group(group); ok {
		if served, ok := g.Version(version.Name); ok {
			content := &apidiscovery.APIVersionDiscovery{
				Version: version.Name, Resources: nested(resources(served)), Freshness: apidiscovery.DiscoveryFreshnessCurrent,
			}
			if isCustom(served) {
				spellKinds(content.Resources, group, version.Name)
			}
			return content
		}
	}
	return nil
}

// spellKinds says the group and version of kinds that are those of the resources
// themselves, which only custom resources do.
func spellKinds(list []apidiscovery.APIResourceDiscovery, group, version string) {
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
