package etcd

import (
	"cmp"
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
	// Endpoints are the client URLs of the members: http://10.0.0.1:2379. Requests are
	// spread over those that answer well; with one endpoint there is no choice.
	Endpoints []string

	// CAFile is the CA bundle for the members' certificates; without it the system's
	// CAs are trusted. CertFile and KeyFile are the client certificate. With any of
	// them, every endpoint must be https.
	CAFile, CertFile, KeyFile string
	// TLS is used instead of the files.
	TLS *tls.Config

	// Dial opens the connections to members; nil dials directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Prefix is the path in etcd that replaces storage.Root: with /a, the key
	// /registry/pods/x is /a/pods/x in etcd. Empty is storage.Root; with another
	// prefix, only keys below storage.Root may be used. Two backends whose prefixes are
	// not nested do not see each other's keys; they share the revision counter.
	Prefix string

	// DialTimeout is how long Open waits for an answer; the default is 10 s. An attempt
	// to connect may take as long, but at most 3 s.
	DialTimeout time.Duration
	// KeepAliveTime is the idle time after which a connection is probed,
	// KeepAliveTimeout how long the response may take before the connection is closed;
	// the defaults are 30 s and 10 s.
	KeepAliveTime, KeepAliveTimeout time.Duration

	// CompactInterval is how often history is compacted; history is kept for one to two
	// intervals. The default is 5 minutes; a negative value leaves compaction to
	// others.
	CompactInterval time.Duration

	// LeaseReuse is how long keys with the same ttl share a lease, and so how much too
	// late they may expire. It is limited to a twentieth of the ttl, but at least a
	// second. The default is 2 s; with a negative value every key has a lease of its
	// own.
	LeaseReuse time.Duration
	// LeaseMaxKeys is the largest number of keys under one lease, since they
	// are deleted in one transaction; the default is 1000.
	LeaseMaxKeys int

	// Logger gets interrupted watches, compactions and their failures; nil discards
	// them.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.KeepAliveTime = cmp.Or(o.KeepAliveTime, 30*time.Second)
	o.KeepAliveTimeout = cmp.Or(o.KeepAliveTimeout, 10*time.Second)
	o.CompactInterval = cmp.Or(o.CompactInterval, 5*time.Minute)
	o.LeaseReuse = cmp.Or(o.LeaseReuse, 2*time.Second)
	o.LeaseMaxKeys = cmp.Or(o.LeaseMaxKeys, 1000)
	o.Prefix = cmp.Or(o.Prefix, storage.Root)
	if o.Prefix = path.Join("/", o.Prefix); o.Prefix != "/" {
		o.Prefix += "/"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
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
		if strings.Contains(e, "@") {
			return errors.New("etcd: an endpoint has a user or password in it, which etcd's client ignores: use client certificates")
		}
		if strings.HasPrefix(e, "https://") || strings.HasPrefix(e, "unixs://") {
			secure++
		} else if o.TLS != nil || o.usesFiles() {
			return fmt.Errorf("etcd: endpoint %q must begin with https:// for TLS to be used", e)
		}
	}
	// etcd's client uses the scheme of the first endpoint for all.
	if secure != 0 && secure != len(o.Endpoints) {
		return fmt.Errorf("etcd: endpoints must be all https or none: %s", strings.Join(o.Endpoints, ", "))
	}
	return nil
}

func (o Options) usesFiles() bool { return o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" }

// tlsConfig returns the TLS configuration, nil if no TLS is wanted.
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

// dialer makes gRPC connect with Options.Dial, if it is set.
func (o *Options) dialer() grpc.DialOption {
	if o.Dial == nil {
		return grpc.EmptyDialOption{}
	}
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return o.Dial(ctx, "tcp", address) })
}
