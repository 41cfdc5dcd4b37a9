package main

import (
	"fmt"

	library "github.com/apikeel/kelson"
	"github.com/spf13/pflag"
)

// servingFlags say what the server shows to clients, and what connections may
// do.
type servingFlags struct{ library.Serving }

func (f *servingFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.Certificate.CertFile, "tls-cert-file", "", "`file` with the certificate to show, and those of its authorities behind it (default one that the server makes)")
	fs.StringVar(&f.Certificate.KeyFile, "tls-private-key-file", "", "`file` with the key of that certificate")
	fs.Var(pairs{&f.SNI}, "tls-sni-cert-key", "certificate and key `files` for clients that ask for a name: foo.crt,foo.key or foo.crt,foo.key:*.foo.com,foo.com; can be given several times")
	fs.StringVar(&f.CertDir, "cert-dir", "", "`folder` with apiserver.crt and apiserver.key, which are made if they are missing (default pki in the data folder)")
	fs.StringVar(&f.MinVersion, "tls-min-version", "", "oldest `version` of TLS: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13 (default VersionTLS12)")
	fs.StringSliceVar(&f.CipherSuites, "tls-cipher-suites", nil, "`names` of cipher suites of TLS 1.2 and before (default those of Go)")
	fs.Int32SliceVar(&f.Curves, "tls-curve-preferences", nil, "`numbers` of the key exchange mechanisms that are allowed, as Go's tls.CurveID has them")

	fs.IPVar(&f.AdvertiseAddress, "advertise-address", nil, "IP `address` at which members of the cluster reach the server (default --bind-address, or that of this machine)")
	fs.StringVar(&f.ExternalHostname, "external-hostname", "", "`name` of the server in URLs that it tells clients, with or without a port")
	fs.BoolVar(&f.PermitPortSharing, "permit-port-sharing", false, "let other servers listen on the same port (SO_REUSEPORT)")
	fs.BoolVar(&f.PermitAddressSharing, "permit-address-sharing", false, "do not wait for old connections on the port (SO_REUSEADDR)")

	fs.BoolVar(&f.DisableHTTP2, "disable-http2-serving", false, "speak HTTP/1.1 only")
	fs.IntVar(&f.MaxStreams, "http2-max-streams-per-connection", 0, "`requests` at a time on one connection (default 100)")
	fs.Float64Var(&f.GoawayChance, "goaway-chance", 0, "`chance` that a request makes its client connect anew, so that clients spread over servers; at most 0.02")
	fs.StringSliceVar(&f.CORS, "cors-allowed-origins", nil, "regular `expressions` for the origins whose pages may use the server")
	fs.StringSliceVar(&f.HSTS, "strict-transport-security-directives", nil, "`directives` for browsers: max-age=31536000,includeSubDomains,preload")
}

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
