package builtin

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// TestEmulation has what an earlier version of Kubernetes had, and has not.
func TestEmulation(t *testing.T) {
	at := func(minor uint) Emulation { return Emulation{Version: utilversion.MajorMinor(1, minor)} }
	forward, runtime := at(36), at(36)
	forward.Forward, runtime.RuntimeForward = true, true
	bundles, older := "certificates.k8s.io/v1/clustertrustbundles", "certificates.k8s.io/v1beta1/clustertrustbundles"
	ranges := "networking.k8s.io/v1beta1/servicecidrs"
	beta := map[string]string{"api/beta": "true"}
	gated := at(37)
	gated.Without = []schema.GroupResource{{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}}
	for name, c := range map[string]struct {
		e       Emulation
		config  map[string]string
		on, off []string
		err     string
	}{
		"now":               {Emulation{}, beta, []string{bundles, older}, []string{ranges}, ""},
		"this version":      {at(37), beta, []string{bundles, older}, []string{ranges}, ""},
		"before":            {at(36), nil, nil, []string{bundles, older, ranges}, ""},
		"what is gone":      {at(36), beta, []string{older, ranges}, []string{bundles}, ""},
		"and what follows":  {forward, beta, []string{bundles, older}, nil, ""},
		"nothing to follow": {forward, nil, nil, []string{bundles}, ""},
		"named":             {runtime, map[string]string{"certificates.k8s.io/v1/clustertrustbundles": "true"}, []string{bundles}, nil, ""},
		"named too early": {at(36), map[string]string{"certificates.k8s.io/v1/clustertrustbundles": "true"}, nil, nil,
			"cannot enable resource certificates.k8s.io/v1, Resource=clustertrustbundles in runtime-config because it is introduced at 1.37 after the current version 1.36. Consider setting --runtime-config-emulation-forward-compatible=true"},
		"behind a gate": {gated, beta, nil, []string{bundles, older}, ""},
	} {
		groups, err := SelectAs(Groups(Config{}), c.config, c.e)
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
