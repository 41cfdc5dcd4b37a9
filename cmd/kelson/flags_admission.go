package main

import (
	"slices"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/spf13/pflag"
)

// admissionFlags say which plugins look at writes.
type admissionFlags struct {
	plugin.Config
	control               []string
	notReady, unreachable int64
}

func (f *admissionFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.Enable, "enable-admission-plugins", nil, "`plugins` to switch on, beside those that are on")
	fs.StringSliceVar(&f.Disable, "disable-admission-plugins", nil, "`plugins` to switch off")
	fs.StringSliceVar(&f.control, "admission-control", nil, "like --enable-admission-plugins")
	_ = fs.MarkHidden("admission-control")
	fs.StringVar(&f.File, "admission-control-config-file", "", "`file` with an AdmissionConfiguration")
	fs.Int64Var(&f.notReady, "default-not-ready-toleration-seconds", 300, "`seconds` that pods stay on a node that is not ready, unless they say")
	fs.Int64Var(&f.unreachable, "default-unreachable-toleration-seconds", 300, "`seconds` that pods stay on a node that cannot be reached, unless they say")
}

func (f *admissionFlags) apply(s *setup) error {
	if s.given("admission-control") {
		s.log.Warn("--admission-control is deprecated: it switches plugins on, as --enable-admission-plugins does")
		f.Enable = append(slices.Clone(f.control), f.Enable...)
	}
	f.NotReadySeconds, f.UnreachableSeconds = &f.notReady, &f.unreachable
	s.config.Admission = f.Config
	return nil
}
