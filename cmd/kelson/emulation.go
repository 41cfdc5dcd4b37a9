package main

import (
	"errors"
	"fmt"
	"strings"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// oldestVersion is how many minor versions kube-apiserver can go back.
const oldestVersion = 3

// serverVersion is what a server is, what it behaves as, and the oldest that others
// which share its data may be.
type serverVersion struct{ binary, emulated, compatible *utilversion.Version }

// emulationFlags say which version a server behaves as.
type emulationFlags struct {
	emulated, compatible    []string
	forward, runtimeForward bool
}

func (f *emulationFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.emulated, "emulated-version", nil, "`version` of Kubernetes, up to three before this one, whose API and feature gates are served: 1.36")
	fs.StringSliceVar(&f.compatible, "min-compatibility-version", nil, "oldest `version` of servers that use the same data (default the one before --emulated-version)")
	fs.BoolVar(&f.forward, "emulation-forward-compatible", false, "serve what came after --emulated-version if there are older versions of it that are served")
	fs.BoolVar(&f.runtimeForward, "runtime-config-emulation-forward-compatible", false, "serve what came after --emulated-version if --runtime-config names it")
}

// version reads the flags.
func (f *emulationFlags) version() (v serverVersion, err error) {
	name, _, _ := strings.Cut(library.Version().GitVersion, "+")
	v.binary = utilversion.MustParse(name)
	v.emulated = majorMinor(v.binary)
	emulated, err := parseVersion(f.emulated)
	if err != nil {
		return v, err
	}
	if emulated != nil {
		v.emulated = majorMinor(emulated)
	}
	v.compatible = v.emulated.SubtractMinor(1)
	if oldest := v.oldest(); v.compatible.LessThan(oldest) {
		v.compatible = oldest
	}
	compatible, err := parseVersion(f.compatible)
	if compatible != nil {
		v.compatible = majorMinor(compatible)
	}
	return v, err
}

func majorMinor(v *utilversion.Version) *utilversion.Version {
	return utilversion.MajorMinor(v.Major(), v.Minor())
}

// oldest is the version before which there is none to be.
func (v serverVersion) oldest() *utilversion.Version {
	return majorMinor(v.binary).SubtractMinor(oldestVersion)
}

// parseVersion reads the version of a component, of which there is one; nil is none.
func parseVersion(given []string) (v *utilversion.Version, err error) {
	all := map[string]*utilversion.Version{}
	for _, text := range given {
		component := kubeComponent
		if name, version, ok := strings.Cut(text, "="); ok {
			component, text = strings.TrimSpace(name), strings.TrimSpace(version)
		}
		if v, err = utilversion.Parse(text); err != nil {
			return nil, err
		}
		if v.Patch() != 0 {
			return nil, fmt.Errorf("patch version not allowed, got: %s=%s", component, v)
		}
		if was := all[component]; was != nil {
			return nil, fmt.Errorf("duplicate version flag, %s=%s and %s=%s", component, was, component, v)
		}
		all[component] = v
	}
	for component := range all {
		if component != kubeComponent {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
	}
	return all[kubeComponent], nil
}

// check refuses versions that there are not, and to be compatible with a later
// version, which only an older one can be.
func (f *emulationFlags) check(v serverVersion) error {
	var errs []error
	oldest, newest := v.oldest(), v.binary.WithPatch(0)
	if v.emulated.GreaterThan(newest) || v.emulated.LessThan(oldest) {
		errs = append(errs, fmt.Errorf("emulation version %s is not between [%s, %s]", v.emulated, oldest, newest))
	}
	if v.compatible.GreaterThan(v.emulated) || v.compatible.LessThan(oldest) {
		errs = append(errs, fmt.Errorf("minCompatibilityVersion version %s is not between [%s, %s]", v.compatible, oldest, v.emulated))
	}
	const late = "ServerRunOptions.%s cannot be set to true if the emulation version is the same as the binary version"
	if same := v.emulated.EqualTo(newest); same && f.forward {
		errs = append(errs, fmt.Errorf(late, "EmulationForwardCompatible"))
	}
	if same := v.emulated.EqualTo(newest); same && f.runtimeForward {
		errs = append(errs, fmt.Errorf(late, "RuntimeConfigEmulationForwardCompatible"))
	}
	return errors.Join(errs...)
}

// apply has the server be of the version, with its gates.
func (f *emulationFlags) apply(gates *gateStates, config *controlplane.Config) {
	v := gates.version
	config.Emulation = controlplane.Emulation{
		Emulation:  builtin.Emulation{Version: v.emulated, Forward: f.forward, RuntimeForward: f.runtimeForward, Without: gates.without()},
		Compatible: v.compatible,
	}
}
