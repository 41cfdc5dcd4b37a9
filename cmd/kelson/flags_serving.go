package main

import (
	"fmt"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/serverflags"
	"github.com/spf13/pflag"
)

// servingFlags say what the server shows to clients, and what connections may
// do.
type servingFlags struct{ library.Serving }

func (f *servingFlags) bind(fs *pflag.FlagSet) { serverflags.Serving(fs, &f.Serving) }

func (f *servingFlags) apply(s *setup) error {
	if (f.Certificate.CertFile == "") != (f.Certificate.KeyFile == "") {
		return fmt.Errorf("--tls-cert-file and --tls-private-key-file go together")
	}
	if err := f.Validate(); err != nil {
		return err
	}
	s.config.Serving = f.Serving
	return nil
}
