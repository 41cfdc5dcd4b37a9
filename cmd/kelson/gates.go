package main

import (
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apikeel/kelson/builtin/gate"
	"github.com/apikeel/kelson/controlplane"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// gateTable has the feature gates of kube-apiserver, each with what it is from a
// version on: its stage, whether it is on by default, whether that cannot be
// changed, and the version that other servers must have for this to hold; with the
// gates that must be on for it to be; and with what it does: something here, if it
// is set to another value than the one that it has by default, or nothing, in any API
// server. The others cannot be set.
//
//go:embed gates.txt
var gateTable string

// featureGate is a feature gate.
type featureGate struct {
	stages []gateStage
	needs  []string
	does   string // "here", "nothing", or "" if it cannot be changed here
}

// gateStage is what a gate is from a version on. The zero value is a gate that does
// not exist yet.
type gateStage struct {
	since, compatible *utilversion.Version
	name              string
	on, locked        bool
}

// Gates that stand for others.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

func gates() map[string]featureGate {
	all := map[string]featureGate{}
	for line := range strings.Lines(gateTable) {
		fields := strings.Fields(line)
		var g featureGate
		for _, field := range fields[1:] {
			key, text, _ := strings.Cut(field, "=")
			values := strings.Split(text, ",")
			switch key {
			case "needs":
				g.needs = values
				continue
			case "does":
				g.does = text
				continue
			}
			stage := gateStage{since: utilversion.MustParse(key), name: values[0], on: values[1] == "on"}
			for _, more := range values[2:] {
				if more == "locked" {
					stage.locked = true
				} else {
					stage.compatible = utilversion.MustParse(more)
				}
			}
			g.stages = append(g.stages, stage)
		}
		all[fields[0]] = g
	}
	return all
}

// at returns what a gate is in a server of a version.
func (g featureGate) at(v serverVersion) gateStage {
	for _, stage := range slices.Backward(g.stages) {
		if v.emulated.AtLeast(stage.since) && (stage.compatible == nil || v.compatible.AtLeast(stage.compatible)) {
			return stage
		}
	}
	return gateStage{}
}

// gateFlag has the gates of components, of which there is one.
type gateFlag map[string][]string

// kubeComponent is the name of this server among components.
const kubeComponent = "kube"

// Set implements pflag.Value.
func (f *gateFlag) Set(text string) error {
	if *f == nil {
		*f = gateFlag{}
	}
	for pair := range strings.SplitSeq(text, ",") {
		if pair == "" {
			continue
		}
		component, value, ok := strings.Cut(pair, ":")
		if !ok {
			component, value = "", pair
		}
		component = strings.TrimSpace(component)
		(*f)[component] = append((*f)[component], strings.TrimSpace(value))
	}
	return nil
}

// String implements pflag.Value.
func (f *gateFlag) String() string {
	var all []string
	for _, component := range slices.Sorted(maps.Keys(*f)) {
		for _, value := range (*f)[component] {
			all = append(all, component+":"+value)
		}
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (*gateFlag) Type() string { return "colonSeparatedMultimapStringString" }

// given returns the gates that were set.
func (f gateFlag) given() (map[string]bool, error) {
	set := map[string]bool{}
	for _, component := range slices.Sorted(maps.Keys(f)) {
		if _, both := f[kubeComponent]; component == "" && both {
			return nil, errors.New("set kube feature gates with default empty prefix or kube: prefix consistently, do not mix use")
		}
		if component != "" && component != kubeComponent {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
		for _, text := range f[component] {
			name, value, ok := strings.Cut(text, "=")
			name, value = strings.TrimSpace(name), strings.TrimSpace(value)
			if text == "" {
				continue
			}
			if !ok {
				return nil, fmt.Errorf("missing bool value for %s", name)
			}
			on, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
			}
			set[name] = on
		}
	}
	return set, nil
}

// gateStates is which gates of a server are on.
type gateStates struct {
	known   map[string]featureGate
	version serverVersion
	set     map[string]bool // beside what they are by default
	left    []string        // by default what another one would have set, as this server does not do that
}

// newGateStates sets gates, and refuses what kube-apiserver would refuse.
func newGateStates(flag gateFlag, v serverVersion) (*gateStates, error) {
	given, err := flag.given()
	if err != nil {
		return nil, err
	}
	s := &gateStates{known: gates(), version: v, set: given}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		g, ok := s.known[name]
		switch stage, on := g.at(v), given[name]; {
		case !ok:
			return nil, fmt.Errorf("unrecognized feature gate: %s", name)
		case stage.locked && on != stage.on:
			errs = append(errs, fmt.Errorf("cannot set feature gate %v to %v, feature is locked to %v", name, on, stage.on))
		case stage.name == "":
			errs = append(errs, fmt.Errorf("cannot set feature gate %v to %v, feature is PreAlpha at emulated version %s, min compatibility version %s", name, on, v.emulated, v.compatible))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.setAll(allAlpha, "ALPHA")
	s.setAll(allBeta, "BETA")
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		off := slices.DeleteFunc(slices.Clone(s.known[name].needs), s.on)
		if s.on(name) && len(off) > 0 {
			errs = append(errs, fmt.Errorf("%s is enabled, but depends on features that are disabled: %v", name, off))
		}
	}
	for _, name := range s.left {
		delete(s.set, name)
	}
	return s, errors.Join(errs...)
}

// setAll sets the gates of a stage of which nothing is said, if another one is set
// that stands for them.
func (s *gateStates) setAll(by, stage string) {
	on, ok := s.set[by]
	if !ok {
		return
	}
	for name, g := range s.known {
		now := g.at(s.version)
		if _, given := s.set[name]; given || now.name != stage || name == allAlpha || name == allBeta {
			continue
		}
		s.set[name] = on
		if g.does == "" && now.on != on {
			s.left = append(s.left, name)
		}
	}
}

// on reports whether a gate is.
func (s *gateStates) on(name string) bool {
	if on, ok := s.set[name]; ok {
		return on
	}
	return s.known[name].at(s.version).on
}

// changed returns the gates that were set to something else than what they are by
// default in this version, of which the server is whatever it emulates, or that are
// something else because of the oldest version that others may be.
func (s *gateStates) changed() gate.Set {
	changed := gate.Set{}
	emulated := majorMinor(s.version.binary)
	usual := serverVersion{s.version.binary, emulated, emulated.SubtractMinor(1)}
	for name, g := range s.known {
		_, given := s.set[name]
		depends := slices.ContainsFunc(g.stages, func(s gateStage) bool { return s.compatible != nil })
		if on := s.on(name); (given || depends) && g.at(usual).on != on {
			changed[name] = on
		}
	}
	return changed
}

// unmet returns the gates that were set to what this server does not do: those that
// would have to be off, and those that would have to be on.
func (s *gateStates) unmet() (missing, always []string) {
	for name, on := range s.changed() {
		g := s.known[name]
		switch {
		case g.does != "" || g.at(s.version).on == on:
		case on:
			missing = append(missing, name)
		default:
			always = append(always, name)
		}
	}
	slices.Sort(missing)
	slices.Sort(always)
	return missing, always
}

// refused says which gates were switched on that there is nothing behind.
func (s *gateStates) refused() error {
	missing, _ := s.unmet()
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("--feature-gates: this server does not have what is behind %s", strings.Join(missing, ", "))
}

// warn tells of gates that are not what they were to be, and no reason not to start:
// there is more than was asked for, or not quite everything.
func (s *gateStates) warn(log *slog.Logger) {
	if _, always := s.unmet(); len(always) > 0 {
		log.Warn("what is behind feature gates cannot be switched off here", "gates", strings.Join(always, ", "))
	}
	if len(s.left) > 0 {
		slices.Sort(s.left)
		log.Warn("feature gates stay as they are by default, as this server does not have another way", "gates", strings.Join(s.left, ", "))
	}
}

// shown returns the gates as metrics have them.
func (s *gateStates) shown() (all []controlplane.Gate) {
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		stage := s.known[name].at(s.version).name
		switch stage {
		case "":
			continue
		case "GA":
			stage = ""
		}
		all = append(all, controlplane.Gate{Name: name, Stage: stage, Enabled: s.on(name)})
	}
	return all
}

// gatedResources are those that are only there if a gate is on.
func gatedResources() map[string]schema.GroupResource {
	return map[string]schema.GroupResource{
		"ClusterTrustBundle":     {Group: "certificates.k8s.io", Resource: "clustertrustbundles"},
		"PodCertificateRequest":  {Group: "certificates.k8s.io", Resource: "podcertificaterequests"},
		"StorageVersionMigrator": {Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"},
	}
}

// without returns the resources that are behind gates which are off.
func (s *gateStates) without() (off []schema.GroupResource) {
	for gate, resource := range gatedResources() {
		if !s.on(gate) {
			off = append(off, resource)
		}
	}
	return off
}
