// Package egress says by which way the server reaches others: directly, or
// through a proxy, for each of the networks that there may be.
package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/internal/configfile"
	"github.com/apikeel/kelson/metrics/measure"
)

// Dial makes a connection, as net.Dialer does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Selector has the ways to the networks. A nil Dial is the direct way, whether it was chosen
// or nobody has chosen one: who dials directly checks addresses, who asks a proxy cannot.
type Selector struct {
	// ControlPlane leads to services beside the server: those that authenticate,
	// authorize, audit, and webhooks that have a URL.
	ControlPlane Dial
	// Cluster leads to nodes, pods and services.
	Cluster Dial
	// Etcd leads to etcd.
	Etcd Dial

	configured []string // names of networks that the file has
	metrics    measure.Sink
}

// IsConfigured reports whether a way to the network of a name was chosen, be it the direct one.
func (s *Selector) IsConfigured(network string) bool {
	return s != nil && slices.Contains(s.configured, network)
}

// Measure makes a selector count the connections that are made through proxies. It
// must be called before there are any.
func (s *Selector) Measure(to measure.Sink) {
	if s != nil {
		s.metrics = to
	}
}

// Names of the networks, and protocols by which proxies are spoken to.
const (
	controlPlane, cluster, etcd = "controlplane", "cluster", "etcd"

	direct, httpConnect, grpcTunnel = "Direct", "HTTPConnect", "GRPC"
)

// For returns the way to the network of a name. A nil Selector knows none.
func (s *Selector) For(network string) Dial {
	if s == nil {
		return nil
	}
	switch network {
	case controlPlane:
		return s.ControlPlane
	case cluster:
		return s.Cluster
	case etcd:
		return s.Etcd
	}
	return nil
}

// configuration is the EgressSelectorConfiguration of a file.
type configuration struct {
	metav1.TypeMeta  `json:",inline"`
	EgressSelections []selection `json:"egressSelections"`
}

type selection struct {
	Name       string     `json:"name"`
	Connection connection `json:"connection"`
}

type connection struct {
	ProxyProtocol string     `json:"proxyProtocol,omitempty"`
	Transport     *transport `json:"transport,omitempty"`
}

type transport struct {
	TCP *tcp `json:"tcp,omitempty"`
	UDS *uds `json:"uds,omitempty"`
}

type tcp struct {
	URL       string     `json:"url,omitempty"`
	TLSConfig *tlsConfig `json:"tlsConfig,omitempty"`
}

type uds struct {
	UDSName string `json:"udsName,omitempty"`
}

type tlsConfig struct {
	CABundle      string `json:"caBundle,omitempty"`
	ClientKey     string `json:"clientKey,omitempty"`
	ClientCert    string `json:"clientCert,omitempty"`
	TLSServerName string `json:"tlsServerName,omitempty"`
}

// Load reads a file with an EgressSelectorConfiguration.
func Load(file string) (*Selector, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read egress selector config: unable to read egress selector configuration from %q [%w]", file, err)
	}
	c, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("failed to read egress selector config: %w", err)
	}
	if errs := c.validate(); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate egress selector configuration: %w", errs.ToAggregate())
	}
	s := &Selector{}
	for _, selection := range c.EgressSelections {
		name := strings.ToLower(selection.Name)
		dial, err := selection.Connection.dial(s)
		if err != nil {
			return nil, fmt.Errorf("failed to setup egress selector: failed to create dialer for egressSelection %q: %w", name, err)
		}
		s.configured = append(s.configured, name)
		switch name {
		case controlPlane:
			s.ControlPlane = dial
		case cluster:
			s.Cluster = dial
		case etcd:
			s.Etcd = dial
		}
	}
	return s, nil
}

// decode reads a configuration strictly: what it does not know is an error.
func decode(data []byte) (*configuration, error) {
	if err := configfile.Check(data, "EgressSelectorConfiguration", "apiserver.k8s.io/v1beta1", "apiserver.k8s.io/v1alpha1"); err != nil {
		return nil, err
	}
	text, err := configfile.ToJSON(data)
	if err != nil {
		return nil, err
	}
	c := &configuration{}
	unknown, err := configfile.UnmarshalStrict(text, c)
	if err == nil && len(unknown) > 0 {
		err = runtime.NewStrictDecodingError(unknown)
	}
	return c, err
}

func (c *configuration) validate() (errs field.ErrorList) {
	path := field.NewPath("service", "connection")
	for _, s := range c.EgressSelections {
		errs = append(errs, s.Connection.validate(path)...)
	}
	var seen []string
	for i, s := range c.EgressSelections {
		name := strings.ToLower(s.Name)
		known := []string{cluster, controlPlane, etcd}
		switch {
		case slices.Contains(seen, name):
			errs = append(errs, field.Duplicate(path.Index(i), name))
		case !slices.Contains(known, name):
			errs = append(errs, field.NotSupported(path, name, known))
		}
		seen = append(seen, name)
	}
	return errs
}

func (c *connection) validate(path *field.Path) field.ErrorList {
	t := c.Transport
	switch c.ProxyProtocol {
	case direct:
		if t != nil {
			return field.ErrorList{field.Invalid(path.Child("transport"), "direct", "config must be absent for direct connect")}
		}
		return nil
	case httpConnect:
		switch {
		case t == nil:
			return field.ErrorList{field.Required(path.Child("transport"), "transport must be set for HTTPConnect")}
		case t.TCP != nil && t.UDS != nil:
			return field.ErrorList{field.Invalid(path.Child("tcp"), "tcp", "TCP and UDS cannot both be set")}
		case t.TCP == nil && t.UDS == nil:
			return field.ErrorList{field.Required(path.Child("tcp"), "One of TCP or UDS must be set")}
		case t.TCP != nil:
			return t.TCP.validate(path)
		}
		return t.UDS.validate(path)
	case grpcTunnel:
		switch {
		case t == nil:
			return field.ErrorList{field.Required(path.Child("transport"), "transport must be set for GRPC")}
		case t.UDS == nil:
			return field.ErrorList{field.Required(path.Child("uds"), "UDS must be set with GRPC")}
		}
		return t.UDS.validate(path)
	}
	return field.ErrorList{field.NotSupported(path.Child("protocol"), c.ProxyProtocol, []string{direct, httpConnect, grpcTunnel})}
}

func (u *uds) validate(path *field.Path) field.ErrorList {
	if u.UDSName == "" {
		return field.ErrorList{field.Invalid(path.Child("udsName"), "nil", "must be present for UDS connections")}
	}
	return nil
}

func (t *tcp) validate(path *field.Path) field.ErrorList {
	switch {
	case strings.HasPrefix(t.URL, "http://"):
		if t.TLSConfig != nil {
			return field.ErrorList{field.Invalid(path.Child("tlsConfig"), "nil", "config must not be present when using HTTP")}
		}
		return nil
	case strings.HasPrefix(t.URL, "https://"):
		return t.TLSConfig.validate(path.Child("tlsConfig"))
	}
	shown := "REDACTED"
	if u, err := url.Parse(t.URL); err == nil && u.User == nil {
		shown = t.URL
	}
	return field.ErrorList{field.Invalid(path.Child("url"), shown, "supported connection protocols are http:// and https://")}
}

func (t *tlsConfig) validate(path *field.Path) (errs field.ErrorList) {
	if t == nil {
		return field.ErrorList{field.Required(path, "TLSConfig must be present when using HTTPS")}
	}
	check := func(name, file, absent, missing string) {
		if file == "" {
			if absent != "" {
				errs = append(errs, field.Invalid(path.Child(name), "nil", absent))
			}
		} else if _, err := os.Stat(file); err != nil {
			errs = append(errs, field.Invalid(path.Child(name), file, missing))
		}
	}
	check("caBundle", t.CABundle, "", "TLS config ca bundle does not exist")
	check("clientCert", t.ClientCert, "Using TLS requires clientCert", "TLS client cert does not exist")
	check("clientKey", t.ClientKey, "Using TLS requires requires clientKey", "TLS client key does not exist")
	return errs
}

// load reads the files.
func (t *tlsConfig) load() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(t.ClientCert, t.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("failed to read key pair %s & %s, got %w", t.ClientCert, t.ClientKey, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ServerName: t.TLSServerName}
	if t.CABundle != "" {
		pem, err := os.ReadFile(t.CABundle)
		if err != nil {
			return nil, fmt.Errorf("failed to read cert file %s, got %w", t.CABundle, err)
		}
		if config.RootCAs = x509.NewCertPool(); !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("failed to append CA cert to the cert pool")
		}
	}
	return config, nil
}

// dial returns how connections are made, nil for directly.
func (c *connection) dial(s *Selector) (Dial, error) {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	switch {
	case c.ProxyProtocol == direct:
		return nil, nil
	case c.ProxyProtocol == grpcTunnel:
		return nil, errors.New("tunnels over gRPC are not supported: use HTTPConnect, which the same proxies speak")
	case c.Transport.UDS != nil:
		return s.through(dialer.DialContext, "unix", c.Transport.UDS.UDSName), nil
	}
	to := c.Transport.TCP
	proxy, err := url.Parse(to.URL)
	if err != nil {
		return nil, errors.New("invalid proxy server url")
	}
	if to.TLSConfig == nil {
		return s.through(dialer.DialContext, "tcp", proxy.Host), nil
	}
	config, err := to.TLSConfig.load()
	if err != nil {
		return nil, err
	}
	return s.through((&tls.Dialer{NetDialer: dialer, Config: config}).DialContext, "tcp", proxy.Host), nil
}

// through makes connections by asking a proxy for them.
func (s *Selector) through(dial Dial, network, proxy string) Dial {
	const protocol = "http_connect"
	transport := map[string]string{"unix": "uds", "tcp": "tcp"}[network]
	return func(ctx context.Context, _, address string) (net.Conn, error) {
		began := time.Now()
		measure.Count(s.metrics, measure.DialStarts, protocol, transport)
		conn, err := dial(ctx, network, proxy)
		if err != nil {
			measure.Count(s.metrics, measure.DialFailures, protocol, transport, "connect")
			return nil, err
		}
		// The end of ctx ends the conversation with the proxy, not the connection.
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		err = tunnel(conn, proxy, address)
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			measure.Count(s.metrics, measure.DialFailures, protocol, transport, "proxy")
			conn.Close()
			return nil, err
		}
		measure.Since(s.metrics, began, measure.DialDuration, protocol, transport)
		return conn, nil
	}
}

// tunnel asks for a connection to an address. Whoever dials speaks first, so that
// nothing follows the answer.
func tunnel(conn net.Conn, proxy, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", address); err != nil {
		return err
	}
	reader := bufio.NewReader(io.LimitReader(conn, http.DefaultMaxHeaderBytes))
	answer, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("reading HTTP response from CONNECT to %s via proxy %s failed: %w", address, proxy, err)
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("proxy error from %s while dialing %s, code %d: %v", proxy, address, answer.StatusCode, answer.Status)
	}
	if n := reader.Buffered(); n > 0 {
		return fmt.Errorf("unexpected %d bytes of buffered data from CONNECT proxy %q", n, proxy)
	}
	return nil
}
