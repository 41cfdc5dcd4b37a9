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
	m.End(h, r, status, 5, 0)
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
		{"DELETE", "/api/v1/namespaces/d/pods", "", 429, `code="429",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="DELETECOLLECTION",version="v1"`},
		{"GET", "/healthz", "", 200, `code="200",component="",dry_run="",group="",resource="",scope="",subresource="/healthz",verb="GET",version=""`},
	} {
		send(t, m, tt.method, tt.url, tt.media, tt.status)
		if want := "apiserver_request_total{" + tt.want + "} 1\n"; !strings.Contains(show(t, r), want) {
			t.Errorf("%s %s: no %s", tt.method, tt.url, want)
		}
	}
	text := show(t, r)
	for _, want := range []string{
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
		m.End(h, r, 200, 5, 0)
	}
}
