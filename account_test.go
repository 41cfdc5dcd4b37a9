package kelson

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/usage"
)

// Every request is accounted for once, however it ends.
func TestRequestsAreAccountedFor(t *testing.T) {
	inWatch, endWatch := make(chan struct{}), make(chan struct{})
	s := &Server{
		Usage: usage.New(usage.Config{}), Flow: flow.New(flow.Config{}),
		API: routes{
			"/api/v1/namespaces/a/pods/x": say("twelve bytes"),
			"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
				if request.From(r.Context()).Verb == request.Watch {
					_, _ = io.WriteString(w, "event")
					close(inWatch)
					<-endWatch
				}
			},
			"/api/v1/nodes": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		},
		Authenticate: func(r *http.Request) (request.User, bool, error) {
			name := r.Header.Get("Name")
			return request.User{Name: name, Groups: []string{"system:authenticated"}}, name != "", nil
		},
	}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	send := func(user, path string) {
		defer func() { _ = recover() }() // of the aborted one
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Header.Set("Name", user)
		r.Header.Set("User-Agent", "test/"+user)
		s.ServeHTTP(httptest.NewRecorder(), r)
	}
	rows := func(by usage.Dimension) map[string]usage.Row {
		t.Helper()
		top, err := s.Usage.Top(usage.Query{By: by, Since: time.Minute}, usage.Everything)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]usage.Row{}
		for _, r := range top.Rows {
			all[r.Name] = r
		}
		return all
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		send("watcher", "/api/v1/pods?watch=1")
	}()
	<-inWatch
	send("getter", "/api/v1/namespaces/a/pods/x")
	send("getter", "/version")
	send("aborter", "/api/v1/nodes")
	send("", "/api/v1/pods")
	polltest.Until(t, "all requests are counted", func() bool {
		return rows(usage.ByUser)["watcher"].OpenWatches == 1 && rows(usage.ByUser)["getter"].Requests == 2
	})
	users := rows(usage.ByUser)
	if r := users["watcher"]; r.Requests != 1 || r.BytesOut != 5 {
		t.Errorf("the watch: got %+v, want one request and 5 bytes", r)
	}
	if users["aborter"].Failed != 1 || users["(not authenticated)"].Requests != 1 {
		t.Errorf("got %+v, want one that failed and one that is not authenticated", users)
	}
	if r := rows(usage.ByNamespace)["a"]; r.Requests != 1 || r.BytesOut != 12 {
		t.Errorf("namespace a: got %+v, want one request and 12 bytes", r)
	}
	if all := rows(usage.ByResource); all["pods"].Requests != 3 || all["(paths)"].Requests != 1 {
		t.Errorf("by resource: got %+v, want 3 of pods and one of paths", all)
	}
	if r := rows(usage.ByAgent)["test/getter"]; r.Requests != 2 {
		t.Errorf("by agent: got %+v, want 2 requests", r)
	}
	if r := rows(usage.ByLevel)["catch-all"]; r.Requests == 0 || r.OpenWatches != 1 {
		t.Errorf("by level: got %+v, want requests and the watch", r)
	}
	close(endWatch)
	<-watched
	polltest.Until(t, "the watch is no longer counted as open", func() bool { return rows(usage.ByUser)["watcher"].OpenWatches == 0 })
}
