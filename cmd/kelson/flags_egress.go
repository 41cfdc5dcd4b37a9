package main

import (
	"github.com/apikeel/kelson/egress"
	"github.com/spf13/pflag"
)

// egressFlags say by which ways others are reached.
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
