package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apikeel/kelson/internal/polltest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestPairFlag(t *testing.T) {
	tests := []struct {
		value string
		want  Pair
		err   string
	}{
		{"foo.crt,foo.key", Pair{CertFile: "foo.crt", KeyFile: "foo.key"}, ""},
		{" foo.crt , foo.key ", Pair{CertFile: "foo.crt", KeyFile: "foo.key"}, ""},
		{"foo.crt,foo.key:bar.com", Pair{"foo.crt", "foo.key", []string{"bar.com"}}, ""},
		{"foo.crt,foo.key: *.bar.com , bar.com,::1", Pair{"foo.crt", "foo.key", []string{"*.bar.com", "bar.com", "::1"}}, ""},
		{"foo.crt", Pair{}, "expected comma separated certificate and key file paths"},
		{"a,b,c", Pair{}, "expected comma separated certificate and key file paths"},
		{"foo.crt,foo.key: ", Pair{}, "empty names list is not allowed"},
		{"", Pair{}, "expected comma separated certificate and key file paths"},
	}
	for _, tt := range tests {
		var p Pair
		switch err := p.Set(tt.value); {
		case err != nil:
			if err.Error() != tt.err {
				t.Errorf("%q: %v", tt.value, err)
			}
		case tt.err != "" || !reflect.DeepEqual(p, tt.want):
			t.Errorf("%q: got %+v, want %+v, %s", tt.value, p, tt.want, tt.err)
		default:
			again := Pair{}
			if err := again.Set(p.String()); err != nil || !reflect.DeepEqual(again, p) {
				t.Errorf("%q: %q becomes %+v, %v", tt.value, p.String(), again, err)
			}
		}
	}
}

// writePair writes a certificate that names the test by its organization.
func writePair(t *testing.T, a *Authority, dir, mark, commonName string, hosts ...string) Pair {
	t.Helper()
	content, err := a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: commonName, Organization: []string{mark}}, DNSNames: serverNamesOnly(hosts).dns, IPAddresses: serverNamesOnly(hosts).ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Fatal(err)
	}
	split := strings.Index(string(content), "-----BEGIN PRIVATE")
	p := Pair{CertFile: filepath.Join(dir, mark+".crt"), KeyFile: filepath.Join(dir, mark+".key")}
	for file, part := range map[string][]byte{p.CertFile: content[:split], p.KeyFile: content[split:]} {
		if err := writeFile(file, part, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func serverNamesOnly(hosts []string) (n names) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			n.ips = append(n.ips, ip)
		} else {
			n.dns = append(n.dns, host)
		}
	}
	return n
}

// serve accepts handshakes until the test ends.
func serve(t *testing.T, s *ServingCertificates) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: s.Certificate})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.(*tls.Conn).Handshake()
			}()
		}
	}()
	return l.Addr().String()
}

// shownTo returns the mark of the certificate that a client sees.
func shownTo(t *testing.T, addr, serverName string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	subject := conn.ConnectionState().PeerCertificates[0].Subject
	if len(subject.Organization) == 0 {
		return subject.CommonName
	}
	return subject.Organization[0]
}

func TestSNI(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	pair := func(mark, cn string, hosts ...string) Pair { return writePair(t, a, dir, mark, cn, hosts...) }
	named := func(p Pair, names ...string) Pair { p.Names = names; return p }
	main := pair("main", "main", "main.com")
	tests := []struct {
		name string
		main Pair
		sni  []Pair
		want map[string]string // by server name
	}{
		{"only one", main, nil, map[string]string{"": "main", "main.com": "main", "x.com": "main"}},
		{"own", Pair{}, nil, map[string]string{"": "kube-apiserver", "localhost": "kube-apiserver", "x.com": "kube-apiserver"}},
		{"names of the certificate", main, []Pair{pair("foo", "cn.com", "foo.com", "*.foo.com")}, map[string]string{
			"": "main", "main.com": "main", "foo.com": "foo", "FOO.com": "foo", "a.foo.com": "foo", "a.b.foo.com": "main", "cn.com": "foo", "x.com": "main"}},
		{"given names", main, []Pair{named(pair("a", "a", "other.com"), "a.com", "*.a.com", "*")}, map[string]string{
			"a.com": "a", "b.a.com": "a", "single": "a", "a": "a",
			// Nobody has a better one.
			"other.com": "a", "x.com": "main"}},
		{"the first wins", main, []Pair{pair("one", "x", "same.com"), pair("two", "y", "same.com")}, map[string]string{"same.com": "one"}},
		{"given goes before found", main, []Pair{pair("found", "x", "same.com"), named(pair("given", "y", "z.com"), "same.com")}, map[string]string{"same.com": "given"}},
		{"exact goes before wildcard", main, []Pair{named(pair("wild", "x"), "*.b.com"), pair("exact", "y", "a.b.com")}, map[string]string{"a.b.com": "exact", "c.b.com": "wild"}},
		{"address", main, []Pair{named(pair("ip", "x"), "127.0.0.1"), pair("cn", "127.0.0.1", "127.0.0.1")}, map[string]string{"": "ip", "x.com": "main"}},
		{"addresses in certificates do not count", main, []Pair{pair("cn2", "127.0.0.1", "127.0.0.1")}, map[string]string{"": "main"}},
		{"own, and others", Pair{}, []Pair{pair("foo2", "x", "foo.com")}, map[string]string{"": "kube-apiserver", "localhost": "kube-apiserver", "foo.com": "foo2", "x.com": "kube-apiserver"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := OpenServingCertificates(a.ServerCertificate, tt.main, tt.sni...)
			if err != nil {
				t.Fatal(err)
			}
			addr := serve(t, s)
			for name, want := range tt.want {
				if got := shownTo(t, addr, name); got != want {
					t.Errorf("%q sees %s, want %s", name, got, want)
				}
			}
		})
	}
}

func TestShownErrors(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	good, other := writePair(t, a, dir, "good", "a"), writePair(t, a, dir, "other", "b")
	tests := []struct {
		main Pair
		sni  []Pair
		want string
	}{
		{Pair{CertFile: good.CertFile}, nil, "missing filename for serving cert"},
		{Pair{CertFile: good.CertFile, KeyFile: filepath.Join(dir, "none")}, nil, "no such file"},
		{Pair{CertFile: good.CertFile, KeyFile: other.KeyFile}, nil, "invalid serving cert keypair: tls: private key does not match public key"},
		{good, []Pair{{CertFile: good.KeyFile, KeyFile: good.KeyFile}}, "failed to load SNI cert and key: "},
	}
	for _, tt := range tests {
		if _, err := OpenServingCertificates(nil, tt.main, tt.sni...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}

func TestReload(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	main, sni := writePair(t, a, dir, "main", "m"), writePair(t, a, dir, "sni", "s", "sni.com")
	s, err := OpenServingCertificates(nil, main, sni)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); s.Watch(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-watched }()
	addr := serve(t, s)

	replace := func(p Pair, by Pair) {
		t.Helper()
		for from, to := range map[string]string{by.CertFile: p.CertFile, by.KeyFile: p.KeyFile} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	replace(main, writePair(t, a, dir, "main2", "m"))
	polltest.Until(t, "the default certificate", func() bool { return shownTo(t, addr, "") == "main2" })
	replace(sni, writePair(t, a, dir, "sni2", "s", "new.com"))
	polltest.Until(t, "a named certificate", func() bool { return shownTo(t, addr, "new.com") == "sni2" })

	// A key that does not fit is not used, nor is what cannot be read.
	half := writePair(t, a, dir, "main3", "m")
	if err := os.Rename(half.KeyFile, main.KeyFile); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(sni.CertFile); err != nil {
		t.Fatal(err)
	}
	replace(sni, writePair(t, a, dir, "sni3", "s", "new.com"))
	polltest.Until(t, "a named certificate", func() bool { return shownTo(t, addr, "new.com") == "sni3" })
	if got := shownTo(t, addr, ""); got != "main2" {
		t.Errorf("half a pair is used: %s", got)
	}
	if err := os.Rename(half.CertFile, main.CertFile); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the other half", func() bool { return shownTo(t, addr, "") == "main3" })
}

func TestBundle(t *testing.T) {
	authorities := make([]*Authority, 3)
	for i := range authorities {
		var err error
		if authorities[i], err = New(); err != nil {
			t.Fatal(err)
		}
	}
	base, first, second := authorities[0], authorities[1], authorities[2]
	trusted := func(b *Bundle, a *Authority) bool {
		_, err := a.AdminCertificate().Leaf.Verify(x509.VerifyOptions{Roots: b.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err == nil
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := writeFile(file, first.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBundle(base.CertificatePEM(), file)
	if err != nil {
		t.Fatal(err)
	}
	if !trusted(b, base) || !trusted(b, first) || trusted(b, second) {
		t.Error("not those that were given")
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); b.Watch(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-watched }()
	if err := writeFile(file, append(first.CertificatePEM(), second.CertificatePEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "another authority", func() bool { return trusted(b, second) })
	if err := writeFile(file, second.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the end of one", func() bool { return !trusted(b, first) })

	for _, content := range []string{"", "nothing"} {
		if err := writeFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenBundle(nil, file); err == nil {
			t.Errorf("%q is a bundle", content)
		}
	}
	if !trusted(b, second) {
		t.Error("what cannot be read has replaced what could")
	}
}

func TestServerPair(t *testing.T) {
	a, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "certs")
	p, err := a.ServerPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(p.CertFile)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(first)
	pair, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
		t.Errorf("who trusts the file does not trust the server: %v", err)
	}
	if _, err := a.ServerPair(dir); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(p.CertFile); string(again) != string(first) {
		t.Error("a good certificate is replaced")
	}

	// One that lacks a name is, unless it is somebody else's.
	a.names.dns = append(a.names.dns, "new.com")
	if _, err := a.ServerPair(dir); err != nil {
		t.Fatal(err)
	}
	second, _ := os.ReadFile(p.CertFile)
	if string(second) == string(first) {
		t.Error("the certificate lacks a name")
	}
	other, err := New()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.ServerPair(dir); err != nil {
		t.Fatal(err)
	}
	if kept, _ := os.ReadFile(p.CertFile); string(kept) != string(second) {
		t.Error("a certificate of somebody else is replaced")
	}
	if err := os.Remove(p.KeyFile); err != nil {
		t.Fatal(err)
	}
	if _, err := a.ServerPair(dir); err == nil || !strings.Contains(err.Error(), "must be supplied as a pair") {
		t.Errorf("got %v", err)
	}
}

// A kubeconfig for a server with a certificate that somebody else has issued.
func TestKubeconfigTrusts(t *testing.T) {
	own, other := open(t, t.TempDir()), open(t, t.TempDir())
	p, err := other.ServerPair(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	s, err := OpenServingCertificates(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, s)
	for name, trusted := range map[string][]byte{"issuer": other.CertificatePEM(), "certificate": encodeCert(leaf.Certificate[0])} {
		content, err := own.Kubeconfig("https://"+addr, trusted)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.RESTConfigFromKubeConfig(content)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(config.CAData)
		conn, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		conn.Close()
	}
}
