package webhook

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/requesttest"
	"github.com/apikeel/kelson/request"
)

// service is a webhook that answers what it is told.
type service struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	paths  []string
	answer func(n int, w http.ResponseWriter) // n counts from 1
}

func serve(t *testing.T, answer func(n int, w http.ResponseWriter)) *service {
	s := &service{answer: answer}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.bodies, s.paths = append(s.bodies, string(body)), append(s.paths, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")+" "+r.Header.Get("Authorization"))
		n := len(s.bodies)
		s.mu.Unlock()
		s.answer(n, w)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.bodies)
}

// kubeconfig writes one for a service.
func (s *service) kubeconfig(t *testing.T) string {
	dir := t.TempDir()
	ca, file := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
		"users":[{"name":"u","user":{"token":"secret"}}],
		"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}]}`, s.URL+"/review/me", ca)
	for name, data := range map[string][]byte{
		file: []byte(text), ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}),
	} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func status(status string) func(int, http.ResponseWriter) {
	return func(_ int, w http.ResponseWriter) {
		fmt.Fprintf(w, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","status":%s}`, status)
	}
}

func (s *service) authorizer(t *testing.T, change func(*Config)) *Authorizer {
	t.Helper()
	cfg := Config{Kubeconfig: s.kubeconfig(t), Version: "v1", Backoff: wait.Backoff{Steps: 3, Duration: time.Millisecond}}
	if change != nil {
		change(&cfg)
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func question() *authz.Attributes {
	return &authz.Attributes{
		User: &request.User{Name: "jane", UID: "u", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}},
		Verb: "list", IsResource: true, Group: "apps", Version: "v1", Namespace: "ns", Resource: "deployments", Subresource: "scale", Name: "d",
	}
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name     string
		answer   func(int, http.ResponseWriter)
		onError  authz.Decision
		decision authz.Decision
		reason   string
		err      string // contained in the error
		asked    int
	}{
		{name: "allowed", answer: status(`{"allowed":true,"reason":"r"}`), decision: authz.Allow, reason: "r", asked: 1},
		{name: "not allowed", answer: status(`{"allowed":false,"reason":"r"}`), decision: authz.NoOpinion, reason: "r", asked: 1},
		{name: "denied", answer: status(`{"denied":true,"reason":"r"}`), decision: authz.Deny, reason: "r", asked: 1},
		{name: "both", answer: status(`{"denied":true,"allowed":true}`), decision: authz.Deny, err: "both allow and deny", asked: 1},
		{name: "without a kind", answer: func(_ int, w http.ResponseWriter) { fmt.Fprint(w, `{"status":{"allowed":true}}`) }, decision: authz.Allow, asked: 1},
		{name: "another version", answer: func(_ int, w http.ResponseWriter) {
			fmt.Fprint(w, `{"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","status":{"allowed":true}}`)
		}, decision: authz.NoOpinion, err: "webhook answered with", asked: 1},
		{name: "no JSON", answer: func(_ int, w http.ResponseWriter) { fmt.Fprint(w, `yes`) }, decision: authz.NoOpinion, err: "invalid character", asked: 1},
		{name: "refused", answer: func(_ int, w http.ResponseWriter) { http.Error(w, "go away", http.StatusForbidden) }, decision: authz.NoOpinion, err: "go away", asked: 1},
		{name: "refused, deny", answer: func(_ int, w http.ResponseWriter) { http.Error(w, "go away", http.StatusForbidden) }, onError: authz.Deny, decision: authz.Deny, err: "go away", asked: 1},
		{name: "broken", answer: func(_ int, w http.ResponseWriter) { w.WriteHeader(500) }, decision: authz.NoOpinion, err: "an error on the server", asked: 3},
		{name: "broken, then not", answer: func(n int, w http.ResponseWriter) {
			if n < 3 {
				w.WriteHeader(500)
				return
			}
			status(`{"allowed":true}`)(n, w)
		}, decision: authz.Allow, asked: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.answer)
			a := s.authorizer(t, func(cfg *Config) { cfg.OnError = c.onError })
			decision, reason, err := a.Authorize(t.Context(), question())
			text := ""
			if err != nil {
				text = err.Error()
			}
			if decision != c.decision || reason != c.reason || (c.err == "") != (text == "") || !strings.Contains(text, c.err) || s.asked() != c.asked {
				t.Errorf("got %v %q %q, asked %d times", decision, reason, text, s.asked())
			}
		})
	}
}

// TestEndsArrival: a request that waits for a webhook says so, so that it keeps no other out.
func TestEndsArrival(t *testing.T) {
	var ended requesttest.EndedArrivals
	s := serve(t, func(n int, w http.ResponseWriter) {
		if ended.Load() != 1 {
			t.Errorf("the webhook is asked when %d arrivals have ended", ended.Load())
		}
		status(`{"allowed":true}`)(n, w)
	})
	ctx := request.With(t.Context(), &request.Request{Arrival: &ended})
	if decision, _, err := s.authorizer(t, nil).Authorize(ctx, question()); decision != authz.Allow || err != nil {
		t.Errorf("got %v, error %v", decision, err)
	}
}

func TestReviews(t *testing.T) {
	s := serve(t, status(`{}`))
	at := question()
	selector, _ := fields.ParseSelector("spec.a=b,spec.c!=d")
	at.Fields = selector.Requirements()
	labelled, err := labels.Parse("x in (y),!z,w,v!=u")
	if err != nil {
		t.Fatal(err)
	}
	at.Labels, _ = labelled.Requirements()
	path := &authz.Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/metrics"}
	for _, a := range []*authz.Attributes{at, path, {Verb: "get", Path: "/"}} {
		if _, _, err := s.authorizer(t, nil).Authorize(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	s.answer = func(_ int, w http.ResponseWriter) {
		fmt.Fprint(w, `{"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","status":{"allowed":true}}`)
	}
	if d, _, err := s.authorizer(t, func(c *Config) { c.Version = "v1beta1" }).Authorize(t.Context(), question()); d != authz.Allow || err != nil {
		t.Error(d, err)
	}
	for i, want := range []string{
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"resourceAttributes":{"namespace":"ns","verb":"list","group":"apps","version":"v1","resource":"deployments","subresource":"scale","name":"d","fieldSelector":{"requirements":[{"key":"spec.a","operator":"In","values":["b"]},{"key":"spec.c","operator":"NotIn","values":["d"]}]},"labelSelector":{"requirements":[{"key":"v","operator":"NotIn","values":["u"]},{"key":"w","operator":"Exists"},{"key":"x","operator":"In","values":["y"]},{"key":"z","operator":"DoesNotExist"}]}},"user":"jane","groups":["g"],"extra":{"k":["v"]},"uid":"u"},"status":{"allowed":false}}`,
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"nonResourceAttributes":{"path":"/metrics","verb":"get"},"user":"jane"},"status":{"allowed":false}}`,
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","metadata":{},"spec":{"nonResourceAttributes":{"path":"/","verb":"get"}},"status":{"allowed":false}}`,
		`{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1beta1","metadata":{},"spec":{"resourceAttributes":{"namespace":"ns","verb":"list","group":"apps","version":"v1","resource":"deployments","subresource":"scale","name":"d"},"user":"jane","group":["g"],"extra":{"k":["v"]},"uid":"u"},"status":{"allowed":false}}`,
	} {
		if s.bodies[i] != want {
			t.Errorf("%d: got  %s\nwant %s", i, s.bodies[i], want)
		}
		if s.paths[i] != "POST /review/me application/json Bearer secret" {
			t.Error(s.paths[i])
		}
	}
	if _, _, incomplete, err := s.authorizer(t, nil).RulesFor(t.Context(), at.User, "ns"); !incomplete || err == nil {
		t.Error(incomplete, err)
	}
}

func TestCache(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer string
		change func(*Config)
		what   func(*authz.Attributes)
		asked  int
	}{
		{"allowed", `{"allowed":true}`, func(c *Config) { c.AuthorizedTTL = time.Minute }, nil, 1},
		{"allowed, kept no more", `{"allowed":true}`, func(c *Config) { c.UnauthorizedTTL = time.Minute }, nil, 2},
		{"not allowed", `{}`, func(c *Config) { c.UnauthorizedTTL = time.Minute }, nil, 1},
		{"not allowed, kept no more", `{}`, func(c *Config) { c.AuthorizedTTL = time.Minute }, nil, 2},
		{"too large", `{"allowed":true}`, func(c *Config) { c.AuthorizedTTL = time.Minute }, func(a *authz.Attributes) { a.Name = strings.Repeat("x", maxCachedBytes) }, 2},
	} {
		s := serve(t, status(c.answer))
		a := s.authorizer(t, c.change)
		for range 2 {
			at := question()
			if c.what != nil {
				c.what(at)
			}
			if _, _, err := a.Authorize(t.Context(), at); err != nil {
				t.Fatal(err)
			}
		}
		if s.asked() != c.asked {
			t.Errorf("%s: asked %d times", c.name, s.asked())
		}
	}
	// Nothing that differs shares an answer.
	s := serve(t, status(`{"allowed":true}`))
	a := s.authorizer(t, func(c *Config) { c.AuthorizedTTL = time.Minute })
	changes := []func(*authz.Attributes){
		func(a *authz.Attributes) {}, func(a *authz.Attributes) { a.User.Name = "joe" }, func(a *authz.Attributes) { a.User.UID = "x" },
		func(a *authz.Attributes) { a.User.Groups = nil }, func(a *authz.Attributes) { a.User.Extra = nil }, func(a *authz.Attributes) { a.Verb = "get" },
		func(a *authz.Attributes) { a.Namespace = "" }, func(a *authz.Attributes) { a.Name = "" }, func(a *authz.Attributes) { a.Subresource = "" },
		func(a *authz.Attributes) { a.Fields = fields.OneTermEqualSelector("a", "b").Requirements() },
	}
	for _, change := range changes {
		at := question()
		change(at)
		if _, _, err := a.Authorize(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	if s.asked() != len(changes) {
		t.Errorf("asked %d times for %d questions", s.asked(), len(changes))
	}
}

func TestTimeout(t *testing.T) {
	release := make(chan struct{})
	s := serve(t, func(int, http.ResponseWriter) { <-release })
	t.Cleanup(func() { close(release) })
	a := s.authorizer(t, func(c *Config) { c.Timeout = 20 * time.Millisecond; c.OnError = authz.Deny; c.Backoff.Steps = 1 })
	if d, _, err := a.Authorize(t.Context(), question()); d != authz.Deny || err == nil {
		t.Error(d, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d, _, err := a.Authorize(ctx, question()); d != authz.Deny || err == nil {
		t.Error(d, err)
	}
}

func TestUntrusted(t *testing.T) {
	s, other := serve(t, status(`{"allowed":true}`)), serve(t, status(`{"allowed":true}`))
	a := s.authorizer(t, func(c *Config) {
		// The address of one service with the certificate of another that has
		// the same name cannot be told apart by httptest's certificate, so the
		// authority is none at all.
		data, _ := os.ReadFile(c.Kubeconfig)
		text := strings.Replace(string(data), s.URL, other.URL, 1)
		i := strings.Index(text, `,"certificate-authority"`)
		j := strings.Index(text[i:], "}")
		if err := os.WriteFile(c.Kubeconfig, []byte(text[:i]+text[i+j:]), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if d, _, err := a.Authorize(t.Context(), question()); d != authz.NoOpinion || err == nil || other.asked() != 0 {
		t.Error(d, err)
	}
}

func TestConfigErrors(t *testing.T) {
	s := serve(t, status(`{}`))
	if _, err := New(Config{Kubeconfig: s.kubeconfig(t), Version: "v2"}); err == nil ||
		err.Error() != `unsupported webhook authorizer version "v2", supported versions are "v1", "v1beta1"` {
		t.Error(err)
	}
	if _, err := New(Config{Kubeconfig: filepath.Join(t.TempDir(), "nope"), Version: "v1"}); err == nil {
		t.Error("a kubeconfig that is not there is no error")
	}
}

func TestConditions(t *testing.T) {
	compiler, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	withSelector := question()
	withSelector.Fields = fields.OneTermEqualSelector("spec.nodeName", "n1").Requirements()
	path := &authz.Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/metrics"}
	for _, c := range []struct {
		name        string
		of          *authz.Attributes
		expressions []string
		matches     bool
		err         string
	}{
		{name: "none", of: question(), matches: true},
		{name: "all hold", of: question(), expressions: []string{"request.user == 'jane'", "request.resourceAttributes.resource == 'deployments'", "'g' in request.groups"}, matches: true},
		{name: "one does not", of: question(), expressions: []string{"request.user == 'jane'", "request.uid == 'x'"}},
		{name: "extra", of: question(), expressions: []string{"request.extra['k'][0] == 'v'"}, matches: true},
		{name: "resource or path", of: path, expressions: []string{"!has(request.resourceAttributes)", "request.nonResourceAttributes.path.startsWith('/m')"}, matches: true},
		{name: "selector", of: withSelector, expressions: []string{"request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.operator == 'In' && r.values == ['n1'])"}, matches: true},
		{name: "no selector", of: question(), expressions: []string{"!has(request.resourceAttributes.fieldSelector)"}, matches: true},
		{name: "fails", of: path, expressions: []string{"request.resourceAttributes.resource == 'pods'"}, err: "cel evaluation error: expression 'request.resourceAttributes.resource == 'pods'' resulted in error"},
		{name: "fails, another is false", of: path, expressions: []string{"request.resourceAttributes.resource == 'pods'", "request.user == 'x'"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conditions, errs := compiler.Compile(nil, c.expressions)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			s := serve(t, status(`{"allowed":true}`))
			a := s.authorizer(t, func(cfg *Config) { cfg.Conditions, cfg.OnError = conditions, authz.Deny })
			decision, _, err := a.Authorize(t.Context(), c.of)
			want := authz.NoOpinion
			switch {
			case c.matches:
				want = authz.Allow
			case c.err != "":
				want = authz.Deny
			}
			if decision != want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) || (s.asked() == 1) != c.matches {
				t.Error(decision, err, s.asked())
			}
		})
	}
	var many []string
	for i := range maxConditions + 1 {
		many = append(many, fmt.Sprintf("request.user == '%d'", i))
	}
	for want, expressions := range map[string][]string{
		`x.matchConditions: Too many: 65: must have at most 64 items`:                                                                    many,
		`x.matchConditions[0].expression: Required value`:                                                                                {" "},
		`x.matchConditions[1].expression: Duplicate value: "true"`:                                                                       {"true", "true"},
		`x.matchConditions[0].expression: Invalid value: "1": must evaluate to bool but got int`:                                         {"1"},
		`x.matchConditions[0].expression: Invalid value: "request.nope": compilation failed: ERROR: <input>:1:8: undefined field 'nope'`: {"request.nope"},
	} {
		_, errs := compiler.Compile(field.NewPath("x"), expressions)
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), want) {
			t.Errorf("got  %v\nwant %s", errs, want)
		}
	}
}

func TestKey(t *testing.T) {
	// The key of the cache is the review, so it must not depend on the order of
	// a map.
	at := question()
	at.User.Extra = map[string][]string{"a": {"1"}, "b": {"2"}, "c": {"3"}}
	first, _ := json.Marshal(specOf(at))
	for range 20 {
		if again, _ := json.Marshal(specOf(at)); string(again) != string(first) {
			t.Fatal(string(again))
		}
	}
}

// TestConditionsEndWithTheirRequest evaluates a condition of a million steps for a request that has
// ended.
func TestConditionsEndWithTheirRequest(t *testing.T) {
	compiler, err := NewCompiler()
	if err != nil {
		t.Fatal(err)
	}
	const ten = "[0,1,2,3,4,5,6,7,8,9]"
	conditions, errs := compiler.Compile(nil, []string{ten + ".all(a, " + ten + ".all(b, " + ten + ".all(c, " + ten + ".all(d, " + ten + ".all(e, " + ten + ".all(f, request.user != string(a+b+c+d+e+f)))))))"})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conditions.match(ctx, &authorizationv1.SubjectAccessReviewSpec{User: "jane"}); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("got %v, want that the evaluation was interrupted", err)
	}
}
