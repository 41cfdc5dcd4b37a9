package main

import (
	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/controlplane"
)

// aggregationFlags are the flags of API aggregation, with kube-apiserver's names.
type aggregationFlags struct {
	cert, key         string
	endpoints, reject bool
}

func (f *aggregationFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.cert, "proxy-client-cert-file", "", "`file` with the certificate to show to API servers behind this one (default: one that is made for it)")
	fs.StringVar(&f.key, "proxy-client-key-file", "", "`file` with the key of that certificate")
	fs.BoolVar(&f.endpoints, "enable-aggregator-routing", false, "send requests for them to endpoints of services instead of cluster IPs")
	fs.BoolVar(&f.reject, "aggregator-reject-forwarding-redirect", true, "refuse their redirects instead of passing them on to clients")
}

func (f *aggregationFlags) apply(s *setup) {
	if s.kube {
		f.checkFiles(s)
	}
	s.config.Aggregation = controlplane.Aggregation{
		ProxyCertificate: f.cert, ProxyKey: f.key, EndpointRouting: f.endpoints, ForwardRedirects: !f.reject,
	}
}
