package kelson

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/apikeel/kelson/flow"
	"github.com/apikeel/kelson/request"
)

// limited is a prepared server that lets so many requests in at a time.
func limited(t *testing.T, l flow.Limiter, api Router) *Server {
	t.Helper()
	s := &Server{API: api, Flow: l, Authenticate: func(r *http.Request) (request.User, bool, error) {
		return request.User{Name: "u", Groups: []string{"system:authenticated", r.Header.Get("Group")}}, true, nil
	}}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	return s
}

func ask(s *Server, path, group string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
	r.Header.Set("Group", group)
	s.ServeHTTP(w, r)
	return w
}

func TestTooManyRequests(t *testing.T) {
	for name, limiter := range map[string]flow.Limiter{
		"fairness":  flow.New(flow.Config{MaxReading: 1, MaxWriting: -1}),
		"in flight": flow.NewInFlight(flow.Config{Off: true, MaxReading: 1}),
	} {
		t.Run(name, func(t *testing.T) {
			busy, release := make(chan struct{}), make(chan struct{})
			s := limited(t, limiter, routes{
				"/api/v1/pods":  func(http.ResponseWriter, *http.Request) { close(busy); <-release },
				"/api/v1/nodes": say("nodes"),
			})
			var running sync.WaitGroup
			running.Go(func() { ask(s, "/api/v1/pods", "") })
			<-busy
			w := ask(s, "/api/v1/nodes", "")
			if w.Code != 429 || w.Body.String() != "Too many requests, please try again later.\n" || w.Header().Get("Retry-After") != "1" ||
				w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
			}
			if _, ok := w.Header()[flow.SchemaHeader]; ok != (name == "fairness") {
				t.Errorf("%v", w.Header())
			}
			if w := ask(s, "/api/v1/nodes", "system:masters"); w.Body.String() != "nodes" {
				t.Errorf("an administrator got %d %q", w.Code, w.Body)
			}
			close(release)
			running.Wait()
			if w := ask(s, "/api/v1/nodes", ""); w.Body.String() != "nodes" {
				t.Errorf("when there is room again: %d %q", w.Code, w.Body)
			}
		})
	}
}

// A watch takes a seat until it has begun, a panic does not keep one.
func TestSeats(t *testing.T) {
	control := flow.New(flow.Config{MaxReading: 1, MaxWriting: -1})
	begun, release := make(chan struct{}), make(chan struct{})
	s := limited(t, control, routes{
		"/api/v1/watch/pods": func(_ http.ResponseWriter, r *http.Request) {
			request.From(r.Context()).Started()
			close(begun)
			<-release
		},
		"/api/v1/nodes": say("nodes"),
		"/api/v1/pods":  func(http.ResponseWriter, *http.Request) { panic("help") },
	})
	var running sync.WaitGroup
	running.Go(func() { ask(s, "/api/v1/watch/pods", "") })
	<-begun
	if w := ask(s, "/api/v1/pods", ""); w.Code != 500 {
		t.Errorf("a panic: %d", w.Code)
	}
	if w := ask(s, "/api/v1/nodes", ""); w.Code != 200 {
		t.Errorf("beside a watch: %d", w.Code)
	}
	if n := control.Working.Reading.Load(); n != 0 {
		t.Errorf("%d requests are worked on", n)
	}
	close(release)
	running.Wait()
}

// The server has its own requests done whatever others want.
func TestLoopbackIsExempt(t *testing.T) {
	busy, release := make(chan struct{}), make(chan struct{})
	s := limited(t, flow.New(flow.Config{MaxReading: 1, MaxWriting: -1}), routes{
		"/api/v1/pods":  func(http.ResponseWriter, *http.Request) { close(busy); <-release },
		"/api/v1/nodes": say("nodes"),
	})
	var running sync.WaitGroup
	running.Go(func() { ask(s, "/api/v1/pods", "") })
	<-busy
	client := http.Client{Transport: s.Loopback(request.User{Name: "system:apiserver", Groups: []string{"system:masters"}})}
	r, _ := http.NewRequestWithContext(context.Background(), "GET", "http://kelson/api/v1/nodes", nil)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "nodes" {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	close(release)
	running.Wait()
}

func BenchmarkFlowControl(b *testing.B) {
	r := httptest.NewRequest("GET", "/api/v1/namespaces/d/pods/p", nil)
	for name, s := range map[string]*Server{"without": {}, "with": {Flow: flow.New(flow.Config{})}} {
		b.Run(name, func(b *testing.B) {
			stage := s.flowControl()
			b.ReportAllocs()
			for b.Loop() {
				x := newExchange(httptest.NewRecorder(), r)
				x.setHeader("Audit-Id", "there are other headers")
				x.Info = request.Info{IsResource: true, Verb: "get", Resource: "pods", Namespace: "d", Name: "p"}
				x.User = request.User{Name: "u", Groups: []string{"system:authenticated"}}
				if stage.begin != nil && stage.begin(x) {
					stage.end(x, nil)
				}
			}
		})
	}
}

// TestCompleteAnswersHoldNoSeat: an answer that has only to be written (request.Started) takes no
// seat, however long its client takes to read it.
func TestCompleteAnswersHoldNoSeat(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	s := limited(t, flow.New(flow.Config{MaxReading: 1, MaxWriting: -1}), routes{
		"/api/v1/pods": func(_ http.ResponseWriter, r *http.Request) {
			request.From(r.Context()).Started()
			close(begun)
			<-release
		},
		"/api/v1/nodes": say("nodes"),
	})
	var running sync.WaitGroup
	running.Go(func() { ask(s, "/api/v1/pods", "") })
	<-begun
	if w := ask(s, "/api/v1/nodes", ""); w.Body.String() != "nodes" {
		t.Errorf("beside an answer that is being written: %d %q", w.Code, w.Body)
	}
	close(release)
	running.Wait()
}
