package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/spf13/pflag"
)

// admissionFlags are the flags of admission plugins.
type admissionFlags struct {
	plugin.Config
	control               []string
	notReady, unreachable int64
}

func (f *admissionFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.Enable, "enable-admission-plugins", nil, "`plugins` to switch on, beside those that are on")
	fs.StringSliceVar(&f.Disable, "disable-admission-plugins", nil, "`plugins` to switch off")
	fs.StringSliceVar(&f.control, "admission-control", nil, "`plugins` that are on, all others being off")
	_ = fs.MarkDeprecated("admission-control", "Use --enable-admission-plugins or --disable-admission-plugins instead. Will be removed in a future version.")
	fs.StringVar(&f.File, "admission-control-config-file", "", "`file` with an AdmissionConfiguration")
	fs.Int64Var(&f.notReady, "default-not-ready-toleration-seconds", 300, "`seconds` that pods stay on a node that is not ready, unless they say")
	fs.Int64Var(&f.unreachable, "default-unreachable-toleration-seconds", 300, "`seconds` that pods stay on a node that cannot be reached, unless they say")
}

func (f *admissionFlags) apply(s *setup) {
	if s.given("admission-control") {
		if f.Enable != nil || f.Disable != nil {
			s.refuse(checkAdmission, errors.New("admission-control and enable-admission-plugins/disable-admission-plugins flags are mutually exclusive"))
		}
		known, _ := plugin.Names()
		for _, name := range f.control {
			if !slices.Contains(known, name) {
				s.refuse(checkAdmission, fmt.Errorf("admission-control plugin %q is unknown", name))
			}
		}
		s.refuse(checkAdmission, f.Validate())
		f.Enable = f.control
		f.Disable = slices.DeleteFunc(known, func(name string) bool { return slices.Contains(f.control, name) })
	}
	if !s.given("admission-control") {
		s.refuse(checkAdmission, f.Validate())
	}
	f.NotReadySeconds, f.UnreachableSeconds = &f.notReady, &f.unreachable
	s.config.Admission = f.Config
}
