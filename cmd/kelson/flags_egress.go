package main

import (
	"github.com/apikeel/kelson/egress"
	"github.com/spf13/pflag"
)

// egressFlags are the flags of egress selectors.
type egressFlags struct{ file string }

func (f *egressFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.file, "egress-selector-config-file", "", "`file` with an EgressSelectorConfiguration: by which proxies the cluster, the control plane and etcd are reached")
}

func (f *egressFlags) apply(s *setup) {
	if f.file != "" {
		var err error
		s.config.Egress, err = egress.Load(f.file)
		s.refuse(lateEgress, err)
	}
}
