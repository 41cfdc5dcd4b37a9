package authn

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func keyPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func publicPEM(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func account(namespace, name string) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid"}}
}

func mustIssue(t testing.TB, s *Stage, sa *corev1.ServiceAccount, audiences ...string) string {
	t.Helper()
	token, _, err := s.Issue(sa, nil, audiences, nil, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestServiceAccounts(t *testing.T) {
	sa := account("ns", "default")
	objects := &fakeObjects{}
	objects.set("serviceaccounts", sa)
	s := newStage(t, Config{ServiceAccounts: ServiceAccounts{SigningKey: newKey(t)}, Objects: objects})
	if !s.CanIssue() || !reflect.DeepEqual(s.Audiences(), []string{DefaultIssuer}) {
		t.Errorf("issues %v, audiences %v", s.CanIssue(), s.Audiences())
	}
	token := mustIssue(t, s, sa, DefaultIssuer)
	u, ok, err := s.User(requestWith("Bearer " + token))
	want := []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}
	if !ok || err != nil || u.Name != "system:serviceaccount:ns:default" || !reflect.DeepEqual(u.Groups, want) {
		t.Errorf("user %+v, error %v", u, err)
	}
	// What is remembered of a token ends with the objects that it is about.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "1"}}
	objects.set("pods", pod)
	bound, _, err := s.Issue(sa, []metav1.Object{pod}, []string{DefaultIssuer}, nil, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if _, ok, err := s.User(requestWith("Bearer " + bound)); ok != want {
			t.Errorf("known %v, error %v", ok, err)
		}
		objects.remove("pods", "ns", "pod")
	}
	if _, ok, err := s.User(requestWith("Bearer " + mustIssue(t, s, sa, "vault"))); ok || !strings.Contains(err.Error(), "is invalid for the target audiences") {
		t.Errorf("token for others: %v", err)
	}
	objects.remove("serviceaccounts", "ns", "default")
	if _, ok, err := s.User(requestWith("Bearer " + token)); ok || err.Error() != `serviceaccounts "default" not found` {
		t.Errorf("token of an account that is gone: %v", err)
	}
}

// TestServiceAccountKeys rotates keys in files, as an operator does: first the
// new public key, then the new private key, then the old public key goes.
func TestServiceAccountKeys(t *testing.T) {
	older, newer := newKey(t), newKey(t)
	sa := account("ns", "default")
	objects := &fakeObjects{}
	objects.set("serviceaccounts", sa)
	private := writeFile(t, "sa.key", keyPEM(t, older))
	public, more := writeFile(t, "sa.pub", publicPEM(t, older)), writeFile(t, "more.pub", publicPEM(t, newKey(t)))
	s := newStage(t, Config{
		ServiceAccounts: ServiceAccounts{SigningKeyFile: private, KeyFiles: []string{public, more}, Issuers: []string{"https://new", "https://old"}},
		Objects:         objects,
	})
	check := func(token string, want bool) {
		t.Helper()
		if _, ok, err := s.User(requestWith("Bearer " + token)); ok != want {
			t.Fatalf("known %v, error %v", ok, err)
		}
	}
	first := mustIssue(t, s, sa, "https://new")
	check(first, true)
	rewrite(t, public, append(publicPEM(t, older), publicPEM(t, newer)...))
	s.Reload()
	rewrite(t, private, keyPEM(t, newer))
	s.Reload()
	second := mustIssue(t, s, sa, "https://new")
	check(first, true)
	check(second, true)
	rewrite(t, public, []byte("broken"))
	s.Reload()
	check(first, true)
	rewrite(t, public, publicPEM(t, newer))
	s.Reload()
	check(first, false)
	check(second, true)
}

func TestReviewToken(t *testing.T) {
	sa := account("ns", "default")
	objects := &fakeObjects{}
	objects.set("serviceaccounts", sa)
	s := newStage(t, Config{
		ServiceAccounts: ServiceAccounts{SigningKey: newKey(t)}, Objects: objects,
		TokenFile: writeFile(t, "tokens", []byte("static,jane,1\n")),
	})
	own, vault := mustIssue(t, s, sa, DefaultIssuer), mustIssue(t, s, sa, "vault", "x")
	for _, test := range []struct {
		name, token   string
		audiences     []string
		user          string
		wantAudiences []string
		err           string
	}{
		{name: "own", token: own, user: "system:serviceaccount:ns:default", wantAudiences: []string{DefaultIssuer}},
		{name: "own asked for", token: own, audiences: []string{DefaultIssuer}, user: "system:serviceaccount:ns:default", wantAudiences: []string{DefaultIssuer}},
		{name: "other", token: own, audiences: []string{"other"},
			err: `[invalid bearer token, token audiences ["` + DefaultIssuer + `"] is invalid for the target audiences ["other"]]`},
		{name: "vault", token: vault, audiences: []string{"vault", "zzz"}, user: "system:serviceaccount:ns:default", wantAudiences: []string{"vault"}},
		{name: "vault for the server", token: vault,
			err: `[invalid bearer token, token audiences ["vault" "x"] is invalid for the target audiences ["` + DefaultIssuer + `"]]`},
		{name: "unknown", token: "nonsense", err: "invalid bearer token"},
		{name: "static", token: "static", user: "jane", wantAudiences: []string{DefaultIssuer}},
		{name: "static for others", token: "static", audiences: []string{"other"}, err: "invalid bearer token"},
	} {
		got, err := s.ReviewToken(t.Context(), test.token, test.audiences)
		if err != nil {
			t.Errorf("%s: error %v", test.name, err)
		}
		if got.User.Username != test.user || got.Authenticated != (test.err == "") || got.Error != test.err || !reflect.DeepEqual(got.Audiences, test.wantAudiences) {
			t.Errorf("%s: got %+v", test.name, got)
		}
		if test.err != "" && !reflect.DeepEqual(got.User, authenticationv1.UserInfo{}) {
			t.Errorf("%s: got %+v", test.name, got.User)
		}
	}
}

func TestPaths(t *testing.T) {
	s := newStage(t, Config{ServiceAccounts: ServiceAccounts{SigningKey: newKey(t)}, Objects: &fakeObjects{}})
	paths := s.Paths(func() string { return "10.0.0.1:6443" })
	for path, want := range map[string]struct{ contentType, part string }{
		"/.well-known/openid-configuration": {"application/json", `"jwks_uri":"https://10.0.0.1:6443/openid/v1/jwks"`},
		"/openid/v1/jwks":                   {"application/jwk-set+json", `"kty":"EC"`},
	} {
		w := httptest.NewRecorder()
		paths[path].ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != want.contentType || w.Header().Get("Cache-Control") != "public, max-age=3600" ||
			!strings.Contains(w.Body.String(), want.part) || strings.Contains(w.Body.String(), `"d"`) {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
	}
	if paths := newStage(t, Config{}).Paths(nil); paths != nil {
		t.Errorf("paths without keys: %v", paths)
	}
	s = newStage(t, Config{ServiceAccounts: ServiceAccounts{SigningKey: newKey(t), Issuers: []string{"plain"}}, Objects: &fakeObjects{}})
	if paths := s.Paths(nil); paths != nil {
		t.Errorf("paths of an issuer that is not a URL: %v", paths)
	}
}

func TestConfigErrors(t *testing.T) {
	key := newKey(t)
	for name, test := range map[string]struct {
		c   Config
		err string
	}{
		"empty issuer":    {Config{ServiceAccounts: ServiceAccounts{Issuers: []string{""}}}, "should not be an empty string"},
		"bad issuer":      {Config{ServiceAccounts: ServiceAccounts{Issuers: []string{":bad"}}}, "was not a valid URL"},
		"issuer twice":    {Config{ServiceAccounts: ServiceAccounts{Issuers: []string{"a", "a"}}}, "already specified"},
		"jwks scheme":     {Config{ServiceAccounts: ServiceAccounts{JWKSURI: "http://a"}}, "requires https scheme"},
		"max too short":   {Config{ServiceAccounts: ServiceAccounts{MaxExpiration: time.Minute}}, "between 1 hour and 2^32 seconds"},
		"no objects":      {Config{ServiceAccounts: ServiceAccounts{SigningKey: key}}, "need access to objects"},
		"two keys":        {Config{ServiceAccounts: ServiceAccounts{SigningKey: key, SigningKeyFile: "x"}, Objects: &fakeObjects{}}, "mutually exclusive"},
		"no key in file":  {Config{ServiceAccounts: ServiceAccounts{SigningKeyFile: writeFile(t, "k", []byte("x"))}, Objects: &fakeObjects{}}, "failed to parse"},
		"oidc half":       {Config{OIDC: OIDC{IssuerURL: "https://a"}}, "must be specified together"},
		"oidc and file":   {Config{OIDC: OIDC{IssuerURL: "https://a", ClientID: "b"}, StructuredFile: "x"}, "mutually exclusive"},
		"oidc not https":  {Config{OIDC: OIDC{IssuerURL: "http://a", ClientID: "b"}}, "URL scheme must be https"},
		"oidc algorithm":  {Config{OIDC: OIDC{IssuerURL: "https://a", ClientID: "b", SigningAlgs: []string{"none"}}}, `unsupported signing alg: "none"`},
		"oidc own issuer": {Config{OIDC: OIDC{IssuerURL: DefaultIssuer, ClientID: "b"}}, "URL must not overlap with disallowed issuers"},
		"no certificates": {Config{X509: X509{CAs: []byte("x")}}, "does not contain any valid RSA or ECDSA certificates"},
	} {
		if _, err := test.c.New(); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", name, err, test.err)
		}
	}
}

// TestWatch makes sure that watching ends with its context.
func TestWatch(t *testing.T) {
	s := newStage(t, Config{TokenFile: writeFile(t, "tokens", []byte("a,b,c\n"))})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(t.Context())
	}()
	t.Cleanup(func() { <-done })
}

func BenchmarkServiceAccountToken(b *testing.B) {
	sa := account("ns", "default")
	objects := &fakeObjects{}
	objects.set("serviceaccounts", sa)
	ca := newAuthority(b, "users")
	s := newStage(b, Config{ServiceAccounts: ServiceAccounts{SigningKey: newKey(b)}, Objects: objects, X509: X509{CAs: ca.pem()}, TokenSuccessTTL: time.Hour})
	r := requestWith("Bearer " + mustIssue(b, s, sa, DefaultIssuer))
	b.ReportAllocs()
	for b.Loop() {
		if id, err := s.Authenticate(r); id == nil || err != nil {
			b.Fatal(id, err)
		}
	}
}
