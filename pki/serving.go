package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/apikeel/kelson/filewatch"
)

// This file holds the serving certificates of a server, with SNI.

// Pair names the files of a certificate and its key. Names are the host names that it
// is for, if they are not taken from the certificate: with "*" for the first label, or
// IP addresses. It is a pflag.Value: "foo.crt,foo.key:*.foo.com,foo.com".
type Pair struct {
	CertFile, KeyFile string
	Names             []string
}

// Set implements pflag.Value.
func (p *Pair) Set(value string) error {
	files, names, named := strings.Cut(value, ":")
	p.Names = nil
	if named {
		if strings.TrimSpace(names) == "" {
			return errors.New("empty names list is not allowed")
		}
		for name := range strings.SplitSeq(names, ",") {
			p.Names = append(p.Names, strings.TrimSpace(name))
		}
	}
	parts := strings.Split(files, ",")
	if len(parts) != 2 {
		return errors.New("expected comma separated certificate and key file paths")
	}
	p.CertFile, p.KeyFile = strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1])
	return nil
}

// String is the inverse of Set.
func (p *Pair) String() string {
	text := p.CertFile + "," + p.KeyFile
	if len(p.Names) > 0 {
		text += ":" + strings.Join(p.Names, ",")
	}
	return text
}

// Type implements pflag.Value.
func (p *Pair) Type() string { return "namedCertKey" }

// ServingCertificates holds the serving certificates of a server, among which the name that a client
// asks for (SNI) selects one. They are reloaded when their files change; open
// connections keep the old ones.
type ServingCertificates struct {
	// fallback returns the default certificate if that is not in files.
	fallback func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	pairs    []servingPair // the default one first, if it is in files

	mu      sync.Mutex // one load at a time
	current atomic.Pointer[certificateSet]
}

type servingPair struct {
	Pair
	files *filewatch.Files
	cert  *tls.Certificate
}

// certificateSet is an immutable snapshot of the certificates.
type certificateSet struct {
	main   *tls.Certificate // the default certificate; nil: fallback
	byName map[string]*tls.Certificate
	all    []*tls.Certificate // in the order of the flags
}

// OpenServingCertificates reads the serving certificates of a server. The default one is main, or that of
// fallback if main has no files.
func OpenServingCertificates(fallback func(*tls.ClientHelloInfo) (*tls.Certificate, error), main Pair, sni ...Pair) (*ServingCertificates, error) {
	s := &ServingCertificates{fallback: fallback}
	if main.CertFile != "" || main.KeyFile != "" {
		s.fallback = nil
		main.Names = nil
		if err := s.add(main); err != nil {
			return nil, err
		}
	}
	for _, pair := range sni {
		if err := s.add(pair); err != nil {
			return nil, fmt.Errorf("failed to load SNI cert and key: %w", err)
		}
	}
	s.rebuild()
	return s, nil
}

func (s *ServingCertificates) add(pair Pair) error {
	if pair.CertFile == "" || pair.KeyFile == "" {
		return errors.New("missing filename for serving cert")
	}
	files, err := filewatch.Read(pair.CertFile, pair.KeyFile)
	if err != nil {
		return err
	}
	cert, err := parsePair(files.Contents())
	if err != nil {
		return fmt.Errorf("%s: %w", pair.CertFile, err)
	}
	s.pairs = append(s.pairs, servingPair{pair, files, cert})
	return nil
}

func parsePair(contents [][]byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("invalid serving cert keypair: %w", err)
	}
	return &cert, nil
}

// rebuild builds the snapshot from the pairs. Given names take precedence over those in
// certificates, and earlier pairs over later ones.
func (s *ServingCertificates) rebuild() {
	c := &certificateSet{byName: map[string]*tls.Certificate{}}
	sni := s.pairs
	if s.fallback == nil {
		c.main, sni = sni[0].cert, sni[1:]
		c.all = append(c.all, c.main)
	}
	given := map[string]*tls.Certificate{}
	for _, pair := range slices.Backward(sni) {
		for _, name := range pair.Names {
			given[name] = pair.cert
		}
		if len(pair.Names) == 0 {
			for _, name := range certificateNames(pair.cert.Leaf) {
				c.byName[name] = pair.cert
			}
		}
	}
	for name, cert := range given {
		c.byName[name] = cert
	}
	for _, pair := range sni {
		c.all = append(c.all, pair.cert)
	}
	s.current.Store(c)
}

// certificateNames returns the host names of a certificate. Addresses are left out:
// clients do not send them as a server name.
func certificateNames(cert *x509.Certificate) []string {
	name := cert.Subject.CommonName
	if net.ParseIP(name) == nil && (name == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) == 0) {
		return append([]string{name}, cert.DNSNames...)
	}
	return cert.DNSNames
}

// Certificate selects the certificate for a client; it is a GetCertificate for
// tls.Config.
func (s *ServingCertificates) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.current.Load()
	main := c.main
	if len(c.byName) > 0 {
		if cert := c.byServerName(hello); cert != nil {
			return cert, nil
		}
	} else if main != nil {
		return main, nil
	}
	if main == nil {
		var err error
		if main, err = s.fallback(hello); err != nil || len(c.all) == 0 || hello.SupportsCertificate(main) == nil {
			return main, err
		}
	}
	for _, cert := range c.all {
		if hello.SupportsCertificate(cert) == nil {
			return cert, nil
		}
	}
	return main, nil
}

// byServerName returns the certificate for the server name of a client, or for the address
// that it connected to if it sends none.
func (c *certificateSet) byServerName(hello *tls.ClientHelloInfo) *tls.Certificate {
	if hello.ServerName == "" {
		if hello.Conn == nil {
			return nil
		}
		host, _, _ := net.SplitHostPort(hello.Conn.LocalAddr().String())
		return c.byName[host]
	}
	name := strings.ToLower(hello.ServerName)
	if cert := c.byName[name]; cert != nil {
		return cert
	}
	wild := "*"
	if _, domain, found := strings.Cut(name, "."); found {
		wild += "." + domain
	}
	return c.byName[wild]
}

// Watch reloads files when they change, until ctx ends. A certificate that does not
// match its key, because only one of the files has been replaced yet, is not used.
func (s *ServingCertificates) Watch(ctx context.Context, logger *slog.Logger) {
	var watching sync.WaitGroup
	for i := range s.pairs {
		watching.Go(func() {
			s.pairs[i].files.Watch(ctx, logger, func(contents [][]byte) error {
				cert, err := parsePair(contents)
				if err != nil {
					return err
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				s.pairs[i].cert = cert
				s.rebuild()
				return nil
			})
		})
	}
	watching.Wait()
}
