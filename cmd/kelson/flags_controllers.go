package main

import "github.com/spf13/pflag"

// controllerFlags say which controllers run in the server, with the names that
// kube-controller-manager has for them.
type controllerFlags struct {
	names []string
	elect bool
}

func (f *controllerFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.names, "controllers", []string{"-*"}, "`names` of controllers that run in this server, so that namespaces end and dependents follow their owners: * is all, -name all but one, -* none, as with kube-apiserver")
	fs.BoolVar(&f.elect, "leader-elect", false, "run controllers in one of several servers only (default true with etcd)")
}

func (f *controllerFlags) apply(s *setup) error {
	s.config.Controllers = f.names
	if s.given("leader-elect") {
		s.config.LeaderElect = &f.elect
	}
	return nil
}
