package kelson

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/trace"
)

func TestTraces(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var mu sync.Mutex
	var kept []trace.Data
	tracer := &trace.Tracer{Export: func(d trace.Data) {
		mu.Lock()
		defer mu.Unlock()
		kept = append(kept, d)
	}}
	// The handler passes on what it would tell others.
	passes := func(w http.ResponseWriter, r *http.Request) {
		h := http.Header{}
		trace.Inject(r.Context(), h)
		_, _ = io.WriteString(w, h.Get("Traceparent"))
	}
	api := routes{"/api/v1/namespaces/default/pods/x": passes, "/apis/apps/v1/deployments": passes}
	groups := map[string][]string{"admin": {"system:masters"}, "joe": nil}
	user := func(r *http.Request) (request.User, bool, error) {
		name := r.Header.Get("Authorization")
		return request.User{Name: name, Groups: groups[name]}, true, nil
	}
	on := start(t, &Server{API: api, Tracer: tracer, Authenticate: user})
	off := start(t, &Server{API: api, Authenticate: user})
	ask := func(s *running, who, path, header string) string {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL()+path, nil)
		req.Header.Set("Authorization", who)
		if header != "" {
			req.Header.Set("Traceparent", header)
		}
		resp, err := s.client(t, 2, nil).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return string(body)
	}
	if got := ask(off, "admin", "/apis/apps/v1/deployments", parent); got != parent {
		t.Errorf("without a tracer %q is passed on", got)
	}
	if got := ask(off, "admin", "/apis/apps/v1/deployments", ""); got != "" {
		t.Errorf("without a tracer, from nothing: %q", got)
	}
	// Whose trace it is decides whether it is kept, if the client is one to
	// believe.
	got := ask(on, "admin", "/api/v1/namespaces/default/pods/x", parent)
	if !strings.HasPrefix(got, parent[:36]) || got == parent || !strings.HasSuffix(got, "-01") {
		t.Errorf("%q is passed on", got)
	}
	if got := ask(on, "admin", "/apis/apps/v1/deployments", ""); !strings.HasSuffix(got, "-00") {
		t.Errorf("a trace that nobody wants is passed on as %q", got)
	}
	if got := ask(on, "joe", "/apis/apps/v1/deployments", parent); !strings.HasSuffix(got, "-00") || strings.HasPrefix(got, parent[:36]) {
		t.Errorf("of somebody else %q is passed on", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(kept) != 1 {
		t.Fatalf("%d spans", len(kept))
	}
	d := kept[0]
	if d.Name != "GET /api/v1/namespaces/{:namespace}/pods/{:name}" || d.Kind != trace.Server || !d.ParentRemote {
		t.Errorf("%+v", d)
	}
	attributes := map[string]trace.Attribute{}
	for _, a := range d.Attributes {
		attributes[a.Key] = a
	}
	if attributes["http.response.status_code"].Number != 200 || attributes["http.response.body.size"].Number != 55 ||
		attributes["url.path"].Text != "/api/v1/namespaces/default/pods/x" || attributes["network.protocol.version"].Text != "2.0" || attributes["audit-id"].Text == "" {
		t.Errorf("%+v", d.Attributes)
	}
}

func TestSpanNames(t *testing.T) {
	for path, want := range map[string]string{
		"/version":                        "GET",
		"/api/v1/nodes":                   "GET /api/v1/nodes",
		"/api/v1/namespaces/n/pods/p/log": "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log",
		"/apis/apps/v1/namespaces/n/deployments?watch=1": "GET /apis/apps/v1/namespaces/{:namespace}/deployments",
	} {
		r, _ := http.NewRequest("GET", path, nil)
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		x := &exchange{r: r}
		x.Info = info
		if got := spanName(x); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
}

func TestRequestLog(t *testing.T) {
	for level, want := range map[slog.Level][]string{
		LevelRequests:   {"msg=HTTP verb=GET URI=/version latency=", ` userAgent="" contentType="" audit-ID=`, " resp=200\n", `msg="slow request" verb=GET URI=/slow `},
		slog.LevelDebug: {" resp=200 user=joe "},
		slog.LevelInfo:  {`msg="slow request" verb=GET URI=/slow `},
		slog.LevelWarn:  nil,
	} {
		log := &logBuffer{}
		s := &Server{
			Logger:       slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})),
			Authenticate: func(*http.Request) (request.User, bool, error) { return request.User{Name: "joe"}, true, nil },
			Paths: map[string]http.Handler{"/slow": http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				// As if it had come long ago.
				request.From(r.Context()).Received = time.Now().Add(-time.Second)
			})},
		}
		if err := s.PrepareRun(); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/version", "/slow"} {
			s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
		}
		text := log.String()
		for _, line := range want {
			if !strings.Contains(text, line) {
				t.Errorf("%v: no %s in %s", level, line, text)
			}
		}
		if level > LevelRequests && strings.Contains(text, "msg=HTTP") || level > slog.LevelInfo && strings.Contains(text, "slow request") {
			t.Errorf("%v: %s", level, text)
		}
	}
}
