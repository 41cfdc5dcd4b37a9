package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/controlplane"
)

// peerFlags are the flags of requests that are forwarded to other servers, with
// kube-apiserver's names.
type peerFlags struct{ controlplane.Peers }

func (f *peerFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.CAFile, "peer-ca-file", "", "`file` with the authority of the certificates of servers that share the store; requests for what only another one serves are forwarded to it then, with the certificate of --proxy-client-cert-file")
	fs.StringVar(&f.AdvertiseIP, "peer-advertise-ip", "", "`address` at which these reach this server, with --peer-advertise-port (default: that of --advertise-address)")
	fs.StringVar(&f.AdvertisePort, "peer-advertise-port", "", "`port` at which they do")
}

func (f *peerFlags) apply(s *setup) {
	s.refuse(checkPeers, f.wrong(s))
	s.config.Peers = f.Peers
}

// wrong refuses flags whose feature gate is off.
func (f *peerFlags) wrong(s *setup) error {
	const gate = "UnknownVersionInteroperabilityProxy"
	if s.gates.Enabled(gate) {
		return nil
	}
	var errs []error
	for _, flag := range []struct{ name, value string }{
		{"peer-ca-file", f.CAFile}, {"peer-advertise-ip", f.AdvertiseIP}, {"peer-advertise-port", f.AdvertisePort},
	} {
		if flag.value != "" {
			errs = append(errs, fmt.Errorf("--%s requires %s feature to be turned on", flag.name, gate))
		}
	}
	return errors.Join(errs...)
}
