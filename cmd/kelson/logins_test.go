//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/pki"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
)

// files writes files into a folder of the test.
func files(t *testing.T, contents map[string]string) func(name string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range contents {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return filepath.Join(dir, name) }
}

// selfSigned makes a certificate for a name, and its key.
func selfSigned(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

// shows returns the certificate that a server shows to who asks for a name.
func shows(t *testing.T, host, name string) *x509.Certificate {
	t.Helper()
	address, err := url.Parse(host)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", address.Host, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0]
}

// withToken is a client of the same server with a token.
func (c *client) withToken(token string) *client {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	return clientFor(c.t, config)
}

// whoami returns the user that the server takes the client for.
func (c *client) whoami() string {
	c.t.Helper()
	code, text := c.do(http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	var review authenticationv1.SelfSubjectReview
	if err := json.Unmarshal([]byte(text), &review); err != nil || code != http.StatusCreated {
		return fmt.Sprint(code)
	}
	return fmt.Sprint(review.Status.UserInfo.Username, review.Status.UserInfo.Groups)
}

// may asks what kubectl auth can-i asks.
func (c *client) may(verb, resource string) bool {
	c.t.Helper()
	code, text := c.do(http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", fmt.Sprintf(
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"namespace":"default","verb":%q,"resource":%q}}}`, verb, resource))
	if code != http.StatusCreated {
		c.t.Errorf("can-i %s %s: %d, %s", verb, resource, code, text)
	}
	return strings.Contains(text, `"allowed":true`)
}

// makes creates an object, as one may.
func (c *client) makes(path, object string) string {
	c.t.Helper()
	code, text := c.do(http.MethodPost, path, object)
	if code != http.StatusCreated {
		c.t.Fatalf("POST %s: %d, %s", path, code, text)
	}
	return text
}

// TestLogins has a server with all that people bring along for authentication,
// and an audit log.
func TestLogins(t *testing.T) {
	t.Parallel()
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	sniCert, sniKey := selfSigned(t, "sni.example.com")
	in := files(t, map[string]string{
		"tokens":  "t0ken,tina,7,\"readers,others\"\n",
		"ca.crt":  string(authority.CertificatePEM()),
		"sni.crt": sniCert, "sni.key": sniKey,
		"policy": "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n  users: [tina]\n",
	})
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "serve", "--data-dir", dir, "--token-auth-file", in("tokens"), "--client-ca-file", in("ca.crt"),
		"--audit-policy-file", in("policy"), "--audit-log-path", in("audit.log"), "--runtime-config", "apps/v1beta1=true,batch/v1=false",
		"--tls-sni-cert-key", in("sni.crt")+","+in("sni.key"), "--external-hostname", "kube.example.com", "--advertise-address", "192.0.2.7",
		"--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged=false", "--strict-transport-security-directives", "max-age=9")
	admin := newClient(t, controlplane.KubeconfigFile(dir))
	admin.ready()

	tina := admin.withToken("t0ken")
	if got := tina.whoami(); got != "tina[readers others system:authenticated]" {
		t.Errorf("with a token one is %s", got)
	}
	if got := admin.withToken("wrong").whoami(); got != "401" {
		t.Errorf("with a wrong token one is %s", got)
	}
	pair, err := authority.IssueClient("carl", "readers")
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin.config)
	config.CertData, config.KeyData = pair, pair
	carl := clientFor(t, config)
	if got := carl.whoami(); got != "carl[readers system:authenticated]" {
		t.Errorf("with a certificate one is %s", got)
	}

	if tina.may("list", "configmaps") || !admin.may("list", "configmaps") {
		t.Error("a reader may read before it is allowed, or the administrator may not")
	}
	const rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/"
	admin.makes(rbac+"roles", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"read"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`)
	admin.makes(rbac+"rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"read"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"read"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"readers"}]}`)
	for _, c := range []*client{tina, carl} {
		if !c.may("list", "configmaps") || c.may("delete", "configmaps") {
			t.Errorf("%s may not read, or more", c.whoami())
		}
		c.get("/api/v1/namespaces/default/configmaps")
	}

	admin.makes("/api/v1/namespaces/default/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sam"}}`)
	var request authenticationv1.TokenRequest
	text := admin.makes("/api/v1/namespaces/default/serviceaccounts/sam/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
	if err := json.Unmarshal([]byte(text), &request); err != nil {
		t.Fatal(err)
	}
	if got := admin.withToken(request.Status.Token).whoami(); got != "system:serviceaccount:default:sam[system:serviceaccounts system:serviceaccounts:default system:authenticated]" {
		t.Errorf("with the token of a service account one is %s", got)
	}

	// What is served, and what is not.
	if text := admin.get("/apis/apps/v1beta1"); !strings.Contains(text, `"deployments"`) {
		t.Errorf("apps/v1beta1 has %s", text)
	}
	if code, _ := admin.do(http.MethodGet, "/apis/batch/v1", ""); code != http.StatusNotFound {
		t.Errorf("batch/v1 is switched off, but %d", code)
	}
	code, text := admin.do(http.MethodPost, "/api/v1/namespaces/default/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]}}`)
	if code != http.StatusUnprocessableEntity || !strings.Contains(text, "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy") {
		t.Errorf("a privileged pod: %d, %s", code, text)
	}

	if got := shows(t, admin.config.Host, "sni.example.com").Subject.CommonName; got != "sni.example.com" {
		t.Errorf("who asks for sni.example.com sees %s", got)
	}
	own := shows(t, admin.config.Host, "")
	for _, name := range []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kube.example.com", "192.0.2.7", "10.96.0.1", "127.0.0.1"} {
		if err := own.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if got := admin.open(http.MethodGet, "/version", "").Header.Get("Strict-Transport-Security"); got != "max-age=9" {
		t.Errorf("browsers are told %q", got)
	}

	// The wrong token is in its log.
	if code := s.end(syscall.SIGTERM); code != exitOK || !strings.Contains(s.log.String(), "invalid bearer token") {
		t.Errorf("after SIGTERM it ended with %d: %s", code, s.log.String())
	}
	log := read(t, in("audit.log"))
	if !strings.Contains(log, `"requestURI":"/api/v1/namespaces/default/configmaps"`) || !strings.Contains(log, `"username":"tina"`) || strings.Contains(log, `"username":"carl"`) {
		t.Errorf("the audit log has %s", log)
	}
}

// TestNobody has a server that wants to know everyone, and then allows
// everything. What it shows is somebody else's certificate for another name.
func TestNobody(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t, "api.example.com")
	in := files(t, map[string]string{"tokens": "t0ken,tina,7\n", "tls.crt": cert, "tls.key": key})
	dir, file := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "it's my", "kubeconfig")
	s := serve(t, "serve", "--data-dir", dir, "--write-kubeconfig", file, "--anonymous-auth=false", "--authorization-mode", "AlwaysAllow",
		"--token-auth-file", in("tokens"), "--tls-cert-file", in("tls.crt"), "--tls-private-key-file", in("tls.key"))
	if want := "--kubeconfig '" + strings.ReplaceAll(file, "'", `'\''`) + "' get"; !strings.Contains(s.out, want) {
		t.Errorf("server says %q, without %s", s.out, want)
	}
	admin := newClient(t, file)
	admin.ready()
	if got := shows(t, admin.config.Host, "").Subject.CommonName; got != "api.example.com" {
		t.Errorf("it shows a certificate for %s", got)
	}
	nobody := clientFor(t, rest.AnonymousClientConfig(admin.config))
	for _, path := range []string{"/readyz", "/version", "/api/v1/namespaces"} {
		if code, text := nobody.do(http.MethodGet, path, ""); code != http.StatusUnauthorized {
			t.Errorf("GET %s without a credential: %d, %s", path, code, text)
		}
	}
	admin.withToken("t0ken").get("/api/v1/secrets")
	if r := kelson(t, "kubeconfig", "--data-dir", dir); r.code != exitOK || r.out != read(t, file) || !strings.Contains(r.err, file) {
		t.Errorf("kelson kubeconfig: %+v", r)
	}
	s.stop(t)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if r := kelson(t, "kubeconfig", "--data-dir", dir); r.code != exitError || !strings.Contains(r.err, "was written to "+file) {
		t.Errorf("kelson kubeconfig: %+v", r)
	}
	// The next one writes it to the usual place again.
	s = serve(t, "serve", "--data-dir", dir)
	newClient(t, controlplane.KubeconfigFile(dir)).ready()
	if r := kelson(t, "kubeconfig", "--data-dir", dir); r.code != exitOK || r.err != "" || r.out != read(t, controlplane.KubeconfigFile(dir)) {
		t.Errorf("kelson kubeconfig: %+v", r)
	}
	s.stop(t)
}
