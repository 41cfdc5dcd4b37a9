package main

import (
	"errors"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/serverflags"
	"github.com/spf13/pflag"
)

// servingFlags are the flags of serving certificates, TLS and connections.
type servingFlags struct{ library.Serving }

func (f *servingFlags) bind(fs *pflag.FlagSet) { serverflags.Serving(fs, &f.Serving) }

func (f *servingFlags) apply(s *setup) {
	s.config.Serving = f.Serving
	if s.kube {
		s.refuse(checkGoaway, (&library.Serving{GoawayChance: f.GoawayChance}).Validate())
		s.refuse(checkHSTS, (&library.Serving{HSTS: f.HSTS}).Validate())
		s.refuse(checkCORS, (&library.Serving{CORS: f.CORS}).Validate())
		s.refuse(checkServing, (&library.Serving{HTTP2Server: f.HTTP2Server}).Validate())
		f.checkFiles(s)
		return
	}
	if (f.Certificate.CertFile == "") != (f.Certificate.KeyFile == "") {
		s.refuse(checkServing, errors.New("--tls-cert-file and --tls-private-key-file go together"))
	}
	s.refuse(checkServing, f.Validate())
}
