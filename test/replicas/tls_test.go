package replicas

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/pki"
)

// clientConfig returns the configuration of clients of etcd, nil without TLS.
func (f tlsFiles) clientConfig() (*tls.Config, error) {
	if f == (tlsFiles{}) {
		return nil, nil
	}
	return transport.TLSInfo{TrustedCAFile: f.CA, CertFile: f.Client, KeyFile: f.Client}.ClientConfig()
}

// renew writes another certificate of an authority, for members and for servers.
func (f tlsFiles) renew(t testing.TB, authority *pki.Authority) {
	t.Helper()
	pair, err := authority.ServerPair(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	client, err := authority.IssueClient("server")
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "client.pem")
	if err := os.WriteFile(bundle, client, 0o600); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{pair.CertFile: f.Cert, pair.KeyFile: f.Key, bundle: f.Client} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to+".new", content, 0o600)
		}
		if err == nil {
			err = os.Rename(to+".new", to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// shown returns the certificate that a member shows now.
func (f *fleet) shown(t testing.TB, member int) []byte {
	t.Helper()
	config, err := f.tls.clientConfig()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", f.direct[member].addr(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Raw
}

// TestTLSRenewal has TLS between servers and etcd, with client certificates, and replaces
// all certificates while clients work; then all connections are made anew.
func TestTLSRenewal(t *testing.T) {
	if !testsize.Long() {
		t.Skip("takes long; set KELSON_LONG=1 to run it")
	}
	authority, err := pki.New("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := tlsFiles{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), Client: filepath.Join(dir, "client.pem")}
	if err := os.WriteFile(files.CA, authority.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	files.renew(t, authority)
	f := newFleet(t, func(f *fleet) { f.tls = files })
	before := f.shown(t, 0)
	f.disturb(fault{name: "certificates-renewed", lasts: 3 * time.Second, begin: func(f *fleet) (func(), []int) {
		files.renew(t, authority)
		for i := range size {
			for j := range size {
				f.links[i][j].reset()
			}
		}
		return func() {}, nil
	}}, startProbes(f))
	if bytes.Equal(f.shown(t, 0), before) {
		t.Error("a member shows the old certificate, want the new one")
	}
}
