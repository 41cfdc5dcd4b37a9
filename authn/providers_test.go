package authn

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/apikeel/kelson/request"
)

// newProvider runs an OpenID Connect provider. The function that it returns
// signs claims.
func newProvider(t *testing.T) (*httptest.Server, func(claims map[string]any) string) {
	t.Helper()
	key := newKey(t)
	var server *httptest.Server
	server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": server.URL, "jwks_uri": server.URL + "/keys"})
		case "/keys":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
		}
	}))
	t.Cleanup(server.Close)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return server, func(claims map[string]any) string {
		t.Helper()
		token, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": server.URL, "aud": "kelson", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix(),
		}).Claims(claims).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func certificatePEM(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestOIDCFlags(t *testing.T) {
	server, sign := newProvider(t)
	flags := OIDC{IssuerURL: server.URL, ClientID: "kelson", CAFile: writeFile(t, "ca", certificatePEM(server)), SigningAlgs: []string{"ES256"}}
	tests := []struct {
		name   string
		change func(o *OIDC)
		claims map[string]any
		user   request.User
		err    string
	}{
		{name: "defaults", user: request.User{Name: server.URL + "#jane", Groups: []string{"system:authenticated"}}},
		{name: "no prefix", change: func(o *OIDC) { o.UsernamePrefix = "-" }, user: request.User{Name: "jane", Groups: []string{"system:authenticated"}}},
		{name: "prefix", change: func(o *OIDC) { o.UsernamePrefix = "p:" }, user: request.User{Name: "p:jane", Groups: []string{"system:authenticated"}}},
		{name: "email", change: func(o *OIDC) { o.UsernameClaim = "email" }, claims: map[string]any{"email": "j@x"},
			user: request.User{Name: "j@x", Groups: []string{"system:authenticated"}}},
		{name: "groups", change: func(o *OIDC) { o.UsernamePrefix, o.GroupsClaim, o.GroupsPrefix = "-", "roles", "g:" }, claims: map[string]any{"roles": []string{"a"}},
			user: request.User{Name: "jane", Groups: []string{"g:a", "system:authenticated"}}},
		{name: "required", change: func(o *OIDC) { o.RequiredClaims = map[string]string{"hd": "x"} }, err: "required claim hd not present"},
		{name: "audience", change: func(o *OIDC) { o.ClientID = "other" }, err: "expected audience"},
		{name: "algorithm", change: func(o *OIDC) { o.SigningAlgs = nil }, err: "malformed jwt"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := flags
			if test.change != nil {
				test.change(&o)
			}
			u, ok, err := newStage(t, Config{OIDC: o}).User(requestWith("Bearer " + sign(test.claims)))
			if test.err != "" {
				if ok || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("user %+v, error %v", u, err)
				}
				return
			}
			if !reflect.DeepEqual(u, test.user) {
				t.Errorf("user %+v, error %v", u, err)
			}
		})
	}
}

// TestStructuredReload changes the providers while requests come in.
func TestStructuredReload(t *testing.T) {
	one, signOne := newProvider(t)
	two, signTwo := newProvider(t)
	config := func(prefix string, servers ...*httptest.Server) []byte {
		jwts := []any{}
		for _, s := range servers {
			jwts = append(jwts, map[string]any{
				"issuer":        map[string]any{"url": s.URL, "audiences": []string{"kelson"}, "certificateAuthority": string(certificatePEM(s))},
				"claimMappings": map[string]any{"username": map[string]string{"claim": "sub", "prefix": prefix}},
			})
		}
		data, err := json.Marshal(map[string]any{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwts})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	file := writeFile(t, "config", config("a:", one))
	s := newStage(t, Config{StructuredFile: file})
	check := func(wantOne, wantTwo string) {
		t.Helper()
		for token, want := range map[string]string{signOne(nil): wantOne, signTwo(nil): wantTwo} {
			if u, _, err := s.User(requestWith("Bearer " + token)); u.Name != want {
				t.Errorf("user %q, want %q, error %v", u.Name, want, err)
			}
		}
	}
	kept := signOne(map[string]any{"sub": "kept"})
	check("a:jane", "")
	if u, _, err := s.User(requestWith("Bearer " + kept)); u.Name != "a:kept" {
		t.Errorf("user %q, error %v", u.Name, err)
	}
	rewrite(t, file, config("b:", one, two))
	s.Reload()
	check("b:jane", "b:jane")
	// What was remembered of a token is not.
	if u, _, err := s.User(requestWith("Bearer " + kept)); u.Name != "b:kept" {
		t.Errorf("user %q, error %v", u.Name, err)
	}
	rewrite(t, file, config("c:", two, two))
	s.Reload()
	check("b:jane", "b:jane")
	// A file with a provider that does not answer does not replace one that works.
	dead := httptest.NewTLSServer(nil)
	dead.Close()
	rewrite(t, file, config("e:", two, dead))
	s.Reload()
	check("b:jane", "b:jane")
	rewrite(t, file, config("d:", two))
	s.Reload()
	check("", "d:jane")
}
