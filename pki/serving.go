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

// Pair is the files of a certificate and its key. Names are the host names that
// it is for, if they are not to be taken from the certificate: with "*" for the
// first label, or IP addresses. It is a value for flags:
// "foo.crt,foo.key:*.foo.com,foo.com".
type Pair struct {
	CertFile, KeyFile string
	Names             []string
}

// Set reads the value of a flag.
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

// Type is how flags call such a value.
func (p *Pair) Type() string { return "namedCertKey" }

// Shown is the certificates that a server shows, of which the client's wish
// picks one. They are read again when their files change; connections that are
// open keep the old ones.
type Shown struct {
	// fallback makes the certificate for which there is no file.
	fallback func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	pairs    []shownPair // the default one first, if it is in files

	mu      sync.Mutex // one loads at a time
	current atomic.Pointer[choice]
}

type shownPair struct {
	Pair
	files *filewatch.Files
	cert  *tls.Certificate
}

// choice is what to choose from. It is never changed.
type choice struct {
	main   *tls.Certificate // nil: the fallback
	byName map[string]*tls.Certificate
	all    []*tls.Certificate // in the order of the flags
}

// Show reads the certificates of a server. The default one is that of main, or
// what fallback makes if main has no files.
func Show(fallback func(*tls.ClientHelloInfo) (*tls.Certificate, error), main Pair, sni ...Pair) (*Shown, error) {
	s := &Shown{fallback: fallback}
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
	s.choose()
	return s, nil
}

func (s *Shown) add(pair Pair) error {
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
	s.pairs = append(s.pairs, shownPair{pair, files, cert})
	return nil
}

func parsePair(contents [][]byte) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, fmt.Errorf("invalid serving cert keypair: %w", err)
	}
	return &cert, nil
}

// choose makes the choice from the pairs. Names that were given go before those
// that certificates have, and earlier pairs before later ones.
func (s *Shown) choose() {
	c := &choice{byName: map[string]*tls.Certificate{}}
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

// certificateNames are the host names that a certificate is for. Addresses are
// not among them: clients do not ask for a certificate by address.
func certificateNames(cert *x509.Certificate) []string {
	name := cert.Subject.CommonName
	if net.ParseIP(name) == nil && (name == "*" || len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) == 0) {
		return append([]string{name}, cert.DNSNames...)
	}
	return cert.DNSNames
}

// Certificate picks one for a client; it is a GetCertificate for a tls.Config.
func (s *Shown) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := s.current.Load()
	main := c.main
	if len(c.byName) > 0 {
		if cert := c.named(hello); cert != nil {
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

// named returns the certificate for the name that a client gives, or for the
// address that it has connected to if it gives none.
func (c *choice) named(hello *tls.ClientHelloInfo) *tls.Certificate {
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

// Watch reads files again when they change, until ctx ends. A certificate that
// does not fit its key, since only one of them has been replaced yet, is not
// used.
func (s *Shown) Watch(ctx context.Context, logger *slog.Logger) {
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
				s.choose()
				return nil
			})
		})
	}
	watching.Wait()
}
