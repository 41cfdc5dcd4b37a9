package main

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/internal/recorded"
	"github.com/apikeel/kelson/resource"
)

// TestVersions compares what is served under some flags with what kube-apiserver
// serves: a resource is its group, version and name, its kind, scope, singular, verbs,
// short names, categories and subresources.
func TestVersions(t *testing.T) {
	type setting struct {
		Flags string
		// Resources are those without flags. With some, there are More and Less.
		Resources, More, Less []string
	}
	var usual []string
	for _, c := range recorded.Read[setting](t, "testdata/versions.jsonl.gz") {
		if c.Resources != nil {
			usual = c.Resources
		}
		want := slices.DeleteFunc(append(slices.Clone(usual), c.More...), func(r string) bool {
			return slices.Contains(c.Less, r) || isMissing(r)
		})
		slices.Sort(want)
		config := configOf(t, c.Flags)
		groups, err := builtin.SelectAs(builtin.Groups(builtin.Config{}), config.RuntimeConfig, config.Emulation.Emulation)
		if err != nil {
			t.Errorf("%q: %v", c.Flags, err)
			continue
		}
		got := resources(t, groups)
		for _, r := range want {
			if !slices.Contains(got, r) {
				t.Errorf("%q: not served: %s", c.Flags, r)
			}
		}
		for _, r := range got {
			if !slices.Contains(want, r) {
				t.Errorf("%q: served: %s", c.Flags, r)
			}
		}
	}
	if usual == nil {
		t.Fatal("nothing to compare with")
	}
}

// isMissing tells features that this server does not have, behind gates that are off by default.
func isMissing(r string) bool {
	name, _, _ := strings.Cut(r, " ")
	return strings.HasPrefix(r, "lifecycle.k8s.io/") || strings.HasPrefix(r, "scheduling.k8s.io/") && !strings.HasSuffix(name, "/priorityclasses")
}

func resources(t *testing.T, groups []resource.Group) (all []string) {
	t.Helper()
	catalog, err := resource.NewCatalog(groups...)
	if err != nil {
		t.Fatal(err)
	}
	list := func(names []string) string { return cmp.Or(strings.Join(names, ","), "-") }
	for _, g := range catalog.Groups() {
		if g.Name == "" {
			continue // it has one version
		}
		for _, v := range g.Versions {
			for _, s := range v.Resources {
				d := s.Definition
				scope := "Cluster"
				if d.Namespaced {
					scope = "Namespaced"
				}
				verbs := slices.Sorted(slices.Values(d.Verbs))
				var subs []string
				for sub := range s.Subresources() {
					subs = append(subs, sub.Name)
				}
				slices.Sort(subs)
				all = append(all, strings.Join([]string{g.Name + "/" + v.Name + "/" + d.Resource, d.Kind, scope, d.Singular,
					list(verbs), list(d.ShortNames), list(d.Categories), list(subs)}, " "))
			}
		}
	}
	return all
}
