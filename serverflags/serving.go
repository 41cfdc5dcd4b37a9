package serverflags

import (
	"cmp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/pki"
)

// Serving adds the flags of serving certificates, TLS and connection limits.
func Serving(fs *pflag.FlagSet, v *kelson.Serving) {
	fs.StringVar(&v.Certificate.CertFile, "tls-cert-file", v.Certificate.CertFile, "`file` with the certificate to show, and those of its authorities behind it (default one that the server makes)")
	fs.StringVar(&v.Certificate.KeyFile, "tls-private-key-file", v.Certificate.KeyFile, "`file` with the key of that certificate")
	fs.Var(pairs{&v.SNI}, "tls-sni-cert-key", "certificate and key `files` for clients that ask for a name: foo.crt,foo.key or foo.crt,foo.key:*.foo.com,foo.com; can be given several times")
	fs.StringVar(&v.CertDir, "cert-dir", v.CertDir, "`folder` with apiserver.crt and apiserver.key, which are made if they are missing (default pki in the data folder)")
	fs.StringVar(&v.MinVersion, "tls-min-version", v.MinVersion, "oldest `version` of TLS: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13 (default VersionTLS12)")
	fs.StringSliceVar(&v.CipherSuites, "tls-cipher-suites", v.CipherSuites, "`names` of cipher suites of TLS 1.2 and before (default those of Go)")
	fs.Int32SliceVar(&v.Curves, "tls-curve-preferences", v.Curves, "`numbers` of the key exchange mechanisms that are allowed, as Go's tls.CurveID has them")

	fs.IPVar(&v.AdvertiseAddress, "advertise-address", v.AdvertiseAddress, "IP `address` at which members of the cluster reach the server (default --bind-address, or that of this machine)")
	fs.StringVar(&v.ExternalHostname, "external-hostname", v.ExternalHostname, "`name` of the server in URLs that it tells clients, with or without a port")
	fs.BoolVar(&v.PermitPortSharing, "permit-port-sharing", v.PermitPortSharing, "let other servers listen on the same port (SO_REUSEPORT)")
	fs.BoolVar(&v.PermitAddressSharing, "permit-address-sharing", v.PermitAddressSharing, "do not wait for old connections on the port (SO_REUSEADDR)")

	fs.BoolVar(&v.DisableHTTP2, "disable-http2-serving", v.DisableHTTP2, "speak HTTP/1.1 only")
	fs.StringVar(&v.HTTP2Server, "http2-server", cmp.Or(v.HTTP2Server, kelson.HTTP2Own), "`implementation` of HTTP/2: kelson, or net/http, which is Go's and needs more CPU and memory; a way out should the first have a fault")
	fs.IntVar(&v.MaxUnauthenticatedConnections, "max-unauthenticated-connections", v.MaxUnauthenticatedConnections, "`connections` without a request that was authenticated; the oldest is closed for one too many (default 4096)")
	fs.IntVar(&v.MaxStreams, "http2-max-streams-per-connection", v.MaxStreams, "`requests` at a time on one connection (default 100)")
	fs.Float64Var(&v.GoawayChance, "goaway-chance", v.GoawayChance, "`chance` that a request makes its client connect anew, so that clients spread over servers; at most 0.02")
	fs.StringSliceVar(&v.CORS, "cors-allowed-origins", v.CORS, "regular `expressions` for the origins whose pages may use the server")
	fs.StringSliceVar(&v.HSTS, "strict-transport-security-directives", v.HSTS, "`directives` for browsers: max-age=31536000,includeSubDomains,preload")
}

// Life adds the flags of startup and shutdown.
func Life(fs *pflag.FlagSet, s *kelson.Server) {
	fs.DurationVar(&s.LivezGrace, "livez-grace-period", s.LivezGrace, "how long /livez does not ask whether the server has started")
	fs.DurationVar(&s.Shutdown.Delay, "shutdown-delay-duration", s.Shutdown.Delay, "how long the server goes on when it is told to stop, but for not being ready")
	fs.BoolVar(&s.Shutdown.SendRetryAfter, "shutdown-send-retry-after", s.Shutdown.SendRetryAfter, "tell new requests to come back while the last ones are answered")
	fs.DurationVar(&s.Shutdown.WatchGrace, "shutdown-watch-termination-grace-period", s.Shutdown.WatchGrace, "how long it takes to end all watches, a few at a time")
}

// pairs is a flag for certificate pairs that can be given several times.
type pairs struct{ to *[]pki.Pair }

// Set implements pflag.Value.
func (p pairs) Set(text string) error {
	var pair pki.Pair
	if err := pair.Set(text); err != nil {
		return err
	}
	*p.to = append(*p.to, pair)
	return nil
}

// String implements pflag.Value.
func (p pairs) String() string {
	var all []string
	if p.to != nil {
		for _, pair := range *p.to {
			all = append(all, pair.String())
		}
	}
	return strings.Join(all, ";")
}

// Type implements pflag.Value.
func (pairs) Type() string { return (*pki.Pair)(nil).Type() }
