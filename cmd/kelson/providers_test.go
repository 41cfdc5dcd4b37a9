//go:build unix

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/apikeel/kelson/authn/serviceaccount/external/externaltest"
	"github.com/apikeel/kelson/controlplane"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// provider is an OpenID Connect provider.
type provider struct {
	*httptest.Server
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{t: t, key: key}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/keys" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
	}))
	t.Cleanup(p.Close)
	return p
}

// token makes one for a client, with what else it should say.
func (p *provider) token(audience, subject string, more map[string]any) string {
	p.t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: p.URL, Audience: jwt.Audience{audience}, Subject: subject, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Claims(more).Serialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// authorityOf is the certificate of a server, which has signed itself.
func authorityOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// reviewer is a service that knows the token "hooked", and lets its user read
// secrets. asked is told what it has to decide on.
func reviewer(t *testing.T, asked chan<- string) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/who") {
			var review authenticationv1.TokenReview
			_ = json.NewDecoder(r.Body).Decode(&review)
			if review.Spec.Token == "hooked" {
				review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "hugo", Groups: []string{"hooked"}}}
			}
			_ = json.NewEncoder(w).Encode(&review)
			return
		}
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		if a := review.Spec.ResourceAttributes; a != nil {
			select {
			case asked <- review.Spec.User + " " + a.Verb + " " + a.Resource:
			default:
			}
			review.Status.Allowed = review.Spec.User == "hugo" && a.Resource == "secrets"
			review.Status.Denied = a.Resource == "pods"
			review.Status.Reason = "the service says so"
		}
		_ = json.NewEncoder(w).Encode(&review)
	}))
	t.Cleanup(s.Close)
	return s
}

// newProxy is a proxy that counts for what connections it is asked.
func newProxy(t *testing.T, asked *atomic.Int64) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := net.Dial("tcp", r.Host)
		if r.Method != http.MethodConnect || err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer to.Close()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		asked.Add(1)
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(to, conn)
			to.Close()
		}()
		_, _ = io.Copy(conn, to)
	}))
	t.Cleanup(s.Close)
	return s
}

// hookConfig is the kubeconfig of a path of a service.
func hookConfig(s *httptest.Server, path string) string {
	config, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "s"}}},
		"clusters": []any{map[string]any{"name": "s", "cluster": map[string]any{"server": s.URL + path, "certificate-authority-data": []byte(authorityOf(s))}}},
	})
	return string(config)
}

// becomes waits until a client is somebody.
func (c *client) becomes(who string) {
	c.t.Helper()
	got := ""
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		if got = c.whoami(); got == who {
			return
		}
	}
	c.t.Fatalf("one stays %s, and does not become %s", got, who)
}

// TestProviders has a server whose flags name a provider, services that decide,
// and one that signs.
func TestProviders(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	oidc, hooks, signer := newProvider(t), reviewer(t, asked), externaltest.Start(t)
	in := files(t, map[string]string{
		"oidc.crt": authorityOf(oidc.Server), "who": hookConfig(hooks, "/who"), "may": hookConfig(hooks, "/may"),
	})
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "serve", "--data-dir", dir, "--storage", "memory",
		"--oidc-issuer-url", oidc.URL, "--oidc-client-id", "kelson", "--oidc-ca-file", in("oidc.crt"), "--oidc-username-claim", "email", "--oidc-groups-claim", "teams",
		"--oidc-groups-prefix", "oidc:", "--oidc-signing-algs", "ES256", "--oidc-required-claim", "plan=gold",
		"--authentication-token-webhook-config-file", in("who"), "--authentication-token-webhook-version", "v1",
		"--authorization-mode", "Node,RBAC,Webhook", "--authorization-webhook-config-file", in("may"), "--authorization-webhook-version", "v1",
		"--service-account-signing-endpoint", signer.Socket)
	admin := newClient(t, controlplane.KubeconfigFile(dir))
	admin.ready()

	claims := map[string]any{"email": "ann@example.com", "email_verified": true, "teams": []string{"dev"}, "plan": "gold"}
	admin.withToken(oidc.token("kelson", "1", claims)).becomes("ann@example.com[oidc:dev system:authenticated]")
	if got := admin.withToken(oidc.token("other", "1", claims)).whoami(); got != "401" {
		t.Errorf("with a token for somebody else one is %s", got)
	}
	claims["plan"] = "tin"
	if got := admin.withToken(oidc.token("kelson", "1", claims)).whoami(); got != "401" {
		t.Errorf("without what tokens must say one is %s", got)
	}

	hugo := admin.withToken("hooked")
	if got := hugo.whoami(); got != "hugo[hooked system:authenticated]" {
		t.Errorf("with a token that the service knows one is %s", got)
	}
	if !hugo.may("list", "secrets") || hugo.may("list", "configmaps") || hugo.may("list", "pods") {
		t.Error("the service is not asked what one may do")
	}
	hugo.get("/api/v1/namespaces/default/secrets")
	if code, text := hugo.do(http.MethodGet, "/api/v1/namespaces/default/pods", ""); code != http.StatusForbidden || !strings.Contains(text, "the service says so") {
		t.Errorf("%d %s", code, text)
	}

	admin.makes("/api/v1/namespaces/default/serviceaccounts", `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sam"}}`)
	token := func() string {
		t.Helper()
		var request authenticationv1.TokenRequest
		text := admin.makes("/api/v1/namespaces/default/serviceaccounts/sam/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`)
		if err := json.Unmarshal([]byte(text), &request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	const sam = "system:serviceaccount:default:sam[system:serviceaccounts system:serviceaccounts:default system:authenticated]"
	old := token()
	if got := admin.withToken(old).whoami(); got != sam {
		t.Errorf("with a token that was signed elsewhere one is %s", got)
	}
	signer.Rotate(t, "second")
	for _, token := range []string{old, token()} {
		if got := admin.withToken(token).whoami(); got != sam {
			t.Errorf("with another key one is %s", got)
		}
	}
	if keys := admin.get("/openid/v1/jwks"); !strings.Contains(keys, `"kid":"first"`) || !strings.Contains(keys, `"kid":"second"`) {
		t.Errorf("keys: %s", keys)
	}
	if code := s.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("it ended with %d: %s", code, s.log.String())
	}
}

// TestStructuredFiles has a server with a file for who is known, which changes,
// one for who decides, and one for the proxies by which all are reached.
func TestStructuredFiles(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 1000)
	oidc, hooks := newProvider(t), reviewer(t, asked)
	var toCluster, toControlPlane atomic.Int64
	way := func(name string, asked *atomic.Int64) string {
		return fmt.Sprintf(`{"name":%q,"connection":{"proxyProtocol":"HTTPConnect","transport":{"tcp":{"url":%q}}}}`, name, newProxy(t, asked).URL)
	}
	who := func(prefix string) string {
		return fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","jwt":[{
			"issuer":{"url":%q,"audiences":["kelson"],"egressSelectorType":"cluster","certificateAuthority":%q},
			"claimMappings":{"username":{"expression":"'%s' + claims.sub"}},
			"claimValidationRules":[{"expression":"claims.sub != 'eve'","message":"not eve"}]}]}`, oidc.URL, authorityOf(oidc.Server), prefix)
	}
	in := files(t, map[string]string{
		"may": hookConfig(hooks, "/may"), "who": who("a:"),
		"egress": `{"apiVersion":"apiserver.k8s.io/v1beta1","kind":"EgressSelectorConfiguration","egressSelections":[` + way("cluster", &toCluster) + "," + way("controlplane", &toControlPlane) + "]}",
	})
	may := in("config")
	if err := os.WriteFile(may, fmt.Appendf(nil, `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[
		{"type":"Webhook","name":"guard","webhook":{"timeout":"3s","subjectAccessReviewVersion":"v1","matchConditionSubjectAccessReviewVersion":"v1","failurePolicy":"Deny",
			"authorizedTTL":"1s","unauthorizedTTL":"1s",
			"connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q},
			"matchConditions":[{"expression":"has(request.resourceAttributes) && request.resourceAttributes.resource == 'pods'"},{"expression":"request.user != 'admin'"}]}},
		{"type":"Node","name":"node"},{"type":"RBAC","name":"rbac"}]}`, in("may")), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	s := serve(t, "serve", "--data-dir", dir, "--storage", "memory", "--authentication-config", in("who"), "--authorization-config", may, "--egress-selector-config-file", in("egress"))
	admin := newClient(t, controlplane.KubeconfigFile(dir))
	admin.ready()
	bob := admin.withToken(oidc.token("kelson", "bob", nil))
	bob.becomes("a:bob[system:authenticated]")
	if got := admin.withToken(oidc.token("kelson", "eve", nil)).whoami(); got != "401" {
		t.Errorf("eve is %s", got)
	}

	// The service denies pods even to those whom roles allow everything, and is
	// asked about nothing else.
	admin.makes("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"bob"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"a:bob"}]}`)
	if !bob.may("list", "configmaps") || bob.may("list", "pods") {
		t.Error("roles come first, or do not come at all")
	}
	for range len(asked) {
		if question := <-asked; !strings.HasSuffix(question, " pods") {
			t.Errorf("the service was asked: %s", question)
		}
	}

	if toCluster.Load() == 0 || toControlPlane.Load() == 0 {
		t.Errorf("proxies were asked for %d connections to the cluster, and %d to the control plane", toCluster.Load(), toControlPlane.Load())
	}

	if err := os.WriteFile(in("who"), []byte(who("b:")), 0o600); err != nil {
		t.Fatal(err)
	}
	bob.becomes("b:bob[system:authenticated]")
	if code := s.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("it ended with %d: %s", code, s.log.String())
	}
}
