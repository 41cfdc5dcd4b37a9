package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage"
	"google.golang.org/grpc"
)

// Options says where etcd is and how to use it. Only Endpoints is required.
type Options struct {
	// Endpoints are the client URLs of the members: http://10.0.0.1:2379. All
	// are used, in turn.
	Endpoints []string

	// CAFile is the authority that signed the members' certificates; without
	// it, those of the system are trusted. CertFile and KeyFile are the client
	// certificate. With any of them, every endpoint must be https.
	CAFile, CertFile, KeyFile string
	// TLS is used as it is, instead of the files.
	TLS *tls.Config

	// Dial is how members are reached; nil is directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Prefix is the path in etcd below which there is what is below storage.Root
	// here: with /a, /registry/pods/x is /a/pods/x there. Empty is storage.Root; with
	// another one, no other keys may be used. Two backends with different prefixes,
	// neither of which is below the other, do not see each other's keys. They share
	// the revision counter.
	Prefix string

	// DialTimeout is how long Open waits for an answer, and every attempt to
	// connect for a connection; the default is 10 s.
	DialTimeout time.Duration
	// KeepAliveTime is the silence after which a connection in use is tested,
	// KeepAliveTimeout how long the answer may take before it is given up; the
	// defaults are 30 s and 10 s.
	KeepAliveTime, KeepAliveTimeout time.Duration

	// CompactInterval is how often history is compacted; what is older than
	// one to two intervals goes. The default is 5 minutes; below zero, history
	// is left to others to compact.
	CompactInterval time.Duration

	// LeaseReuse is for how long keys with the same ttl are put under one
	// lease, and thereby how much later than they should they may expire. It is
	// limited to a twentieth of the ttl, but not to less than a second. The
	// default is 2 s, so that keys expire within a few seconds; below zero,
	// every key has a lease of its own.
	LeaseReuse time.Duration
	// LeaseMaxKeys is the largest number of keys under one lease, since they
	// are deleted in one transaction; the default is 1000.
	LeaseMaxKeys int

	// Logger receives what goes on behind the calls; nil discards it.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	setDefault(&o.DialTimeout, 10*time.Second)
	setDefault(&o.KeepAliveTime, 30*time.Second)
	setDefault(&o.KeepAliveTimeout, 10*time.Second)
	setDefault(&o.CompactInterval, 5*time.Minute)
	setDefault(&o.LeaseReuse, 2*time.Second)
	setDefault(&o.LeaseMaxKeys, 1000)
	setDefault(&o.Prefix, storage.Root)
	if o.Prefix = path.Join("/", o.Prefix); o.Prefix != "/" {
		o.Prefix += "/"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) validate() error {
	if len(o.Endpoints) == 0 {
		return errors.New("etcd: no endpoints given")
	}
	if o.DialTimeout < 0 {
		return fmt.Errorf("etcd: dial timeout %v is negative", o.DialTimeout)
	}
	if o.TLS != nil && o.usesFiles() {
		return errors.New("etcd: give either a TLS configuration or certificate files, not both")
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return errors.New("etcd: a client certificate needs both a certificate file and a key file")
	}
	secure := 0
	for _, e := range o.Endpoints {
		if strings.TrimSpace(e) == "" {
			return errors.New("etcd: an endpoint is empty")
		}
		if strings.HasPrefix(e, "https://") || strings.HasPrefix(e, "unixs://") {
			secure++
		} else if o.TLS != nil || o.usesFiles() {
			return fmt.Errorf("etcd: endpoint %q must begin with https:// for TLS to be used", e)
		}
	}
	// The client takes the scheme of the first endpoint for all of them.
	if secure != 0 && secure != len(o.Endpoints) {
		return fmt.Errorf("etcd: endpoints must be all https or none: %s", strings.Join(o.Endpoints, ", "))
	}
	return nil
}

func (o Options) usesFiles() bool { return o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" }

// tlsConfig returns what the options ask for, or nil if they ask for nothing.
func (o Options) tlsConfig() (*tls.Config, error) {
	if o.TLS != nil || !o.usesFiles() {
		return o.TLS, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd: CA file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd: CA file %s holds no certificate in PEM form", o.CAFile)
		}
	}
	if o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("etcd: client certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// dialer has connections made in another way than gRPC would, if one is chosen.
func (o *Options) dialer() grpc.DialOption {
	if o.Dial == nil {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return o.Dial(ctx, "tcp", address) })
}
