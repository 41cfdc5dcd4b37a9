package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

func known(i *request.Info) bool { return i.Resource == "pods" || i.Path == "/healthz" }

// send is a request that was answered.
func send(t testing.TB, m *Requests, method, url, media string, status int) {
	h := httptest.NewRequest(method, url, nil)
	h.Header.Set("Content-Type", media)
	info, err := request.Parse(h)
	if err != nil {
		t.Fatal(err)
	}
	r := &request.Request{Info: info, Received: time.Now()}
	if info.LongRunning() {
		defer m.Begin(h, r)()
	}
	ended := Answered
	switch status {
	case http.StatusTooManyRequests:
		ended = Dropped
	case http.StatusGatewayTimeout:
		ended = TimedOut
	case http.StatusForbidden:
		ended = Refused
	}
	m.End(h, r, ended, false, status, 5, 0)
}

// show returns what a scrape has.
func show(t *testing.T, r *Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler(true).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Fatal(w.Code, w.Body)
	}
	return w.Body.String()
}

func TestRequests(t *testing.T) {
	r := New()
	m := NewRequests(r, known)
	for _, tt := range []struct {
		method, url, media string
		status             int
		want               string
	}{
		{"GET", "/api/v1/namespaces/d/pods/p", "", 200, `code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"`},
		{"GET", "/api/v1/namespaces/d/pods", "", 200, `code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"`},
		{"GET", "/api/v1/pods?watch=1", "", 200, `code="200",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"`},
		{"POST", "/api/v1/namespaces/d/pods?dryRun=All", "", 201, `code="201",component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"`},
		{"PATCH", "/api/v1/namespaces/d/pods/p?dryRun=x", "application/apply-patch+yaml", 400, `code="400",component="apiserver",dry_run="invalid",group="",resource="pods",scope="resource",subresource="",verb="APPLY",version="v1"`},
		{"POST", "/api/v1/namespaces/d/pods/p/exec", "", 101, `code="101",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="exec",verb="CONNECT",version="v1"`},
		{"DELETE", "/api/v1/namespaces/d/pods", "", 429, `code="429",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="DELETE",version="v1"`},
		{"GET", "/healthz", "", 200, `code="200",component="",dry_run="",group="",resource="",scope="",subresource="/healthz",verb="GET",version=""`},
	} {
		send(t, m, tt.method, tt.url, tt.media, tt.status)
		if want := "apiserver_request_total{" + tt.want + "} 1\n"; !strings.Contains(show(t, r), want) {
			t.Errorf("%s %s: no %s", tt.method, tt.url, want)
		}
	}
	send(t, m, "GET", "/apis/gone.io/v1/namespaces/d/things", "", 503)
	text := show(t, r)
	for _, want := range []string{
		`apiserver_request_terminations_total{code="503",component="aggregator",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 0`,
		`apiserver_request_terminations_total{code="429",`, `apiserver_request_duration_seconds_bucket{`, `apiserver_response_sizes_sum{component="apiserver",group="",resource="pods",scope="namespace",subresource="",verb="LIST",version="v1"} 5`,
		"go_goroutines ", "process_start_time_seconds ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}

	w := httptest.NewRecorder()
	r.Handler(true).ServeHTTP(w, httptest.NewRequest("DELETE", "/metrics", nil))
	if w.Body.String() != "metrics reset\n" || strings.Contains(show(t, r), "apiserver_request_total{") {
		t.Errorf("%q", w.Body)
	}
	send(t, m, "GET", "/healthz", "", 200)
	if !strings.Contains(show(t, r), "apiserver_request_total{") {
		t.Error("nothing is counted any longer")
	}
}

// Whatever clients invent, they make no series.
func TestFlood(t *testing.T) {
	r := New()
	m := NewRequests(r, known)
	flood := func(n int) {
		for i := range n {
			send(t, m, "GET", fmt.Sprintf("/apis/g%d/v%d/r%d/n%d", i, i, i, i), "", 404)
			send(t, m, fmt.Sprintf("M%d", i), fmt.Sprintf("/p%d?dryRun=%d", i, i), "", 1000+i)
			send(t, m, http.MethodPatch, "/api/v1/namespaces/d/pods/p", fmt.Sprint(i), 200)
		}
	}
	series := func() int { return strings.Count(show(t, r), "\napiserver_") }
	flood(2)
	before := series()
	flood(1000)
	if after := series(); after != before {
		t.Errorf("%d series, before %d", after, before)
	}
}

func BenchmarkEnd(b *testing.B) {
	m := NewRequests(New(), known)
	h := httptest.NewRequest("GET", "/api/v1/namespaces/d/pods/p", nil)
	info, _ := request.Parse(h)
	r := &request.Request{Info: info, Received: time.Now()}
	b.ReportAllocs()
	for b.Loop() {
		m.End(h, r, Answered, false, 200, 5, 0)
	}
}

func BenchmarkAccess(b *testing.B) {
	m := NewRequests(New(), known)
	b.ReportAllocs()
	for b.Loop() {
		m.Authenticated("joe", true, nil, time.Microsecond)
		m.Authorized("allowed", time.Microsecond)
	}
}

func TestAccess(t *testing.T) {
	r := New()
	m := NewRequests(r, known)
	for range 2 {
		m.Authenticated("admin", true, nil, time.Millisecond)
		m.Authenticated("joe@example.com", true, nil, time.Millisecond)
		m.Authenticated("joe", true, nil, time.Millisecond)
		m.Authenticated("", false, nil, time.Millisecond)
		m.Authenticated("", false, http.ErrNoCookie, time.Millisecond)
		m.Authorized("allowed", time.Millisecond)
		m.Deprecated("apps", "v1beta1", "deployments", "", "apps/v1beta1 Deployment is deprecated in v1.8+, unavailable in v1.16+; use apps/v1 Deployment")
		m.Listed("", "pods", 10, 3)
		m.Watched("", "v1", "pods")(2000)
		m.Asked("GET", "localhost", 200, time.Millisecond, 5, 10)
		m.Handshake()
		text := show(t, r)
		for _, want := range []string{
			`authenticated_user_requests{username="admin"} 1`, `authenticated_user_requests{username="email_id"} 1`, `authenticated_user_requests{username="other"} 1`,
			`authentication_attempts{result="success"} 3`, `authentication_attempts{result="failure"} 1`, `authentication_attempts{result="error"} 1`,
			`authorization_attempts_total{result="allowed"} 1`, `authorization_duration_seconds_bucket{result="allowed",le="0.001"} 1`,
			`apiserver_requested_deprecated_apis{group="apps",removed_release="1.16",resource="deployments",subresource="",version="v1beta1"} 1`,
			`apiserver_storage_list_evaluated_objects_total{group="",resource="pods",storage="watchcache"} 10`,
			`apiserver_storage_list_returned_objects_total{group="",resource="pods",storage="watchcache"} 3`,
			`apiserver_watch_events_sizes_bucket{group="",resource="pods",version="v1",le="2048"} 1`,
			`rest_client_requests_total{code="200",host="localhost",method="GET"} 1`, `apiserver_tls_handshake_errors_total 1`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no %s", want)
			}
		}
		// Once more, when all was forgotten.
		r.Handler(true).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/metrics", nil))
	}
}

func TestHide(t *testing.T) {
	r := New()
	m := NewRequests(r, known)
	r.Configure(Config{Disabled: []string{"apiserver_tls_handshake_errors_total", "go_goroutines"}})
	m.Handshake()
	if text := show(t, r); strings.Contains(text, "apiserver_tls_handshake_errors_total") || strings.Contains(text, "\ngo_goroutines ") || !strings.Contains(text, "go_threads ") {
		t.Error(text)
	}
}

func TestQueues(t *testing.T) {
	r := New()
	q := NewQueues(r).Queue("namespace")
	q.Added()
	q.Added()
	q.Taken(time.Second)
	q.Done(time.Second)
	q.Retried()
	for _, want := range []string{
		`workqueue_depth{name="namespace"} 1`, `workqueue_adds_total{name="namespace"} 2`, `workqueue_retries_total{name="namespace"} 1`,
		`workqueue_queue_duration_seconds_count{name="namespace"} 1`, `workqueue_work_duration_seconds_sum{name="namespace"} 1`,
	} {
		if !strings.Contains(show(t, r), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
