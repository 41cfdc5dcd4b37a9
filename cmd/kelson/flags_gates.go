package main

import (
	"errors"
	"fmt"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/features"
	"github.com/spf13/pflag"
)

// gateFlags are the flags of feature gates and of the emulated version.
type gateFlags struct {
	gates                features.Flag
	emulated, compatible []string
	builtin.Emulation
}

func (f *gateFlags) bind(fs *pflag.FlagSet) {
	fs.Var(&f.gates, "feature-gates", "`gates` of Kubernetes: Name=true,Other=false")
	fs.StringSliceVar(&f.emulated, "emulated-version", nil, "`version` of Kubernetes, up to three before this one, whose API and feature gates are served: 1.36")
	fs.StringSliceVar(&f.compatible, "min-compatibility-version", nil, "oldest `version` of servers that use the same data (default the one before --emulated-version)")
	fs.BoolVar(&f.Forward, "emulation-forward-compatible", false, "serve what came after --emulated-version if there are older versions of it that are served")
	fs.BoolVar(&f.RuntimeForward, "runtime-config-emulation-forward-compatible", false, "serve what came after --emulated-version if --runtime-config names it")
}

// parse returns the gates that the flags set.
func (f *gateFlags) parse() (features.Gates, error) {
	version, err := features.ParseVersion(f.emulated, f.compatible)
	if err != nil {
		return features.Gates{}, err
	}
	given, err := f.gates.Values()
	if err != nil {
		return features.Gates{}, err
	}
	return features.Kubernetes().Set(given, version)
}

func (f *gateFlags) apply(s *setup) {
	s.refuse(checkVersion, s.gates.Version().Validate(), f.checkForward(s.gates.Version()))
	if err := s.gates.Unsupported(); err != nil {
		s.refuse(lateGates, fmt.Errorf("--feature-gates: %w", err))
	}
	s.gates.Warn(s.log)
	s.config.Gates, s.config.Emulation = s.gates, f.Emulation
}

// checkForward refuses the forward-compatibility flags unless the server emulates an
// earlier version.
func (f *gateFlags) checkForward(v features.Version) error {
	var errs []error
	const late = "ServerRunOptions.%s cannot be set to true if the emulation version is the same as the binary version"
	if !v.IsEmulating() && f.Forward {
		errs = append(errs, fmt.Errorf(late, "EmulationForwardCompatible"))
	}
	if !v.IsEmulating() && f.RuntimeForward {
		errs = append(errs, fmt.Errorf(late, "RuntimeConfigEmulationForwardCompatible"))
	}
	return errors.Join(errs...)
}
