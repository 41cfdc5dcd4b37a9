package authn

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/apikeel/kelson/internal/requesttest"
	"github.com/apikeel/kelson/request"
)

// reviewer is a webhook server. What it answers is set by the test.
type reviewer struct {
	*httptest.Server
	calls  atomic.Int64
	answer func(w http.ResponseWriter, review *authenticationv1.TokenReview) // fills in the status
}

func newReviewer(t *testing.T, version string) *reviewer {
	t.Helper()
	rev := &reviewer{}
	rev.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rev.calls.Add(1)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.URL.Path != "/review" || r.Method != http.MethodPost ||
			review.APIVersion != "authentication.k8s.io/"+version || review.Kind != "TokenReview" || r.Header.Get("Authorization") != "Bearer caller" {
			t.Errorf("%s %s: %+v, error %v", r.Method, r.URL.Path, review, err)
		}
		rev.answer(w, &review)
	}))
	t.Cleanup(rev.Close)
	return rev
}

func (r *reviewer) respond(w http.ResponseWriter, review *authenticationv1.TokenReview) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func (r *reviewer) kubeconfig(t *testing.T) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	return writeFile(t, "kubeconfig", fmt.Appendf(nil, `{
		"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "hook", "cluster": {"server": %q, "certificate-authority-data": %q}}],
		"users": [{"name": "caller", "user": {"token": "caller"}}],
		"contexts": [{"name": "c", "context": {"cluster": "hook", "user": "caller"}}]
	}`, r.URL+"/review", mustBase64(ca)))
}

func mustBase64(data []byte) string {
	text, _ := json.Marshal(data)
	return strings.Trim(string(text), `"`)
}

func (r *reviewer) stage(t *testing.T, version string, now func() time.Time) *Stage {
	t.Helper()
	return newStage(t, Config{
		Webhook: Webhook{
			KubeconfigFile: r.kubeconfig(t), Version: version,
			Backoff: wait.Backoff{Duration: time.Microsecond, Factor: 1, Steps: 3},
		},
		TokenSuccessTTL: -1, APIAudiences: []string{"api"}, Now: now,
	})
}

func TestWebhook(t *testing.T) {
	jane := authenticationv1.UserInfo{Username: "jane", UID: "1", Groups: []string{"a"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
	tests := []struct {
		name   string
		answer func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview)
		user   string
		err    string // part of it
		calls  int64
	}{
		{name: "known", user: "jane", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			if review.Spec.Token != "secret" || !reflect.DeepEqual(review.Spec.Audiences, []string{"api"}) {
				w.WriteHeader(http.StatusTeapot)
			}
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: jane}
			r.respond(w, review)
		}},
		{name: "known for an audience", user: "jane", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: jane, Audiences: []string{"x", "api"}}
			r.respond(w, review)
		}},
		{name: "known for another audience", err: "invalid bearer token", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: jane, Audiences: []string{"x"}}
			r.respond(w, review)
		}},
		{name: "unknown", err: "invalid bearer token", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			r.respond(w, review)
		}},
		{name: "unknown for a reason", err: "revoked", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			review.Status.Error = "revoked"
			r.respond(w, review)
		}},
		{name: "broken for good", err: "an error on the server", calls: 3, answer: func(_ *reviewer, w http.ResponseWriter, _ *authenticationv1.TokenReview) {
			w.WriteHeader(http.StatusInternalServerError)
		}},
		{name: "broken for a moment", user: "jane", calls: 2, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			if r.calls.Load() == 1 {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: jane}
			r.respond(w, review)
		}},
		{name: "refuses", err: "403 Forbidden", calls: 1, answer: func(_ *reviewer, w http.ResponseWriter, _ *authenticationv1.TokenReview) {
			w.WriteHeader(http.StatusForbidden)
		}},
		{name: "not a review", err: "is not a TokenReview", calls: 1, answer: func(_ *reviewer, w http.ResponseWriter, _ *authenticationv1.TokenReview) {
			_, _ = w.Write([]byte("hello"))
		}},
		{name: "wrong version", err: "instead of a TokenReview", calls: 1, answer: func(r *reviewer, w http.ResponseWriter, review *authenticationv1.TokenReview) {
			review.APIVersion = "authentication.k8s.io/v2"
			review.Status.Authenticated = true
			r.respond(w, review)
		}},
	}
	for _, version := range []string{"v1", "v1beta1"} {
		for _, test := range tests {
			t.Run(version+" "+test.name, func(t *testing.T) {
				r := newReviewer(t, version)
				r.answer = func(w http.ResponseWriter, review *authenticationv1.TokenReview) { test.answer(r, w, review) }
				u, _, err := r.stage(t, version, nil).User(requestWith("Bearer secret"))
				if u.Name != test.user || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
					t.Errorf("user %q, error %v, want %q and %q", u.Name, err, test.user, test.err)
				}
				if err != nil && strings.Contains(err.Error(), "secret") {
					t.Errorf("the error shows the token: %v", err)
				}
				if want := (request.User{Name: "jane", UID: "1", Groups: []string{"a", "system:authenticated"}, Extra: map[string][]string{"k": {"v"}}}); u.Name != "" && !reflect.DeepEqual(u, want) {
					t.Errorf("user %+v", u)
				}
				if r.calls.Load() != test.calls {
					t.Errorf("called %d times, want %d", r.calls.Load(), test.calls)
				}
			})
		}
	}
}

func TestWebhookCache(t *testing.T) {
	now := time.Now()
	r := newReviewer(t, "v1beta1")
	r.answer = func(w http.ResponseWriter, review *authenticationv1.TokenReview) {
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "jane"}}
		case "broken":
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		r.respond(w, review)
	}
	s := r.stage(t, "", func() time.Time { return now })
	for _, test := range []struct {
		token string
		calls int64 // for two requests, and a third two minutes later
	}{{"good", 2}, {"bad", 2}, {"broken", 9}} {
		r.calls.Store(0)
		for i := range 3 {
			_, _, _ = s.User(requestWith("Bearer " + test.token))
			if i == 1 {
				now = now.Add(2 * time.Minute)
			}
		}
		if got := r.calls.Load(); got != test.calls {
			t.Errorf("%s: called %d times, want %d", test.token, got, test.calls)
		}
	}
}

// TestWebhookEndsArrival: a request that waits for a webhook says so, so that it keeps no other out.
func TestWebhookEndsArrival(t *testing.T) {
	var ended requesttest.EndedArrivals
	r := newReviewer(t, "v1beta1")
	r.answer = func(w http.ResponseWriter, review *authenticationv1.TokenReview) {
		if ended.Load() != 1 {
			t.Errorf("the webhook is asked when %d arrivals have ended", ended.Load())
		}
		r.respond(w, review)
	}
	hr := requestWith("Bearer x")
	_, _, _ = r.stage(t, "", nil).User(hr.WithContext(request.With(hr.Context(), &request.Request{Arrival: &ended})))
	if r.calls.Load() != 1 {
		t.Errorf("called %d times", r.calls.Load())
	}
}

func TestWebhookConfig(t *testing.T) {
	for name, w := range map[string]Webhook{
		"version": {KubeconfigFile: "x", Version: "v2"},
		"file":    {KubeconfigFile: "/nonexistent"},
		"retries": {KubeconfigFile: "x", Backoff: wait.Backoff{Duration: 1, Steps: -1}},
	} {
		if _, err := (Config{Webhook: w}).New(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
