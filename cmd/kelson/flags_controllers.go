package main

import (
	"fmt"

	"github.com/apikeel/kelson/controlplane"
	"github.com/spf13/pflag"
)

// controllerFlags are the flags about the controllers in the server, with the names of
// kube-controller-manager.
type controllerFlags struct {
	names []string
	elect bool

	endpoints string
	servers   int
}

func (f *controllerFlags) bind(fs *pflag.FlagSet) {
	fs.StringSliceVar(&f.names, "controllers", []string{"*"}, "`names` of controllers that run in this server, so that namespaces end and dependents follow their owners: * is all, -name all but one, -* none, for where kube-controller-manager runs")
	fs.BoolVar(&f.elect, "leader-elect", false, "run controllers in one of several servers only (default true with etcd)")
	fs.StringVar(&f.endpoints, "endpoint-reconciler-type", controlplane.EndpointLeases, "`how` the endpoints of the service kubernetes follow the servers that share an etcd: lease, master-count or none")
	fs.IntVar(&f.servers, "apiserver-count", 1, "`number` of servers, with --endpoint-reconciler-type=master-count")
	_ = fs.MarkDeprecated("apiserver-count", "apiserver-count is deprecated and will be removed in a future version.")
}

func (f *controllerFlags) apply(s *setup) {
	s.config.Controllers = f.names
	s.config.EndpointReconciler, s.config.Servers = f.endpoints, f.servers
	if s.given("leader-elect") {
		s.config.LeaderElect = &f.elect
	}
	if s.kube || s.given("service-cluster-ip-range") {
		s.refuse(checkFamily, sameFamily(s.config))
	}
	if f.servers <= 0 {
		s.refuse(checkServers, fmt.Errorf("--apiserver-count should be a positive number, but value '%d' provided", f.servers))
	}
}
