package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/internal/refresh"
	"github.com/apikeel/kelson/metrics/measure"
	"github.com/apikeel/kelson/request"
)

// idp is a real provider, whose keys can be rotated.
type idp struct {
	*httptest.Server
	mu            sync.Mutex
	keys          map[string]crypto.Signer // by ID
	issuer        string                   // that it says it is
	discovery     string                   // path of its description
	down          bool
	groups        string // token of a distributed claim
	asked, keyed  atomic.Int64
	authorization string // of who asked for a distributed claim
}

func newIDP(t testing.TB) *idp {
	t.Helper()
	p := &idp{keys: map[string]crypto.Signer{}, discovery: "/.well-known/openid-configuration"}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case p.down:
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == p.discovery:
			p.asked.Add(1)
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.issuer, "jwks_uri": p.URL + "/keys"})
		case r.URL.Path == "/keys":
			p.keyed.Add(1)
			var set jose.JSONWebKeySet
			for id, key := range p.keys {
				set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Use: "sig"})
			}
			_ = json.NewEncoder(w).Encode(set)
		case r.URL.Path == "/groups":
			p.authorization = r.Header.Get("Authorization")
			_, _ = w.Write([]byte(p.groups))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	p.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	p.StartTLS()
	t.Cleanup(p.Close)
	p.issuer = p.URL
	p.rotate(t, "1")
	return p
}

// rotate replaces all keys by a new one.
func (p *idp) rotate(t testing.TB, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = map[string]crypto.Signer{id: key}
}

func (p *idp) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
}

func (p *idp) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
}

// token signs claims, with those added that every token has.
func (p *idp) token(t testing.TB, claims map[string]any) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, key := range p.keys {
		return signed(t, id, key, p.claims(claims))
	}
	t.Fatal("no key")
	return ""
}

func (p *idp) claims(claims map[string]any) map[string]any {
	all := map[string]any{"iss": p.URL, "aud": "kelson", "sub": "jane", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		if all[name] = value; value == nil {
			delete(all, name)
		}
	}
	return all
}

func signed(t testing.TB, id string, key crypto.Signer, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func text(s string) *string { return &s }

// authenticator describes the provider, with its subject as the user.
func (p *idp) authenticator() Authenticator {
	return Authenticator{
		Issuer:        Issuer{URL: p.URL, CertificateAuthority: p.ca(), Audiences: []string{"kelson"}},
		ClaimMappings: ClaimMappings{Username: PrefixedClaim{Claim: "sub", Prefix: text("")}},
	}
}

func mustNew(t testing.TB, o Options, a ...Authenticator) *Verifier {
	t.Helper()
	if o.Algorithms == nil {
		o.Algorithms = AllAlgorithms()
	}
	v, err := New(&Configuration{JWT: a}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func TestTokens(t *testing.T) {
	p, other := newIDP(t), newIDP(t)
	now := time.Now()
	tests := []struct {
		name    string
		token   string
		issuer  string // "": the provider's
		err     string // part of it
		unknown bool
	}{
		{name: "good", token: p.token(t, nil)},
		{name: "several audiences", token: p.token(t, map[string]any{"aud": []string{"x", "kelson"}})},
		{name: "valid soon", token: p.token(t, map[string]any{"nbf": now.Add(time.Minute).Unix()})},
		{name: "expired", token: p.token(t, map[string]any{"exp": now.Add(-time.Minute).Unix()}), err: "token is expired"},
		{name: "never expires", token: p.token(t, map[string]any{"exp": nil}), err: "token is expired"},
		{name: "not yet valid", token: p.token(t, map[string]any{"nbf": now.Add(time.Hour).Unix()}), err: "before the nbf (not before) time"},
		{name: "wrong audience", token: p.token(t, map[string]any{"aud": "x"}), err: `oidc: verify token: oidc: expected audience "kelson" got ["x"]`},
		{name: "no audience", token: p.token(t, map[string]any{"aud": nil}), err: "expected audience"},
		{name: "wrong issuer", token: p.token(t, map[string]any{"iss": "https://elsewhere"}), err: "id token issued by a different provider"},
		{name: "issuer nobody knows", token: p.token(t, nil), issuer: "https://elsewhere", unknown: true},
		{name: "wrong key", token: other.token(t, map[string]any{"iss": p.URL}), err: "failed to verify"},
		{name: "alg none", token: unsigned(p.token(t, nil), "none"), err: "malformed jwt"},
		{name: "alg HMAC", token: unsigned(p.token(t, nil), "HS256") + "abcd", err: "malformed jwt"},
		{name: "truncated", token: p.token(t, nil)[:100], err: "malformed jwt"},
		{name: "signature truncated", token: p.token(t, nil)[:len(p.token(t, nil))-8], err: "failed to verify"},
		{name: "no user", token: p.token(t, map[string]any{"sub": nil}), err: `oidc: parse username claims "sub": claim not present`},
		{name: "user is a number", token: p.token(t, map[string]any{"sub": 7}), err: "oidc: verify token: "},
	}
	v := mustNew(t, Options{}, p.authenticator())
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.issuer == "" {
				test.issuer = p.URL
			}
			u, expires, err := v.Verify(t.Context(), test.token, test.issuer)
			switch {
			case test.err != "":
				if u != nil || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %+v, error %v, want %q", u, err, test.err)
				}
			case test.unknown:
				if u != nil || err != nil {
					t.Errorf("got %+v, error %v", u, err)
				}
			case err != nil || u.Name != "jane" || expires.Sub(now).Round(time.Minute) != time.Hour:
				t.Errorf("got %+v until %v, error %v", u, expires, err)
			}
		})
	}
	if _, _, err := mustNew(t, Options{Algorithms: []string{"RS256"}}, p.authenticator()).Verify(t.Context(), p.token(t, nil), p.URL); err == nil {
		t.Error("an algorithm that is not allowed is accepted")
	}
}

func unsigned(token, alg string) string {
	parts := strings.Split(token, ".")
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":%q}`, alg)) + "." + parts[1] + "."
}

func TestRotation(t *testing.T) {
	p := newIDP(t)
	now := time.Now()
	v := mustNew(t, Options{Now: func() time.Time { return now }}, p.authenticator())
	if p.asked.Load() != 0 {
		t.Error("the provider is asked before there is a token")
	}
	check := func(token string, want bool) {
		t.Helper()
		if u, _, err := v.Verify(t.Context(), token, p.URL); (u != nil) != want {
			t.Fatalf("got %v, error %v", u, err)
		}
	}
	first := p.token(t, nil)
	check(first, true)
	check(first, true)
	if p.asked.Load() != 1 || p.keyed.Load() != 1 {
		t.Errorf("asked %d times, for keys %d times", p.asked.Load(), p.keyed.Load())
	}
	// A new key is fetched when it is seen.
	now = now.Add(askAgain)
	p.rotate(t, "2")
	second := p.token(t, nil)
	check(second, true)
	check(first, false)
	// One of the same name is, too.
	now = now.Add(askAgain)
	p.rotate(t, "2")
	third := p.token(t, nil)
	check(third, true)
	// A key that is gone ends, even if no new one is seen.
	p.rotate(t, "3")
	check(third, true)
	now = now.Add(keysTTL + time.Second)
	if err := v.Discover(t.Context()); err != nil {
		t.Error(err)
	}
	check(third, false)
	// While the provider is down, what is known goes on.
	fourth := p.token(t, nil)
	now = now.Add(askAgain)
	check(fourth, true)
	p.setDown(true)
	now = now.Add(keysTTL + time.Second)
	check(fourth, true)
	check(second, false)
}

func TestProviderDown(t *testing.T) {
	p := newIDP(t)
	now := time.Now()
	v := mustNew(t, Options{Now: func() time.Time { return now }}, p.authenticator())
	token := p.token(t, nil)
	p.setDown(true)
	if _, _, err := v.Verify(t.Context(), token, p.URL); err == nil || !strings.Contains(err.Error(), "oidc: authenticator not initialized") {
		t.Errorf("error %v", err)
	}
	p.setDown(false)
	if _, _, err := v.Verify(t.Context(), token, p.URL); err == nil || p.asked.Load() != 0 {
		t.Errorf("a provider that is down is not left alone: error %v", err)
	}
	now = now.Add(RetryAfter)
	polltest.Until(t, "the provider is asked again", func() bool {
		u, _, _ := v.Verify(t.Context(), token, p.URL)
		return u != nil
	})
}

// hang makes the provider answer nothing until the function that it returns is called.
func (p *idp) hang() (release func()) {
	p.mu.Lock()
	return p.mu.Unlock
}

// TestKnownKeysNeverWait: while a provider does not answer, tokens of known keys are verified
// at once, also if the keys are old and while tokens of unknown keys wait.
func TestKnownKeysNeverWait(t *testing.T) {
	p, other := newIDP(t), newIDP(t)
	var late atomic.Int64 // seconds that the clock is ahead
	v := mustNew(t, Options{Now: func() time.Time { return time.Now().Add(time.Duration(late.Load()) * time.Second) }}, p.authenticator())
	known := p.token(t, map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
	other.rotate(t, "unknown")
	unknown := other.token(t, map[string]any{"iss": p.URL})
	check := func(when string) {
		t.Helper()
		if u, _, err := v.Verify(t.Context(), known, p.URL); u == nil {
			t.Errorf("%s: got %v, want a user", when, err)
		}
	}
	check("before")
	late.Add(int64(keysTTL/time.Second) + 1)
	defer p.hang()()
	check("keys are old")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	keys := v.providers[p.URL].tokenKeys.keys.Load()
	ended := make(chan error)
	for range refresh.MaxWaiting + 1 {
		go func() { ended <- keys.fetch.Wait(ctx) }()
	}
	if err := <-ended; !errors.Is(err, request.ErrBusy) {
		t.Errorf("one too many: got %v, want %v", err, request.ErrBusy)
	}
	if _, _, err := v.Verify(t.Context(), unknown, p.URL); !errors.Is(err, request.ErrBusy) {
		t.Errorf("unknown key: got %v, want %v", err, request.ErrBusy)
	}
	check("others wait")
	leave()
	for range refresh.MaxWaiting {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("who leaves: got %v, want the end of its context", err)
		}
	}
}

// TestUndiscoveredIssuerFailsAtOnce: after the first attempt has failed nobody waits for another, which
// is made beside, one at a time.
func TestUndiscoveredIssuerFailsAtOnce(t *testing.T) {
	p := newIDP(t)
	var late atomic.Int64
	v := mustNew(t, Options{Now: func() time.Time { return time.Now().Add(time.Duration(late.Load()) * time.Second) }}, p.authenticator())
	token := p.token(t, nil)
	p.setDown(true)
	_, _, _ = v.Verify(t.Context(), token, p.URL)
	p.setDown(false)
	release := p.hang()
	for range 3 {
		late.Add(int64(RetryAfter / time.Second))
		for range 8 {
			if _, _, err := v.Verify(t.Context(), token, p.URL); err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") {
				t.Errorf("got %v, want the error of the first attempt", err)
			}
		}
	}
	release()
	polltest.Until(t, "the provider is asked again", func() bool {
		u, _, _ := v.Verify(t.Context(), token, p.URL)
		return u != nil
	})
	if n := p.asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

// TestProvidersAreAskedWithoutATokenToo: a provider that answered when the server started is
// not asked for the address of its keys when the first token comes, and one that did not is
// asked again.
func TestProvidersAreAskedWithoutATokenToo(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	now := time.Now()
	v := mustNew(t, Options{Now: func() time.Time { return now }}, p.authenticator(), q.authenticator())
	q.setDown(true)
	if err := v.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), q.URL) || strings.Contains(err.Error(), p.URL) {
		t.Errorf("got %v, want an error about %s alone", err, q.URL)
	}
	q.setDown(false)
	now = now.Add(RetryAfter)
	if err := v.Discover(t.Context()); err != nil {
		t.Errorf("when the provider is back: %v", err)
	}
	for _, one := range []*idp{p, q} {
		one.discovery = "/no/longer/there"
		if u, _, err := v.Verify(t.Context(), one.token(t, nil), one.URL); u == nil {
			t.Errorf("%s: error %v, want a user", one.URL, err)
		}
	}
}

func TestDiscovery(t *testing.T) {
	p := newIDP(t)
	p.discovery = "/internal/description"
	a := p.authenticator()
	if _, _, err := mustNew(t, Options{}, a).Verify(t.Context(), p.token(t, nil), p.URL); err == nil {
		t.Error("a description that is not there is found")
	}
	a.Issuer.DiscoveryURL = p.URL + p.discovery
	if u, _, err := mustNew(t, Options{}, a).Verify(t.Context(), p.token(t, nil), p.URL); u == nil {
		t.Errorf("error %v", err)
	}
	p.issuer = "https://elsewhere"
	if _, _, err := mustNew(t, Options{}, a).Verify(t.Context(), p.token(t, nil), p.URL); err == nil || !strings.Contains(err.Error(), "issuer did not match") {
		t.Errorf("error %v", err)
	}
	a.Issuer.CertificateAuthority = ""
	if _, _, err := mustNew(t, Options{}, a).Verify(t.Context(), p.token(t, nil), p.URL); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a provider that nobody vouches for is believed: error %v", err)
	}
}

func TestSeveralProviders(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	a, b := p.authenticator(), q.authenticator()
	b.Issuer.Audiences, b.Issuer.AudienceMatchPolicy = []string{"x", "y"}, "MatchAny"
	b.ClaimMappings.Username.Prefix = text("q:")
	v := mustNew(t, Options{}, a, b)
	for _, test := range []struct{ token, issuer, user string }{
		{p.token(t, nil), p.URL, "jane"},
		{q.token(t, map[string]any{"aud": "y"}), q.URL, "q:jane"},
		{q.token(t, nil), q.URL, ""},
		{p.token(t, map[string]any{"iss": q.URL, "aud": "y"}), q.URL, ""},
	} {
		u, _, err := v.Verify(t.Context(), test.token, test.issuer)
		if got := nameOf(u); got != test.user || (err == nil) != (test.user != "") {
			t.Errorf("got %q, want %q, error %v", got, test.user, err)
		}
	}
}

func nameOf(u *request.User) string {
	if u == nil {
		return ""
	}
	return u.Name
}

func TestMappings(t *testing.T) {
	p := newIDP(t)
	claims := map[string]any{
		"jti": "id-1", "email": "jane@example.com", "email_verified": true, "groups": []string{"a", "b"}, "role": "admin", "empty": "",
		"nested": map[string]any{"a.b": []any{map[string]any{"c/d": "deep"}}}, "mixed": []any{"x", 1}, "level": 3, "hd": "example.com",
	}
	extraID := map[string][]string{credentialID: {"JTI=id-1"}}
	tests := []struct {
		name   string
		change func(a *Authenticator)
		claims map[string]any // on top
		user   request.User
		err    string
	}{
		{name: "claims", change: func(a *Authenticator) {
			a.ClaimMappings.Username.Prefix = text("oidc:")
			a.ClaimMappings.Groups = PrefixedClaim{Claim: "groups", Prefix: text("g:")}
			a.ClaimMappings.UID = Claim{Claim: "role"}
		}, user: request.User{Name: "oidc:jane", Groups: []string{"g:a", "g:b"}, UID: "admin", Extra: extraID}},
		{name: "one group", change: func(a *Authenticator) {
			a.ClaimMappings.Groups = PrefixedClaim{Claim: "role", Prefix: text("")}
		}, user: request.User{Name: "jane", Groups: []string{"admin"}, Extra: extraID}},
		{name: "no groups", change: func(a *Authenticator) {
			a.ClaimMappings.Groups = PrefixedClaim{Claim: "none", Prefix: text("")}
		}, user: request.User{Name: "jane", Extra: extraID}},
		{name: "groups that are none", change: func(a *Authenticator) {
			a.ClaimMappings.Groups = PrefixedClaim{Claim: "level", Prefix: text("")}
		}, err: `oidc: parse groups claim "level": `},
		{name: "no uid", change: func(a *Authenticator) { a.ClaimMappings.UID = Claim{Claim: "none"} }, err: `oidc: parse uid claim "none": claim not present`},
		{name: "email", change: func(a *Authenticator) { a.ClaimMappings.Username.Claim = "email" }, user: request.User{Name: "jane@example.com", Extra: extraID}},
		{name: "email not verified", change: func(a *Authenticator) { a.ClaimMappings.Username.Claim = "email" },
			claims: map[string]any{"email_verified": false}, err: "oidc: email not verified"},
		{name: "email verified by a text", change: func(a *Authenticator) { a.ClaimMappings.Username.Claim = "email" },
			claims: map[string]any{"email_verified": "true"}, err: "oidc: parse 'email_verified' claim: "},
		{name: "email of which nothing is said", change: func(a *Authenticator) { a.ClaimMappings.Username.Claim = "email" },
			claims: map[string]any{"email_verified": nil}, user: request.User{Name: "jane@example.com", Extra: extraID}},

		{name: "expressions", change: func(a *Authenticator) {
			a.ClaimMappings = ClaimMappings{
				Username: PrefixedClaim{Expression: `claims.email_verified ? claims.email.split("@")[0] : claims.sub`},
				Groups:   PrefixedClaim{Expression: `dyn(claims.groups).map(g, "x:" + g) + [""]`},
				UID:      Claim{Expression: `string(claims.level)`},
				Extra: []ExtraMapping{
					{"example.com/role", "claims.role"}, {"example.com/groups", "claims.groups"}, {"example.com/none", "''"},
					{"example.com/null", "null"}, {"example.com/deep", "claims.nested.a__dot__b[0].c__slash__d"}, {"example.com/opt", "claims.?missing.orValue('x')"},
				},
			}
		}, user: request.User{Name: "jane", Groups: []string{"x:a", "x:b"}, UID: "3", Extra: map[string][]string{
			credentialID: {"JTI=id-1"}, "example.com/role": {"admin"}, "example.com/groups": {"a", "b"}, "example.com/deep": {"deep"}, "example.com/opt": {"x"},
		}}},
		{name: "username is not a text", change: func(a *Authenticator) { a.ClaimMappings.Username = PrefixedClaim{Expression: "claims.level"} },
			err: "oidc: error evaluating username claim expression: username claim expression must return a string"},
		{name: "username is empty", change: func(a *Authenticator) { a.ClaimMappings.Username = PrefixedClaim{Expression: "claims.empty"} },
			err: "oidc: empty username via CEL expression is not allowed"},
		{name: "username is missing", change: func(a *Authenticator) { a.ClaimMappings.Username = PrefixedClaim{Expression: "claims.missing"} },
			err: "oidc: error evaluating username claim expression: expression 'claims.missing' resulted in error: "},
		{name: "groups are mixed", change: func(a *Authenticator) { a.ClaimMappings.Groups = PrefixedClaim{Expression: "claims.mixed"} },
			err: "oidc: error evaluating group claim expression: expression must return a string or a list of strings"},
		{name: "groups are a map", change: func(a *Authenticator) { a.ClaimMappings.Groups = PrefixedClaim{Expression: "claims.nested"} },
			err: "oidc: error evaluating group claim expression: expression must return a string or a list of strings"},
		{name: "extra is a number", change: func(a *Authenticator) { a.ClaimMappings.Extra = []ExtraMapping{{"example.com/x", "claims.level"}} },
			err: "oidc: error evaluating extra claim expression: claims.level: expression must return a string or a list of strings"},

		{name: "required claim", change: func(a *Authenticator) {
			a.ClaimValidationRules = []ClaimValidationRule{{Claim: "hd", RequiredValue: "example.com"}}
		},
			user: request.User{Name: "jane", Extra: extraID}},
		{name: "required claim has another value", change: func(a *Authenticator) {
			a.ClaimValidationRules = []ClaimValidationRule{{Claim: "hd", RequiredValue: "x"}}
		},
			err: "oidc: required claim hd value does not match. Got = example.com, want = x"},
		{name: "required claim is missing", change: func(a *Authenticator) { a.ClaimValidationRules = []ClaimValidationRule{{Claim: "missing"}} },
			err: "oidc: required claim missing not present in ID token"},
		{name: "required claim is a number", change: func(a *Authenticator) {
			a.ClaimValidationRules = []ClaimValidationRule{{Claim: "level", RequiredValue: "3"}}
		},
			err: "oidc: parse claim level: "},
		{name: "claim rule", change: func(a *Authenticator) {
			a.ClaimValidationRules = []ClaimValidationRule{{Expression: "claims.exp - claims.level < 4e10"}}
		},
			user: request.User{Name: "jane", Extra: extraID}},
		{name: "claim rule is not met", change: func(a *Authenticator) {
			a.ClaimValidationRules = []ClaimValidationRule{{Expression: "claims.hd == 'x'", Message: "not ours"}}
		}, err: "oidc: error evaluating claim validation expression: validation expression 'claims.hd == 'x'' failed: not ours"},
		{name: "user rule", change: func(a *Authenticator) {
			a.UserValidationRules = []UserValidationRule{{Expression: "!user.username.startsWith('system:') && user.groups.all(g, g != 'x') && !('k' in user.extra)"}}
		}, user: request.User{Name: "jane", Extra: extraID}},
		{name: "user rule is not met", change: func(a *Authenticator) {
			a.UserValidationRules = []UserValidationRule{{Expression: "!user.username.startsWith('system:')", Message: "reserved"}}
		}, claims: map[string]any{"sub": "system:admin"},
			err: "oidc: error evaluating user info validation rule: validation expression '!user.username.startsWith('system:')' failed: reserved"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			all := map[string]any{}
			for _, m := range []map[string]any{claims, test.claims} {
				for k, v := range m {
					all[k] = v
				}
			}
			a := p.authenticator()
			test.change(&a)
			u, _, err := mustNew(t, Options{}, a).Verify(t.Context(), p.token(t, all), p.URL)
			if test.err != "" {
				if u != nil || err == nil || !strings.HasPrefix(err.Error(), test.err) {
					t.Errorf("got %+v, error %v, want %s", u, err, test.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(*u, test.user) {
				t.Errorf("got %+v, error %v, want %+v", u, err, test.user)
			}
		})
	}
}

func TestDistributedClaims(t *testing.T) {
	p := newIDP(t)
	a := p.authenticator()
	a.ClaimMappings.Groups = PrefixedClaim{Claim: "groups", Prefix: text("")}
	v := mustNew(t, Options{}, a)
	claims := func(endpoint string) map[string]any {
		return map[string]any{
			"_claim_names":   map[string]string{"groups": "src"},
			"_claim_sources": map[string]any{"src": map[string]string{"endpoint": endpoint, "access_token": "secret"}},
		}
	}
	tests := []struct {
		name, groups string
		claims       map[string]any
		want         []string
		err          string
	}{
		{name: "good", groups: p.token(t, map[string]any{"groups": []string{"x"}}), claims: claims(p.URL + "/groups"), want: []string{"x"}},
		{name: "not there", groups: p.token(t, nil), claims: claims(p.URL + "/groups"), err: "did not contain claim: groups"},
		{name: "of another issuer", groups: p.token(t, map[string]any{"groups": "x", "iss": "https://127.0.0.1:1"}), claims: claims(p.URL + "/groups"), err: "verify distributed claim token"},
		{name: "not a token", groups: "x", claims: claims(p.URL + "/groups"), err: "malformed token"},
		{name: "not found", claims: claims(p.URL + "/nowhere"), err: "404 Not Found"},
		{name: "in the token too", claims: map[string]any{"groups": "y", "_claim_names": map[string]string{"groups": "src"}, "_claim_sources": map[string]any{"src": map[string]string{}}}, want: []string{"y"}},
		{name: "of others", claims: map[string]any{"_claim_names": map[string]string{"x": "src"}, "_claim_sources": map[string]any{"src": map[string]string{}}}},
		{name: "aggregated", claims: map[string]any{"_claim_names": map[string]string{"groups": "src"}, "_claim_sources": map[string]any{"src": map[string]string{"JWT": "x"}}}},
		{name: "no source", claims: map[string]any{"_claim_names": map[string]string{"groups": "src"}}, err: "source does not exist"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p.mu.Lock()
			p.groups = test.groups
			p.mu.Unlock()
			u, _, err := v.Verify(t.Context(), p.token(t, test.claims), p.URL)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %+v, error %v", u, err)
				}
				return
			}
			if err != nil || !slices.Equal(u.Groups, test.want) {
				t.Errorf("got %+v, error %v", u, err)
			}
		})
	}
	if p.authorization != "Bearer secret" {
		t.Errorf("authorization %q", p.authorization)
	}
}

// TestCanceled makes sure that a caller who goes away does not keep the others
// from the provider.
func TestCanceled(t *testing.T) {
	p := newIDP(t)
	v := mustNew(t, Options{}, p.authenticator())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = v.Verify(ctx, p.token(t, nil), p.URL)
	if u, _, err := v.Verify(t.Context(), p.token(t, nil), p.URL); u == nil {
		t.Errorf("error %v", err)
	}
}

// forgetting is a sink that notes what is forgotten.
type forgetting struct {
	measure.Sink
	values []string
}

func (f *forgetting) Forget(metric, _, value string) {
	f.values = append(f.values, metric+" "+value)
}

// TestReplacedProvidersAreForgotten: when a configuration is replaced, metrics of those
// issuers go that the new one does not have.
func TestReplacedProvidersAreForgotten(t *testing.T) {
	p, q := newIDP(t), newIDP(t)
	sink := &forgetting{}
	old := mustNew(t, Options{KeyMetrics: sink}, p.authenticator(), q.authenticator())
	old.Replace(mustNew(t, Options{KeyMetrics: sink}, p.authenticator()))
	hash := measure.Hash([]byte(q.URL))
	want := []string{measure.KeysFetched + " " + hash, measure.KeysInfo + " " + hash}
	if !slices.Equal(sink.values, want) {
		t.Errorf("got %q, want %q", sink.values, want)
	}
}
