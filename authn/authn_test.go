package authn

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/request"
)

// authority issues certificates of every kind.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return &authority{sign(t, template, template, key.Public(), key), key}
}

func sign(t testing.TB, template, parent *x509.Certificate, public crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue makes a certificate for clients, changed as a test wants it.
func (a *authority) issue(t testing.TB, subject pkix.Name, change ...func(*x509.Certificate)) *tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, f := range change {
		f(template)
	}
	key := newKey(t)
	cert := sign(t, template, a.cert, key.Public(), a.key)
	return &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// intermediate makes an authority below this one.
func (a *authority) intermediate(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return &authority{sign(t, template, a.cert, key.Public(), a.key), key}
}

func uidName(values ...string) pkix.Name {
	name := pkix.Name{CommonName: "jane", Organization: []string{"dev"}}
	for _, v := range values {
		name.ExtraNames = append(name.ExtraNames, pkix.AttributeTypeAndValue{Type: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}, Value: v})
	}
	return name
}

func writeFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	rewrite(t, path, data)
	return path
}

func rewrite(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func newStage(t testing.TB, c Config) *Stage {
	t.Helper()
	s, err := c.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// answer is what the test server tells of a request.
type answer struct {
	User   *request.User
	Err    string
	Header http.Header // as the next stage sees it
}

// serve runs a stage behind a real TLS server.
func serve(t testing.TB, s *Stage) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var a answer
		id, err := s.Authenticate(r)
		if err != nil {
			a.Err = err.Error()
		} else if id != nil {
			a.User = &id.User
		}
		s.Strip(r.Header)
		a.Header = r.Header
		_ = json.NewEncoder(w).Encode(a)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return WithConnection(ctx) }
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// client returns one that shows a certificate, or none.
func client(t testing.TB, server *httptest.Server, cert *tls.Certificate) *http.Client {
	t.Helper()
	transport := server.Client().Transport.(*http.Transport).Clone()
	if cert != nil {
		// Whatever authorities the server names.
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func ask(t testing.TB, c *http.Client, url string, header http.Header) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return a
}

// fakeObjects are the live objects that tokens are about.
type fakeObjects struct {
	mu    sync.Mutex
	byKey map[string]metav1.Object
	err   error // of every read
}

func (o *fakeObjects) set(resource string, obj metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.byKey == nil {
		o.byKey = map[string]metav1.Object{}
	}
	o.byKey[resource+"/"+obj.GetNamespace()+"/"+obj.GetName()] = obj
}

func (o *fakeObjects) get(resource, namespace, name string) (metav1.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	if obj := o.byKey[resource+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
}

func (o *fakeObjects) ServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	obj, err := o.get("serviceaccounts", namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.ServiceAccount), nil
}

func (o *fakeObjects) Secret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := o.get("secrets", namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}

func (o *fakeObjects) Pod(_ context.Context, namespace, name string) (metav1.Object, error) {
	return o.get("pods", namespace, name)
}

func (o *fakeObjects) Node(_ context.Context, name string) (metav1.Object, error) {
	return o.get("nodes", "", name)
}

func (o *fakeObjects) WebhookConfiguration(_ context.Context, resource, name string) (metav1.Object, error) {
	return o.get(resource, "", name)
}

func (o *fakeObjects) Exists(_ context.Context, ref serviceaccount.Reference) bool {
	_, err := o.get(ref.Resource, ref.Namespace, ref.Name)
	return err == nil
}

func (o *fakeObjects) remove(resource, namespace, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.byKey, resource+"/"+namespace+"/"+name)
}

func (o *fakeObjects) LabelSecret(context.Context, string, string, types.UID, string, string) error {
	return nil
}

// logs collects what is logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
