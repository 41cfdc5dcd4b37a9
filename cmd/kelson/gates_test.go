package main

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// version137 is a server of the version that it is.
func version137(emulated, compatible string) serverVersion {
	return serverVersion{utilversion.MustParse("1.37.1"), utilversion.MustParse(emulated), utilversion.MustParse(compatible)}
}

// TestGates has what the version of a server, other gates and locks make of gates.
func TestGates(t *testing.T) {
	for _, c := range []struct {
		set, emulated, compatible string
		wrong                     string // part of the error
		on, off                   string // gates
	}{
		{"", "1.37", "1.36", "", "WatchList ClusterTrustBundle APIServerIdentity", "AllAlpha AllBeta DRAFractionalCapacityRange CBORServingAndStorage"},
		{"", "1.37", "1.37", "", "DRAFractionalCapacityRange", ""},
		{"", "1.36", "1.35", "", "WatchList", "ClusterTrustBundle"},
		{"AllBeta=false,WatchList=true,StorageVersionAPI=false", "1.37", "1.36", "", "WatchList", "APIServerIdentity"},
		{"kube:ClusterTrustBundle=true", "1.36", "1.35", "", "ClusterTrustBundle", ""},
		{"APIServerIdentity=false,StorageVersionAPI=true", "1.37", "1.36", "StorageVersionAPI is enabled, but depends on features that are disabled: [APIServerIdentity]", "", ""},
		{"AllAlpha=true", "1.37", "1.36", "CompositePodGroup is enabled, but depends on features that are disabled: [GenericWorkload]", "", ""},
		{"CompositePodGroup=true", "1.36", "1.35", "cannot set feature gate CompositePodGroup to true, feature is PreAlpha at emulated version 1.36, min compatibility version 1.35", "", ""},
		{"ImageVolume=false,GitRepoVolumeDriver=true", "1.37", "1.36", "cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false\ncannot set feature gate ImageVolume to false, feature is locked to true", "", ""},
		{"ImageVolume=false", "1.34", "1.34", "", "", "ImageVolume"},
		{"ImageVolume=false,Unheard=true", "1.37", "1.36", "unrecognized feature gate: Unheard", "", ""},
	} {
		var flag gateFlag
		if err := flag.Set(c.set); err != nil {
			t.Fatal(err)
		}
		s, err := newGateStates(flag, version137(c.emulated, c.compatible))
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %s", c.set, err, c.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.set, err)
			continue
		}
		for _, name := range strings.Fields(c.on) {
			if !s.on(name) {
				t.Errorf("%s at %s: %s is off", c.set, c.emulated, name)
			}
		}
		if i := slices.IndexFunc(strings.Fields(c.off), s.on); i >= 0 {
			t.Errorf("%s at %s: %s is on", c.set, c.emulated, strings.Fields(c.off)[i])
		}
	}
	for name, g := range gates() {
		for _, needed := range g.needs {
			if len(gates()[needed].stages) == 0 {
				t.Errorf("%s needs %s, which does not exist", name, needed)
			}
		}
	}
}

// TestGatesRefused has what the server does about gates that are not as they are by
// default.
func TestGatesRefused(t *testing.T) {
	for _, c := range []struct{ set, wrong, changed, warned string }{
		{"", "", "", ""},
		{"WatchList=true,AllAlpha=false,KubeProxyIPVS=false", "", "KubeProxyIPVS", ""},
		{"GenericWorkload=true,StorageVersionAPI=true", "", "GenericWorkload StorageVersionAPI", ""},
		{"WatchList=false", "", "", "WatchList"},
		{"CBORServingAndStorage=true,KMSv1=true,OpenAPIEnums=false",
			"--feature-gates: this server does not have what is behind CBORServingAndStorage, KMSv1", "", "OpenAPIEnums"},
		{"AllBeta=true", "", "CoordinatedLeaderElection DRAFractionalCapacityRange GenericWorkload", ""},
		{"AllBeta=true,AllAlpha=true", "", "CompositePodGroup", "CBORServingAndStorage ShardedListAndWatch"},
	} {
		var flag gateFlag
		if err := flag.Set(c.set); err != nil {
			t.Fatal(err)
		}
		s, err := newGateStates(flag, version137("1.37", "1.36"))
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if err := s.refused(); err != nil {
			text = err.Error()
		}
		if text != c.wrong {
			t.Errorf("%s: %q, want %q", c.set, text, c.wrong)
		}
		var log bytes.Buffer
		s.warn(slog.New(slog.NewTextHandler(&log, nil)))
		for _, name := range strings.Fields(c.warned) {
			if !strings.Contains(log.String(), name) {
				t.Errorf("%s: no word of %s: %s", c.set, name, &log)
			}
		}
		if c.warned == "" && log.Len() > 0 {
			t.Errorf("%s: %s", c.set, &log)
		}
		for _, name := range strings.Fields(c.changed) {
			if _, ok := s.changed()[name]; !ok {
				t.Errorf("%s: %s is not changed", c.set, name)
			}
		}
	}
	for name, g := range gates() {
		if g.does != "" && g.does != "here" && g.does != "nothing" {
			t.Errorf("%s does %s", name, g.does)
		}
	}
}
