package features

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// version137 is a server of Kubernetes 1.37.1 that emulates a version.
func version137(emulated, compatible string) Version {
	return Version{version.MustParse("1.37.1"), version.MustParse(emulated), version.MustParse(compatible)}
}

// set returns gates from the value of --feature-gates.
func set(t *testing.T, text string, v Version) (Gates, error) {
	t.Helper()
	var flag Flag
	if err := flag.Set(text); err != nil {
		t.Fatal(err)
	}
	given, err := flag.Values()
	if err != nil {
		t.Fatal(err)
	}
	return Kubernetes().Set(given, v)
}

// TestGatesAreAsVersionAndFlagSay has what the version of a server, other gates and locks make of gates.
func TestGatesAreAsVersionAndFlagSay(t *testing.T) {
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
		s, err := set(t, c.set, version137(c.emulated, c.compatible))
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
			if !s.Enabled(name) {
				t.Errorf("%s at %s: %s is off", c.set, c.emulated, name)
			}
		}
		if i := slices.IndexFunc(strings.Fields(c.off), s.Enabled); i >= 0 {
			t.Errorf("%s at %s: %s is on", c.set, c.emulated, strings.Fields(c.off)[i])
		}
	}
	for name, g := range Kubernetes() {
		for _, needed := range g.Needs {
			if len(Kubernetes()[needed].Stages) == 0 {
				t.Errorf("%s needs %s, which does not exist", name, needed)
			}
		}
	}
}

// TestUnsupportedGatesAreRefusedOrWarnedOf has what the server does about gates that are not as they are by
// default.
func TestUnsupportedGatesAreRefusedOrWarnedOf(t *testing.T) {
	for _, c := range []struct{ set, wrong, changed, warned string }{
		{"", "", "", ""},
		{"WatchList=true,AllAlpha=false,KubeProxyIPVS=false", "", "KubeProxyIPVS", ""},
		{"GenericWorkload=true,StorageVersionAPI=true", "", "GenericWorkload StorageVersionAPI", ""},
		{"WatchList=false", "", "WatchList", ""},
		{"APIResponseCompression=false,StorageVersionHash=false,KMSv1=true", "", "APIResponseCompression StorageVersionHash", ""},
		{"KMSv1=true,OpenAPIEnums=false", "", "KMSv1 OpenAPIEnums", ""},
		{"AllBeta=true", "", "CoordinatedLeaderElection DRAFractionalCapacityRange GenericWorkload", ""},
		{"AllBeta=true,AllAlpha=true", "", "CompositePodGroup ShardedListAndWatch CBORServingAndStorage CSIVolumeHealth", ""},
	} {
		s, err := set(t, c.set, version137("1.37", "1.36"))
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if err := s.Unsupported(); err != nil {
			text = err.Error()
		}
		if text != c.wrong {
			t.Errorf("%s: %q, want %q", c.set, text, c.wrong)
		}
		var log bytes.Buffer
		s.Warn(slog.New(slog.NewTextHandler(&log, nil)))
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
}

// TestGatesOfEarlierVersions refuses to switch off what only an earlier version could.
func TestGatesOfEarlierVersions(t *testing.T) {
	s, err := set(t, "AggregatedDiscoveryRemoveBetaType=false", version137("1.34", "1.34"))
	if err != nil {
		t.Fatal(err)
	}
	const want = "this server cannot switch off what is behind AggregatedDiscoveryRemoveBetaType"
	if err := s.Unsupported(); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestTableIsSorted keeps rows where they are looked for, and the table the same as
// what its text says.
func TestTableIsSorted(t *testing.T) {
	var names []string
	for line := range strings.Lines(gateText) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			names = append(names, fields[0])
		}
	}
	if !slices.IsSorted(names) {
		t.Error("got rows in another order, want them sorted by name")
	}
	if got, want := len(Kubernetes()), len(names); got != want || got < 200 {
		t.Errorf("got %d gates from %d rows", got, want)
	}
}

// TestTableOfACaller has gates that are not those of Kubernetes.
func TestTableOfACaller(t *testing.T) {
	for text, want := range map[string]string{
		"Fast":                            "line 1: Fast: no stage, such as 1.37=ALPHA,off",
		"\nFast 1.37=ALPHA":               "line 2: Fast: 1.37=ALPHA: want a stage, and on or off",
		"Fast 1.37=NEW,on":                "line 1: Fast: 1.37=NEW,on: there is no stage NEW",
		"Fast 1.37=GA,on does=much":       "line 1: Fast: does=much: it is here or nothing",
		"Fast 1.37=GA,on\nFast 1.0=GA,on": "line 2: Fast: this gate has a row already",
		"Fast x=GA,on":                    "line 1: Fast: could not parse \"x\" as version",
	} {
		if _, err := ParseTable(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	table, err := ParseTable("# a comment\nFast 1.36=ALPHA,off 1.37=BETA,on does=here\nFaster 1.37=ALPHA,off needs=Fast does=here\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config Config
		on     []string
		err    string
	}{
		{Config{}, []string{"Fast"}, ""},
		{Config{EmulatedVersion: "1.36"}, nil, ""},
		{Config{Set: map[string]bool{"Faster": true}}, []string{"Fast", "Faster"}, ""},
		{Config{Set: map[string]bool{"Faster": true, "Fast": false}}, nil, "Faster is enabled, but depends on features that are disabled: [Fast]"},
		{Config{Set: map[string]bool{"GenericWorkload": true}}, nil, "unrecognized feature gate: GenericWorkload"},
		{Config{EmulatedVersion: "1.30"}, nil, "emulation version 1.30 is not between [1.34, 1.37.0]"},
		{Config{EmulatedVersion: "1.36.1"}, nil, "patch version not allowed, got: kube=1.36.1"},
	} {
		c.config.Table = table
		gates, err := New(c.config)
		if err != nil && c.err == "" || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)) {
			t.Errorf("%v: got error %v, want %q", c.config.Set, err, c.err)
		}
		if c.err != "" {
			continue
		}
		for name := range table {
			if got, want := gates.Enabled(name), slices.Contains(c.on, name); got != want {
				t.Errorf("%v at %s: %s: got %v, want %v", c.config.Set, gates.Version().Emulated, name, got, want)
			}
		}
	}
}

// TestZeroGatesAreDefaults has the zero value say the same as gates of which none is
// set, and a context without gates carry it.
func TestZeroGatesAreDefaults(t *testing.T) {
	none, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := (Gates{}).States(), none.States(); !slices.Equal(got, want) || len(got) < 200 {
		t.Errorf("got %v, want %v", got, want)
	}
	some, err := New(Config{Set: map[string]bool{"GenericWorkload": true}})
	if err != nil {
		t.Fatal(err)
	}
	if !none.AreDefault() || !(Gates{}).AreDefault() || some.AreDefault() {
		t.Errorf("got %v, %v, %v, want true, true, false", none.AreDefault(), Gates{}.AreDefault(), some.AreDefault())
	}
	if got := From(t.Context()); got != (Gates{}) {
		t.Errorf("got %v from a context without gates", got)
	}
	if got := From(With(t.Context(), some)); got != some {
		t.Errorf("got %v, want %v", got, some)
	}
}

// FuzzFlag has no value of --feature-gates stop the program, and those that are
// accepted be the same when they are read again.
func FuzzFlag(f *testing.F) {
	for _, seed := range []string{"", "AllAlpha=true", "kube:WatchList=false,,", "a:b=c", "WatchList", "WatchList=maybe", " WatchList = true "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var flag Flag
		if err := flag.Set(text); err != nil {
			t.Fatal(err)
		}
		given, err := flag.Values()
		if err != nil {
			return
		}
		gates, err := Kubernetes().Set(given, currentVersion())
		if err != nil {
			return
		}
		for name, want := range given {
			if got := gates.Enabled(name); got != want {
				t.Errorf("%q: %s: got %v, want %v", text, name, got, want)
			}
		}
	})
}

// TestGateWithoutEffectMayBeSetInAnEarlierVersion: DeclarativeValidationTakeover is locked
// from 1.37 on; before, it may be set, and nothing reads it.
func TestGateWithoutEffectMayBeSetInAnEarlierVersion(t *testing.T) {
	gates, err := set(t, "DeclarativeValidationTakeover=true", version137("1.35", "1.34"))
	if err != nil {
		t.Fatal(err)
	}
	if err := gates.Unsupported(); err != nil {
		t.Errorf("got %q, want no error", err)
	}
}
