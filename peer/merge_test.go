package peer

import (
	"reflect"
	"testing"

	apidiscovery "k8s.io/api/apidiscovery/v2"
)

// TestMerge merges servers in the order of their names; what is new is where the servers
// that have it have it.
func TestMerge(t *testing.T) {
	a, b, c := groupOf("a", "v1", "x"), groupOf("b", "v1", "y"), groupOf("c", "v1", "z")
	withVersions := func(name string, versions ...apidiscovery.APIVersionDiscovery) apidiscovery.APIGroupDiscovery {
		g := groupOf(name, "")
		g.Versions = versions
		return g
	}
	v1, v2, v3 := groupOf("", "v1", "x").Versions[0], groupOf("", "v2", "x").Versions[0], groupOf("", "v3", "x").Versions[0]
	type groups = []apidiscovery.APIGroupDiscovery
	for _, test := range []struct {
		name    string
		servers map[string]groups // that of this one is m
		want    groups
	}{
		{"alone", map[string]groups{"m": {a, b}}, groups{a, b}},
		{"the same", map[string]groups{"m": {a, b}, "n": {a, b}, "k": {a, b}}, groups{a, b}},
		{"a group in the middle", map[string]groups{"m": {a, c}, "n": {a, b, c}}, groups{a, b, c}},
		{"a group of each", map[string]groups{"m": {a, b}, "n": {b, c}}, groups{a, b, c}},
		{"nothing of its own", map[string]groups{"m": nil, "n": {a}}, groups{a}},
		{"a newer version", map[string]groups{"m": {withVersions("g", v2, v1)}, "n": {withVersions("g", v3, v2, v1)}}, groups{withVersions("g", v3, v2, v1)}},
		{"more resources", map[string]groups{"m": {groupOf("g", "v1", "x", "z")}, "n": {groupOf("g", "v1", "x", "y", "z")}}, groups{groupOf("g", "v1", "x", "y", "z")}},
	} {
		got := mergeServers(test.servers["m"], test.servers)
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s:\ngot  %v\nwant %v", test.name, got, test.want)
		}
	}
}

// TestMergeResources takes verbs and subresources of both servers.
func TestMergeResources(t *testing.T) {
	sub := func(names ...string) (all []apidiscovery.APISubresourceDiscovery) {
		for _, name := range names {
			all = append(all, apidiscovery.APISubresourceDiscovery{Subresource: name})
		}
		return all
	}
	a := apidiscovery.APIResourceDiscovery{Resource: "r", Verbs: []string{"get", "list"}, Subresources: sub("status"), SingularResource: "a"}
	b := apidiscovery.APIResourceDiscovery{Resource: "r", Verbs: []string{"create", "get"}, Subresources: sub("scale", "status"), SingularResource: "b"}
	want := apidiscovery.APIResourceDiscovery{Resource: "r", Verbs: []string{"create", "get", "list"}, Subresources: sub("scale", "status"), SingularResource: "a"}
	if got, changed := mergeResources(a, b); !changed || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, changed, want)
	}
	if got, changed := mergeResources(a, a); changed || !reflect.DeepEqual(got, a) {
		t.Errorf("the same: got %v, %v, want it as it is", got, changed)
	}
}
