package builtin

import (
	"slices"
	"testing"

	"github.com/apikeel/kelson/features"
)

// TestEmulation has what an earlier version of Kubernetes had, and has not.
func TestEmulation(t *testing.T) {
	at := func(version string, bundles bool) features.Gates {
		t.Helper()
		gates, err := features.New(features.Config{EmulatedVersion: version, Set: map[string]bool{
			"ClusterTrustBundle": bundles, "ClusterTrustBundleProjection": bundles,
		}})
		if err != nil {
			t.Fatal(err)
		}
		return gates
	}
	now, before := at("1.37", true), at("1.36", true)
	forward, runtime := Emulation{Forward: true}, Emulation{RuntimeForward: true}
	bundles, older := "certificates.k8s.io/v1/clustertrustbundles", "certificates.k8s.io/v1beta1/clustertrustbundles"
	ranges := "networking.k8s.io/v1beta1/servicecidrs"
	beta := map[string]string{"api/beta": "true"}
	for name, c := range map[string]struct {
		gates   features.Gates
		e       Emulation
		config  map[string]string
		on, off []string
		err     string
	}{
		"now":               {features.Gates{}, Emulation{}, beta, []string{bundles, older}, []string{ranges}, ""},
		"this version":      {now, Emulation{}, beta, []string{bundles, older}, []string{ranges}, ""},
		"before":            {before, Emulation{}, nil, nil, []string{bundles, older, ranges}, ""},
		"what is gone":      {before, Emulation{}, beta, []string{older, ranges}, []string{bundles}, ""},
		"and what follows":  {before, forward, beta, []string{bundles, older}, nil, ""},
		"nothing to follow": {before, forward, nil, nil, []string{bundles}, ""},
		"named":             {before, runtime, map[string]string{"certificates.k8s.io/v1/clustertrustbundles": "true"}, []string{bundles}, nil, ""},
		"named too early": {before, Emulation{}, map[string]string{"certificates.k8s.io/v1/clustertrustbundles": "true"}, nil, nil,
			"cannot enable resource certificates.k8s.io/v1, Resource=clustertrustbundles in runtime-config because it is introduced at 1.37 after the current version 1.36. Consider setting --runtime-config-emulation-forward-compatible=true"},
		"behind a gate that is off by default": {at("1.36", false), forward, beta, nil, []string{bundles, older}, ""},
		"behind a gate":                        {at("1.37", false), Emulation{}, beta, nil, []string{bundles, older}, ""},
	} {
		groups, err := SelectAs(Groups(Config{}), c.config, c.gates, c.e)
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		all := served(t, groups)
		for _, r := range c.on {
			if !slices.Contains(all, r) {
				t.Errorf("%s: %s is not served", name, r)
			}
		}
		for _, r := range c.off {
			if slices.Contains(all, r) {
				t.Errorf("%s: %s is served", name, r)
			}
		}
	}
}

// TestStorageVersionsCanBeReadByTheOldestCompatibleServer also has the hubs agree with the
// rule: they are the storage versions of a server that emulates nothing.
func TestStorageVersionsCanBeReadByTheOldestCompatibleServer(t *testing.T) {
	storedAs := func(version, compatible string) map[string]string {
		t.Helper()
		gates, err := features.New(features.Config{EmulatedVersion: version, MinCompatibilityVersion: compatible})
		if err != nil {
			t.Fatal(err)
		}
		groups, err := SelectAs(Groups(Config{}), map[string]string{"api/all": "true"}, gates, Emulation{Forward: true})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, g := range groups {
			for i := range g.Resources {
				d := &g.Resources[i]
				all[d.Resource] = d.StorageVersion().Name
				if v := storageVersion(&g, d, gates.Version()); version == "" && v != d.HubVersion() {
					t.Errorf("%s is stored as %s, want %s", d.Resource, d.HubVersion().Name, v.Name)
				}
			}
		}
		return all
	}
	now, before, kept := storedAs("", ""), storedAs("1.36", ""), storedAs("1.37", "1.35")
	for _, c := range []struct {
		name string
		got  map[string]string
		want string
	}{{"1.37", now, "v1"}, {"1.36", before, "v1beta1"}, {"1.37 beside 1.35", kept, "v1beta1"}} {
		if got := c.got["mutatingadmissionpolicies"]; got != c.want {
			t.Errorf("%s stores mutating policies as %q, want %q", c.name, got, c.want)
		}
		if got := c.got["deployments"]; got != "v1" {
			t.Errorf("%s stores deployments as %q, want v1", c.name, got)
		}
	}
}
