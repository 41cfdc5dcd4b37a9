// Package features has the feature gates of Kubernetes: which there are, their stage
// and default in each version, what each depends on, and which of them are enabled
// in a server.
//
// Start at Gates, the gates of one server. It is a value that is passed to whoever
// asks; its zero value has every gate at its default:
//
//	gates, err := features.New(features.Config{Set: map[string]bool{"GenericWorkload": true}})
//	if gates.Enabled("GenericWorkload") { … }
//
// The table of gates is the file gates.txt: one row a gate, with the format in its
// first lines. A kind that is behind a gate names it in resource.Definition.Gate, a
// field in resource.Definition.GatedFields; the rules of a kind ask From(ctx).
//
// The package is a leaf: it knows no kinds, no servers and no command line, and
// keeps no state that one server could share with another.
package features

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
)

// CBOR is the gate of CBOR in requests, responses and stored custom resources.
const CBOR = "CBORServingAndStorage"

// Compression is the gate of responses with objects that are compressed, and
// WatchCompression that of watches that begin with the objects that there are.
const (
	Compression      = "APIResponseCompression"
	WatchCompression = "WatchListCompression"
)

// StorageVersionHash is the gate of the hashes of storage versions in discovery.
const StorageVersionHash = "StorageVersionHash"

// UnsafeDeletes is the gate of deletes of objects that cannot be read.
const UnsafeDeletes = "AllowUnsafeMalformedObjectDeletion"

// Gates that stand for all others of a stage.
const (
	AllAlpha = "AllAlpha"
	AllBeta  = "AllBeta"
)

// Gates are the feature gates of a server. The zero value has all gates of
// Kubernetes at their defaults. A Gates never changes, and is safe for concurrent
// use.
type Gates struct{ states *states }

// states is the content of a Gates; immutable.
type states struct {
	table   Table
	version Version
	set     map[string]bool // by name: the value that was set
	left    []string        // gates that AllAlpha or AllBeta should have changed, but of which this server has only the default
	enabled map[string]bool // state of every gate in the table

	compare    sync.Once // sets areDefault and key when one of them is first asked for
	areDefault bool
	key        string
}

// Config says how gates are set. The zero value leaves them at their defaults.
type Config struct {
	// Set has the gates that are set, by name, as --feature-gates does. AllAlpha and
	// AllBeta set all of a stage that are not set themselves.
	Set map[string]bool
	// EmulatedVersion is the version of Kubernetes whose gates and defaults these
	// are, such as 1.36; empty is KubernetesVersion.
	EmulatedVersion string
	// MinCompatibilityVersion is the oldest version of servers that use the same data;
	// empty is the one before EmulatedVersion.
	MinCompatibilityVersion string
	// Table has the gates that can be set; nil is Kubernetes().
	Table Table
}

// New returns gates, and refuses what kube-apiserver would refuse, versions that
// cannot be emulated, and gates that this server does not have.
func New(c Config) (Gates, error) {
	if len(c.Set) == 0 && c.EmulatedVersion == "" && c.MinCompatibilityVersion == "" && c.Table == nil {
		return Gates{}, nil // which all share
	}
	list := func(text string) []string {
		return slices.DeleteFunc([]string{text}, func(s string) bool { return s == "" })
	}
	v, err := ParseVersion(list(c.EmulatedVersion), list(c.MinCompatibilityVersion))
	if err != nil {
		return Gates{}, err
	}
	if err := v.Validate(); err != nil {
		return Gates{}, err
	}
	table := c.Table
	if table == nil {
		table = kubernetes()
	}
	gates, err := table.Set(c.Set, v)
	if err != nil {
		return Gates{}, err
	}
	return gates, gates.Unsupported()
}

// Set returns the gates of a table in a server of a version, some of which are set.
// It refuses what kube-apiserver would refuse. What this server does not have is for
// Unsupported to say.
func (t Table) Set(given map[string]bool, v Version) (Gates, error) {
	s := &states{table: t, version: v, set: maps.Clone(given)}
	if s.set == nil {
		s.set = map[string]bool{}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		g, ok := t[name]
		switch stage, on := g.At(v), given[name]; {
		case !ok:
			return Gates{}, fmt.Errorf("unrecognized feature gate: %s", name)
		case stage.Locked && on != stage.Default:
			errs = append(errs, fmt.Errorf("cannot set feature gate %v to %v, feature is locked to %v", name, on, stage.Default))
		case stage.Name == "":
			errs = append(errs, fmt.Errorf("cannot set feature gate %v to %v, feature is PreAlpha at emulated version %s, min compatibility version %s", name, on, v.Emulated, v.MinCompatibility))
		}
	}
	if len(errs) > 0 {
		return Gates{}, errors.Join(errs...)
	}
	s.setAll(AllAlpha, Alpha)
	s.setAll(AllBeta, Beta)
	for _, name := range slices.Sorted(maps.Keys(t)) {
		off := slices.DeleteFunc(slices.Clone(t[name].Needs), s.state)
		if s.state(name) && len(off) > 0 {
			errs = append(errs, fmt.Errorf("%s is enabled, but depends on features that are disabled: %v", name, off))
		}
	}
	if len(errs) > 0 {
		return Gates{}, errors.Join(errs...)
	}
	for _, name := range s.left {
		delete(s.set, name)
	}
	slices.Sort(s.left)
	s.enabled = make(map[string]bool, len(t))
	for name := range t {
		s.enabled[name] = s.state(name)
	}
	return Gates{states: s}, nil
}

// setAll sets the gates of a stage that are not set themselves, if the gate that
// stands for them is set.
func (s *states) setAll(by, stage string) {
	on, ok := s.set[by]
	if !ok {
		return
	}
	for name, g := range s.table {
		now := g.At(s.version)
		if _, given := s.set[name]; given || now.Name != stage || name == AllAlpha || name == AllBeta {
			continue
		}
		s.set[name] = on
		if g.Does == "" && now.Default != on {
			s.left = append(s.left, name)
		}
	}
}

// state reports whether a gate is enabled, while gates are being set.
func (s *states) state(name string) bool {
	if on, ok := s.set[name]; ok {
		return on
	}
	return s.table[name].At(s.version).Default
}

// defaults are the states of the zero Gates.
var defaults = sync.OnceValue(func() *states {
	gates, err := kubernetes().Set(nil, currentVersion())
	if err != nil {
		panic("gates.txt: " + err.Error())
	}
	return gates.states
})

func (g Gates) all() *states {
	if g.states == nil {
		return defaults()
	}
	return g.states
}

// Enabled reports whether a gate is enabled: as it was set, or by default in the
// emulated version. A gate that is not in the table is not.
func (g Gates) Enabled(name string) bool { return g.all().enabled[name] }

// Version returns the version that the gates are of.
func (g Gates) Version() Version { return g.all().version }

// AreDefault reports whether every gate is as in the zero Gates.
func (g Gates) AreDefault() bool {
	if g.states == nil {
		return true
	}
	g.states.compareWithDefaults()
	return g.states.areDefault
}

// Key returns a text that two Gates have in common if they enable the same gates in the
// same version. That of the zero Gates is empty.
func (g Gates) Key() string {
	if g.states == nil {
		return ""
	}
	g.states.compareWithDefaults()
	return g.states.key
}

// compareWithDefaults finds out how gates differ from those of the zero Gates.
func (s *states) compareWithDefaults() {
	s.compare.Do(func() {
		usual := defaults()
		var differ []string
		for name, on := range s.enabled {
			if usual, known := usual.enabled[name]; on != usual || !known {
				differ = append(differ, fmt.Sprintf("%s=%t", name, on))
			}
		}
		for name := range usual.enabled {
			if _, known := s.enabled[name]; !known {
				differ = append(differ, name+"=none")
			}
		}
		s.areDefault = len(differ) == 0
		v, d := s.version, usual.version
		if s.areDefault && v.Emulated.EqualTo(d.Emulated) && v.MinCompatibility.EqualTo(d.MinCompatibility) {
			return
		}
		slices.Sort(differ)
		s.key = fmt.Sprintf("%s,%s,%s", v.Emulated, v.MinCompatibility, strings.Join(differ, ","))
	})
}

// changed returns the gates that differ from their default in the server's own version,
// whatever it emulates: because they were set, or because of the minimum compatibility
// version.
func (g Gates) changed() map[string]bool {
	s := g.all()
	changed := map[string]bool{}
	usual := currentVersion()
	for name, gate := range s.table {
		_, given := s.set[name]
		depends := slices.ContainsFunc(gate.Stages, func(s Stage) bool { return s.MinCompatibility != nil })
		if on := s.enabled[name]; (given || depends) && gate.At(usual).Default != on {
			changed[name] = on
		}
	}
	return changed
}

// Unmet returns the gates that were set to a value that this server does not implement:
// those that should be enabled, and those that should be disabled. What is behind a gate
// has no effect without the gates that it needs, so it may be disabled along with them.
func (g Gates) Unmet() (missing, always []string) {
	s := g.all()
	for name, on := range g.changed() {
		gate := s.table[name]
		switch {
		case gate.Does != "" || gate.At(s.version).Default == on:
		case !on && slices.ContainsFunc(gate.Needs, func(needed string) bool { return !s.enabled[needed] }):
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

// Unsupported returns an error with the gates that this server has only in the other
// position.
func (g Gates) Unsupported() error {
	var errs []error
	missing, always := g.Unmet()
	if len(missing) > 0 {
		errs = append(errs, fmt.Errorf("this server does not have what is behind %s", strings.Join(missing, ", ")))
	}
	if len(always) > 0 {
		errs = append(errs, fmt.Errorf("this server cannot switch off what is behind %s", strings.Join(always, ", ")))
	}
	return errors.Join(errs...)
}

// Warn logs the gates that AllAlpha or AllBeta left at their defaults.
func (g Gates) Warn(log *slog.Logger) {
	if left := g.all().left; len(left) > 0 {
		log.Warn("feature gates stay as they are by default, as this server does not have another way", "gates", strings.Join(left, ", "))
	}
}

// State is a gate as it is in a server.
type State struct {
	Name    string
	Stage   string // in the emulated version
	Enabled bool
}

// States returns the gates that exist in the emulated version, by name.
func (g Gates) States() (all []State) {
	s := g.all()
	for _, name := range slices.Sorted(maps.Keys(s.table)) {
		if stage := s.table[name].At(s.version).Name; stage != "" {
			all = append(all, State{Name: name, Stage: stage, Enabled: s.enabled[name]})
		}
	}
	return all
}

type contextKey struct{}

// With returns a context that carries the gates.
func With(ctx context.Context, g Gates) context.Context {
	return context.WithValue(ctx, contextKey{}, g)
}

// From returns the gates that a context carries, by default the zero Gates.
func From(ctx context.Context) Gates {
	g, _ := ctx.Value(contextKey{}).(Gates)
	return g
}
