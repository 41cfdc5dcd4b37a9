package main

import (
	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/serverflags"
	"github.com/spf13/pflag"
)

// auditFlags are the flags of auditing.
type auditFlags struct{ audit.Config }

func (f *auditFlags) bind(fs *pflag.FlagSet) {
	f.Config = audit.DefaultConfig()
	serverflags.Audit(fs, &f.Config)
}

func (f *auditFlags) apply(s *setup) {
	s.config.Audit = f.Config
	s.refuse(checkAudit, f.Validate())
}
