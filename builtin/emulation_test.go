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
