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
			return slices.Contains(c.Less, r)
		})
		slices.Sort(want)
		config := configOf(t, possible(t, c.Flags))
		groups, err := builtin.SelectAs(builtin.Groups(builtin.Config{Gates: config.Gates}), config.RuntimeConfig, config.Gates, config.Emulation)
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

// possible returns flags without the gates that this server refuses; none of them
// has to do with what is served.
func possible(t *testing.T, flags string) string {
	t.Helper()
	words := strings.Fields(flags)
	at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "--feature-gates=") })
	if at < 0 {
		return flags
	}
	var given gateFlags
	if err := given.gates.Set(strings.TrimPrefix(words[at], "--feature-gates=")); err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if v, ok := strings.CutPrefix(w, "--emulated-version="); ok {
			given.emulated = []string{v}
		}
	}
	gates, err := given.parse()
	if err != nil {
		t.Fatal(err)
	}
	missing, always := gates.Unmet()
	for _, name := range missing {
		words[at] += "," + name + "=false"
	}
	for _, name := range always {
		words[at] += "," + name + "=true"
	}
	return strings.Join(words, " ")
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
