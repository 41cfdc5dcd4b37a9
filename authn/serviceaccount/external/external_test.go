package external_test

import (
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authn/serviceaccount"
	"github.com/apikeel/kelson/authn/serviceaccount/external"
	"github.com/apikeel/kelson/authn/serviceaccount/external/externaltest"
	"github.com/apikeel/kelson/internal/measuretest"
	"github.com/apikeel/kelson/metrics/measure"
)

const issuer = "https://issuer.example.com"

// rig is a signer, and who verifies what it has signed.
type rig struct {
	service *externaltest.Service
	signer  *external.Signer
	metrics measuretest.Sink
	told    atomic.Int64 // how often keys were new
	keys    atomic.Pointer[serviceaccount.Keys]
}

func start(t *testing.T, change func(*externaltest.Service)) (*rig, error) {
	t.Helper()
	r := &rig{service: externaltest.Start(t)}
	if change != nil {
		change(r.service)
	}
	var err error
	r.signer, err = external.Dial(r.service.Socket, slog.New(slog.DiscardHandler), &r.metrics, func(keys *serviceaccount.Keys) {
		r.told.Add(1)
		r.keys.Store(keys)
	})
	if err == nil {
		r.signer.Follow()
		t.Cleanup(r.signer.Close)
	}
	return r, err
}

func (r *rig) issue() (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", UID: "u"}}
	token, _, err := serviceaccount.NewExternalIssuer(issuer, r.signer).Issue(account, nil, []string{"x"}, nil, time.Hour, 0)
	return token, err
}

// good reports whether a token is signed with one of the keys: what is wrong with
// it then is its audience.
func (r *rig) good(t *testing.T, token string) bool {
	t.Helper()
	v := &serviceaccount.Verifier{Issuers: []string{issuer}, Audiences: []string{"other"}, Log: slog.New(slog.DiscardHandler)}
	v.Find = r.signer.Find
	v.SetKeys(r.keys.Load())
	_, err := v.Verify(t.Context(), token, nil)
	if err == nil {
		t.Fatal("the token is for another audience")
	}
	// The keys that Find has fetched are in the rig.
	v.SetKeys(r.keys.Load())
	_, err = v.Verify(t.Context(), token, nil)
	return strings.Contains(err.Error(), "audience")
}

func TestSign(t *testing.T) {
	r, err := start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.signer.MaxLifetime != 24*time.Hour || r.signer.MaxAge() > time.Hour || r.signer.MaxAge() < 59*time.Minute {
		t.Errorf("lifetime %v, age %v", r.signer.MaxLifetime, r.signer.MaxAge())
	}
	first, err := r.issue()
	if err != nil || !r.good(t, first) {
		t.Errorf("the first token: %v", err)
	}
	// A key that is new to the server is fetched when a token has it.
	r.service.Rotate(t, "second")
	second, err := r.issue()
	if err != nil || !r.good(t, second) || !r.good(t, first) || r.told.Load() != 2 {
		t.Errorf("a second token: %v; keys were told %d times", err, r.told.Load())
	}
	if r.good(t, first[:strings.LastIndex(first, ".")]+second[strings.LastIndex(second, "."):]) {
		t.Error("a token with another signature is good")
	}
	d, err := serviceaccount.NewDocuments(issuer, "", "localhost", r.keys.Load())
	if err != nil || !strings.Contains(string(d.Keys), `"kid":"first"`) || !strings.Contains(string(d.Keys), `"kid":"second"`) {
		t.Errorf("others get to know %s, %v", d.Keys, err)
	}
}

// Keys are fetched when the service says, and told when they have changed.
func TestFollow(t *testing.T) {
	r, err := start(t, func(s *externaltest.Service) { s.Refresh = 1 })
	if err != nil {
		t.Fatal(err)
	}
	fetched := func() int {
		r.service.Mu.Lock()
		defer r.service.Mu.Unlock()
		return r.service.Fetched
	}
	wait := func(done func() bool) {
		t.Helper()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(30 * time.Second); !done(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatal("it does not happen")
			}
		}
	}
	wait(func() bool { return fetched() > 1 })
	if r.told.Load() != 1 {
		t.Errorf("keys that are the same were told %d times", r.told.Load())
	}
	r.service.Rotate(t, "second")
	wait(func() bool { return r.told.Load() == 2 })
}

// What is asked of the service is counted, and the age of its keys shown.
func TestMetrics(t *testing.T) {
	r, err := start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.issue(); err != nil {
		t.Fatal(err)
	}
	r.service.Mu.Lock()
	r.service.Header = `{"alg":"none","typ":"JWT","kid":%q}`
	r.service.Mu.Unlock()
	if _, err := r.issue(); err == nil {
		t.Error("a bad header passes")
	}
	const api = "/v1.ExternalJWTSigner/"
	want := map[string]int{
		measure.SignerFetches + " OK": 1, measure.SignerKeysFetched: 1, measure.SignerKeysChanged: 1,
		measure.SignerSignatures + " OK": 1, measure.SignerSignatures + " unknown-non-grpc": 1,
		measure.SignerDuration + " " + api + "FetchKeys OK": 1, measure.SignerDuration + " " + api + "Metadata OK": 1,
		measure.SignerDuration + " " + api + "Sign OK": 2,
	}
	if got := r.metrics.Names(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBadAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*externaltest.Service)
		start  bool
		want   string
	}{
		"lifetime": {func(s *externaltest.Service) { s.Lifetime = 599 }, true, "max token life supported by external-jwt-signer (599s) is less than acceptable (min 600s)"},
		"refresh": {func(s *externaltest.Service) { s.Refresh = 0 }, true,
			"while initially filling key cache: while performing initial cache fill: while fetching token verification keys: found invalid refresh hint (0s)"},
		"type":      {func(s *externaltest.Service) { s.Header = `{"alg":"ES256","typ":"JWS","kid":%q}` }, false, "while validating header: bad type"},
		"algorithm": {func(s *externaltest.Service) { s.Header = `{"alg":"none","typ":"JWT","kid":%q}` }, false, `while validating header: bad signing algorithm "none"`},
		"more":      {func(s *externaltest.Service) { s.Header = `{"alg":"ES256","typ":"JWT","x":1,"kid":%q}` }, false, `while validating header: while parsing header JSON: json: unknown field "x"`},
		"no key":    {func(s *externaltest.Service) { s.Header = `{"alg":"ES256","typ":"JWT","kid":""}%.0s` }, false, "while validating header: key id missing"},
		"hidden":    {func(s *externaltest.Service) { s.Hidden = true }, false, "while validating header: key used for signing JWT (kid: first) is excluded from OIDC discovery docs"},
	} {
		r, err := start(t, tt.change)
		if !tt.start {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			_, err = r.issue()
		}
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
}
