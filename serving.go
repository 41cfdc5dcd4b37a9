package kelson

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"math"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/apikeel/kelson/h2"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/internal/newcomers"
	"github.com/apikeel/kelson/pki"
)

// Serving configures how clients reach the outermost server: certificates, TLS, HTTP/2 and
// browsers. The zero value uses a certificate that the server's PKI issues, and the defaults
// of kube-apiserver, whose flags are named at the fields.
type Serving struct {
	// Certificate is the files of the serving certificate: --tls-cert-file,
	// --tls-private-key-file. They are reloaded when they change, as are the others.
	Certificate pki.Pair
	// CertDir is a folder with the certificate, or in which it is created: --cert-dir.
	CertDir string
	// SNI are certificates by server name: --tls-sni-cert-key.
	SNI []pki.Pair

	MinVersion   string   // --tls-min-version: VersionTLS12, …
	CipherSuites []string // --tls-cipher-suites
	Curves       []int32  // --tls-curve-preferences

	// ClientCAs returns the CAs of client certificates, which are announced to clients;
	// it returns the same pool until they change. The default is that of the server's
	// PKI.
	ClientCAs func() *x509.CertPool

	DisableHTTP2 bool // --disable-http2-serving
	// HTTP2Server is the implementation of HTTP/2: --http2-server, HTTP2Own or
	// HTTP2NetHTTP; HTTP2Own if it is empty. They have the same limits and give
	// the same answers.
	HTTP2Server string
	// MaxUnauthenticatedConnections bounds the connections on which no request has been
	// authenticated: --max-unauthenticated-connections; 4,096 if it is not positive. The
	// oldest is closed for one too many.
	MaxUnauthenticatedConnections int
	MaxStreams                    int     // --http2-max-streams-per-connection; the default if it is not positive
	GoawayChance                  float64 // --goaway-chance
	PermitPortSharing             bool    // --permit-port-sharing
	PermitAddressSharing          bool    // --permit-address-sharing

	// AdvertiseAddress is where members of the cluster reach the server, and
	// ExternalHostname, with or without a port, is its name for clients:
	// --advertise-address, --external-hostname. For their defaults see
	// Server.AdvertiseAddress and ExternalAddress.
	AdvertiseAddress net.IP
	ExternalHostname string

	// HSTS are directives of --strict-transport-security-directives.
	HSTS []string
	// CORS are regular expressions for allowed origins: --cors-allowed-origins.
	CORS []string
}

// Values of Serving.HTTP2Server.
const (
	// HTTP2Own is package h2 of this module, the default.
	HTTP2Own = "kelson"
	// HTTP2NetHTTP is the server of net/http, which kube-apiserver uses too. It needs
	// more CPU and memory; it is the alternative if package h2 has a defect.
	HTTP2NetHTTP = "net/http"
)

const corsHelp = "List of allowed origins for CORS, comma separated. " +
	"An allowed origin can be a regular expression to support subdomain matching. " +
	"If this list is empty CORS will not be enabled. " +
	"Please ensure each expression matches the entire hostname by anchoring " +
	"to the start with '^' or including the '//' prefix, and by anchoring to the " +
	"end with '$' or including the ':' port separator suffix. " +
	"Examples of valid expressions are '//example\\.com(:|$)' and '^https://example\\.com(:|$)'"

// Validate checks the configuration without reading files.
func (v *Serving) Validate() error {
	_, err := v.tlsConfig()
	if v.GoawayChance < 0 || v.GoawayChance > 0.02 {
		err = errors.Join(err, errors.New("--goaway-chance can not be less than 0 or greater than 0.02"))
	}
	switch v.HTTP2Server {
	case "", HTTP2Own, HTTP2NetHTTP:
	default:
		err = errors.Join(err, fmt.Errorf("--http2-server is %q, not one of %s and %s", v.HTTP2Server, HTTP2Own, HTTP2NetHTTP))
	}
	for _, directive := range v.HSTS {
		name, value, hasValue := strings.Cut(directive, "=")
		switch {
		case strings.TrimSpace(directive) == "":
			err = errors.Join(err, errors.New("empty value in strict-transport-security-directives"))
		case directive == "includeSubDomains" || directive == "preload":
		case name != "max-age" || !hasValue || strings.Contains(value, "="):
			err = errors.Join(err, errors.New("--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"))
		}
	}
	for _, origin := range v.CORS {
		if origin == "" {
			err = errors.Join(err, fmt.Errorf("empty value in --cors-allowed-origins, help: %s", corsHelp))
		} else if problem := validOrigin(origin); problem != nil {
			err = errors.Join(err, fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w, help: %s", problem, corsHelp))
		}
	}
	return err
}

// validOrigin checks that an expression is anchored, so that it does not match a host of
// which the intended one is only a part.
func validOrigin(expression string) error {
	if _, err := regexp.Compile(expression); err != nil {
		return err
	}
	begins := strings.Contains(expression, "^") || strings.Contains(expression, "//")
	ends := strings.Contains(expression, "$") || strings.Contains(expression, ":")
	if !begins || !ends {
		return errors.New("regular expression does not pin to start/end of host in the origin header")
	}
	return nil
}

// tlsConfig returns the part of the TLS configuration that does not depend on the client.
func (v *Serving) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		// Certificates are verified by authentication: there are other ways to authenticate,
		// and a failure should be a response, not a failed handshake.
		ClientAuth:       tls.RequestClientCert,
		VerifyConnection: boundCertificates,
	}
	if v.DisableHTTP2 {
		config.NextProtos = config.NextProtos[1:]
	}
	switch v.MinVersion {
	case "", "VersionTLS12":
	case "VersionTLS10":
		config.MinVersion = tls.VersionTLS10
	case "VersionTLS11":
		config.MinVersion = tls.VersionTLS11
	case "VersionTLS13":
		config.MinVersion = tls.VersionTLS13
	default:
		return nil, fmt.Errorf("unknown tls version %q", v.MinVersion)
	}
	for _, name := range v.CipherSuites {
		suite, _, err := cipherSuite(name)
		if err != nil {
			return nil, err
		}
		config.CipherSuites = append(config.CipherSuites, suite)
	}
	if len(v.CipherSuites) > 0 && !v.DisableHTTP2 && config.MinVersion < tls.VersionTLS13 && !slices.ContainsFunc(config.CipherSuites, requiredByHTTP2) {
		return nil, errors.New("error configuring http2: http2: TLSConfig.CipherSuites is missing an HTTP/2-required AES_128_GCM_SHA256 cipher (need at least one of TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)")
	}
	seen := map[int32]bool{}
	for _, id := range v.Curves {
		switch {
		case id <= 0 || id > math.MaxUint16:
			return nil, fmt.Errorf("curve preference %d is out of range (must be 1-%d)", id, math.MaxUint16)
		case seen[id]:
			return nil, fmt.Errorf("duplicate curve preference %d", id)
		case strings.HasPrefix(tls.CurveID(id).String(), "CurveID("):
			return nil, fmt.Errorf("curve preference %d is not supported by the current Go version", id)
		}
		seen[id] = true
		config.CurvePreferences = append(config.CurvePreferences, tls.CurveID(id))
	}
	return config, nil
}

// maxCertificates is how many bytes of certificates a client may show. An ordinary chain has less than
// eight thousand; crypto/tls takes 256 KiB, and keeps them as long as the connection.
const maxCertificates = 32 << 10

// boundCertificates ends the handshake of a client with too large certificates.
func boundCertificates(state tls.ConnectionState) error {
	bytes := 0
	for _, c := range state.PeerCertificates {
		bytes += len(c.Raw)
	}
	if bytes > maxCertificates {
		return fmt.Errorf("the client has shown %d bytes of certificates, more than %d", bytes, maxCertificates)
	}
	return nil
}

func requiredByHTTP2(suite uint16) bool {
	return suite == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || suite == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
}

// cipherSuite returns the suite of a name, and whether it is insecure. Two suites also have
// names from before they were standardized.
func cipherSuite(name string) (id uint16, insecure bool, err error) {
	switch name {
	case "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305":
		name += "_SHA256"
	}
	for _, suite := range tls.CipherSuites() {
		if suite.Name == name {
			return suite.ID, false, nil
		}
	}
	for _, suite := range tls.InsecureCipherSuites() {
		if suite.Name == name {
			return suite.ID, true, nil
		}
	}
	//lint:ignore ST1005 the words that operators know
	return 0, false, fmt.Errorf("Cipher suite %s not supported or doesn't exist", name)
}

// prepareServing loads the certificates and makes the TLS configuration.
func (s *Server) prepareServing() error {
	v := &s.Serving
	if err := v.Validate(); err != nil {
		return err
	}
	for _, name := range v.CipherSuites {
		if _, insecure, _ := cipherSuite(name); insecure {
			s.Logger.Warn("a cipher suite that is not secure may be used", "suite", name)
		}
	}
	if v.ClientCAs == nil {
		pool := s.PKI.Pool()
		v.ClientCAs = func() *x509.CertPool { return pool }
	}
	main := v.Certificate
	if v.CertDir != "" && main.CertFile == "" && main.KeyFile == "" {
		var err error
		if main, err = s.PKI.ServerPair(v.CertDir); err != nil {
			return err
		}
	}
	base, err := v.tlsConfig()
	if err != nil {
		return err
	}
	if s.shown, err = pki.OpenServingCertificates(s.PKI.ServerCertificate, main, v.SNI...); err != nil {
		return err
	}
	base.GetCertificate = s.shown.Certificate
	s.tls = withAuthorities(base, v.ClientCAs)
	return nil
}

// withAuthorities adds the CAs of client certificates to a configuration. A new configuration
// is made only when they change.
func withAuthorities(base *tls.Config, authorities func() *x509.CertPool) *tls.Config {
	var current atomic.Pointer[tls.Config]
	config := base.Clone()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := authorities()
		if now := current.Load(); now != nil && now.ClientCAs == pool {
			return now, nil
		}
		next := base.Clone()
		next.ClientCAs = pool
		current.Store(next)
		return next, nil
	}
	return config
}

// ownHTTP2 reports whether package h2 serves HTTP/2.
func (v *Serving) ownHTTP2() bool { return !v.DisableHTTP2 && v.HTTP2Server != HTTP2NetHTTP }

func (s *Server) httpServer(base context.Context) *http.Server {
	streams := maxStreams
	if s.Serving.MaxStreams > 0 {
		streams = min(s.Serving.MaxStreams, math.MaxInt32)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(!s.Serving.DisableHTTP2)
	errors := log.New(errorLog{&boundedlog.Limit{}, s.Logger, s.Metrics}, "", 0)
	server := &http.Server{
		Handler:           s,
		Protocols:         protocols,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			ctx = newcomers.WithConn(ctx, conn)
			if s.ConnContext == nil {
				return ctx
			}
			return s.ConnContext(ctx)
		},
		ConnState: newcomers.ConnState,
		ErrorLog:  errors,
		TLSConfig: s.tls,
	}
	switch {
	case s.Serving.DisableHTTP2:
	case s.Serving.HTTP2Server == HTTP2NetHTTP:
		// MaxHeaderBytes and IdleTimeout are set on the server.
		server.HTTP2 = &http.HTTP2Config{
			MaxConcurrentStreams: streams, MaxReadFrameSize: maxFrame, MaxReceiveBufferPerStream: maxWindow,
			MaxReceiveBufferPerConnection: maxAhead - 1, // must be below 4 MiB
			WriteByteTimeout:              stalledTimeout,
		}
	default:
		http2 := &h2.Server{
			MaxStreams: streams, MaxHandlers: s.memory().Handlers(), MaxArriving: arriving * runtime.GOMAXPROCS(0), MaxHeaderBytes: maxHeaderBytes, MaxFrame: maxFrame, StreamWindow: maxWindow, ConnWindow: maxAhead,
			IdleTimeout: idleTimeout, WriteTimeout: stalledTimeout, Unsent: &s.memory().Unsent, HeaderBlocks: &s.memory().HeaderBlocks, ErrorLog: errors,
		}
		http2.Configure(server)
	}
	return server
}
