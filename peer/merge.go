package peer

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	utilsort "k8s.io/apimachinery/pkg/util/sort"

	"github.com/apikeel/kelson/discovery"
)

// This file merges the discovery of servers.

var _ discovery.Peers = (*Proxy)(nil)

// Version implements discovery.Peers.
func (p *Proxy) Version() int64 { return p.current().version }

// Merge implements discovery.Peers. Servers are merged in the order of the names of their
// leases, so that all of them come to the same result.
func (p *Proxy) Merge(own []apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
	v := p.current()
	servers := map[string][]apidiscovery.APIGroupDiscovery{p.Name: own}
	for name, groups := range v.groups {
		servers[name] = slices.DeleteFunc(slices.Clone(groups), func(g apidiscovery.APIGroupDiscovery) bool {
			return g.Name == "" // it is below /api, which is not merged
		})
	}
	return mergeServers(own, servers)
}

// mergeServers returns the groups of all servers; own, if that has everything.
func mergeServers(own []apidiscovery.APIGroupDiscovery, servers map[string][]apidiscovery.APIGroupDiscovery) []apidiscovery.APIGroupDiscovery {
	if len(servers) <= 1 {
		return own
	}
	all := map[string]apidiscovery.APIGroupDiscovery{}
	var orders [][]string
	for _, server := range slices.Sorted(maps.Keys(servers)) {
		var order []string
		for _, group := range servers[server] {
			order = append(order, group.Name)
			if known, ok := all[group.Name]; ok {
				group, _ = mergeGroups(known, group)
			}
			all[group.Name] = group
		}
		orders = append(orders, order)
	}
	order := orders[0]
	if slices.ContainsFunc(orders[1:], func(other []string) bool { return !slices.Equal(order, other) }) {
		order = utilsort.MergePreservingRelativeOrder(orders)
	}
	merged := make([]apidiscovery.APIGroupDiscovery, 0, len(order))
	for _, name := range order {
		merged = append(merged, all[name])
	}
	if reflect.DeepEqual(merged, own) {
		return own
	}
	return merged
}

// merge returns what is in a or b, by key. What is in both is merged by both. The order is
// that of a and b as far as they agree. It reports whether the result differs from a.
func merge[T any](a, b []T, key func(T) string, both func(a, b T) (T, bool)) ([]T, bool) {
	index := make(map[string]int, len(a)+len(b))
	all := make([]T, 0, len(a)+len(b))
	keysOf := func(list []T) []string {
		keys := make([]string, len(list))
		for i, item := range list {
			keys[i] = key(item)
		}
		return keys
	}
	aKeys, bKeys := keysOf(a), keysOf(b)
	changed := false
	for i, item := range a {
		if _, twice := index[aKeys[i]]; !twice {
			index[aKeys[i]] = len(all)
			all = append(all, item)
		}
	}
	for i, item := range b {
		at, known := index[bKeys[i]]
		if !known {
			index[bKeys[i]] = len(all)
			all = append(all, item)
			continue
		}
		if merged, differs := both(all[at], item); differs {
			all[at], changed = merged, true
		}
	}
	if slices.Equal(aKeys, bKeys) {
		if !changed {
			return a, false
		}
		return all, true
	}
	ordered := make([]T, 0, len(all))
	for _, name := range utilsort.MergePreservingRelativeOrder([][]string{aKeys, bKeys}) {
		if at, ok := index[name]; ok {
			ordered = append(ordered, all[at])
			delete(index, name)
		}
	}
	return ordered, true
}

func mergeGroups(a, b apidiscovery.APIGroupDiscovery) (apidiscovery.APIGroupDiscovery, bool) {
	versions, changed := merge(a.Versions, b.Versions, func(v apidiscovery.APIVersionDiscovery) string { return v.Version }, mergeVersions)
	a.Versions = versions
	return a, changed
}

func mergeVersions(a, b apidiscovery.APIVersionDiscovery) (apidiscovery.APIVersionDiscovery, bool) {
	resources, changed := merge(a.Resources, b.Resources, func(r apidiscovery.APIResourceDiscovery) string { return r.Resource }, mergeResources)
	a.Resources = resources
	return a, changed
}

// mergeResources returns a with the verbs and subresources of both, sorted.
func mergeResources(a, b apidiscovery.APIResourceDiscovery) (apidiscovery.APIResourceDiscovery, bool) {
	if reflect.DeepEqual(a, b) {
		return a, false
	}
	verbs := slices.Sorted(slices.Values(slices.Concat(a.Verbs, b.Verbs)))
	a.Verbs = slices.Compact(verbs)
	subresources := map[string]apidiscovery.APISubresourceDiscovery{}
	for _, s := range slices.Concat(a.Subresources, b.Subresources) {
		subresources[s.Subresource] = s
	}
	a.Subresources = slices.SortedFunc(maps.Values(subresources), func(x, y apidiscovery.APISubresourceDiscovery) int {
		return cmp.Compare(x.Subresource, y.Subresource)
	})
	return a, true
}
