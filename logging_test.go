package kelson

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/boundedlog"
	"github.com/apikeel/kelson/internal/jsonlog"
	"github.com/apikeel/kelson/internal/textlog"
	"github.com/apikeel/kelson/request"
)

// TestSlowRequests: what took the time of a slow request is in the log, in the form
// that operators know from Kubernetes.
func TestSlowRequests(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		req := request.From(r.Context())
		req.Passed = time.Now().Add(-time.Second)
		req.MachineTime = req.Passed
		req.Time("Get")
		req.Timeline().First("About to Get from storage")
		req.Timeline().Step("About to write a response")
		_, _ = io.WriteString(w, "x")
		req.Timeline().Last("Writing http response done")
		req.Timed()
	}
	s := start(t, &Server{
		API: routes{"/api/v1/namespaces/default/pods/x": slow, "/api/v1/namespaces/default/pods/y": func(http.ResponseWriter, *http.Request) {}},
	})
	client := s.admin(t)
	for _, path := range []string{"/api/v1/namespaces/default/pods/y", "/api/v1/namespaces/default/pods/x"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "application/json")
		req.Header.Set("User-Agent", "tester")
		req.Header.Set("Audit-Id", "7")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(path, resp.Status)
		}
	}
	want := regexp.MustCompile(`msg="Trace\[\d+\]: \\"Get\\" accept:application/json,audit-id:7,client:127.0.0.1,api-group:,api-version:v1,name:x,subresource:,namespace:default,` +
		`protocol:HTTP/2.0,resource:pods,scope:resource,url:/api/v1/namespaces/default/pods/x,user-agent:tester,verb:GET ` +
		`\(\d\d-...-\d{4} [\d:.]+\) \(total time: \d+ms\):` +
		`\\nTrace\[\d+\]: ---\\"About to write a response\\" \d+ms \([\d:.]+\)` +
		`\\nTrace\[\d+\]: \[[\d.]+s\] \[[\d.]+s\] END\\n"`)
	deadline := time.Now().Add(30 * time.Second)
	for !want.MatchString(s.log.String()) {
		if time.Now().After(deadline) {
			t.Fatalf("the log has %s", s.log.String())
		}
		time.Sleep(time.Millisecond)
	}
	if n := len(regexp.MustCompile(`Trace\[\d+\]: \\"`).FindAllString(s.log.String(), -1)); n != 1 {
		t.Errorf("%d requests were slow", n)
	}
}

// anything is an API that has every path.
type anything http.HandlerFunc

func (a anything) Route(w http.ResponseWriter, r *http.Request) bool {
	a(w, r)
	return true
}

func (anything) Paths() []string { return nil }

// TestClientsDoNotFillTheLog sends requests in which everything that a client chooses
// is as long as it may be, or has lines of its own. What is logged of a request stays
// small, and in its lines.
func TestClientsDoNotFillTheLog(t *testing.T) {
	const size, forged = 500 << 10, "E0101 00:00:00.000000       1 pipeline.go:1] forged"
	long := strings.Repeat("a", size)
	requests := map[string]func(r *http.Request){
		"audit ID":        func(r *http.Request) { r.Header.Set("Audit-Id", long) },
		"URI":             func(r *http.Request) { r.RequestURI += "?x=" + long; r.URL.RawQuery = "x=" + long },
		"path":            func(r *http.Request) { r.RequestURI = "/" + long; r.URL.Path = "/" + long },
		"forged path":     func(r *http.Request) { r.URL.Path += "\n" + forged },
		"user agent":      func(r *http.Request) { r.Header.Set("User-Agent", long) },
		"content type":    func(r *http.Request) { r.Header.Set("Content-Type", long) },
		"accept":          func(r *http.Request) { r.Header.Set("Accept", long+"\n"+forged) },
		"user":            func(r *http.Request) { r.Header.Set("User", long+"\n"+forged) },
		"token":           func(r *http.Request) { r.Header.Set("Authorization", long+"\n"+forged) },
		"method":          func(r *http.Request) { r.Method = long },
		"panic":           func(r *http.Request) { r.Header.Set("Panic", long+"\n"+forged) },
		"not authorized":  func(r *http.Request) { r.Header.Set("Fails", long+"\n"+forged) },
		"audit ID, lines": func(r *http.Request) { r.Header.Set("Audit-Id", "\n"+forged) },
	}
	slow := func(_ http.ResponseWriter, r *http.Request) {
		req := request.From(r.Context())
		req.Passed = time.Now().Add(-time.Second)
		req.MachineTime = req.Passed
		req.Time("Get")
		req.Timeline().Step("step", request.Field{Key: "name", Value: r.URL.Path})
		req.Timed()
		if text := r.Header.Get("Panic"); text != "" {
			panic(text)
		}
	}
	for form, handler := range map[string]func(w io.Writer) slog.Handler{
		"text": func(w io.Writer) slog.Handler { return textlog.New(w, slog.LevelDebug) },
		"json": func(w io.Writer) slog.Handler { return jsonlog.New(w, slog.LevelDebug) },
	} {
		log := &logBuffer{}
		events, out := openAudit(t, "[{level: Metadata}]", nil)
		s := &Server{
			Logger: slog.New(handler(log)), Audit: events,
			Authenticate: func(r *http.Request) (request.User, bool, error) {
				if token := r.Header.Get("Authorization"); token != "" {
					return request.User{}, false, errors.New("no such token: " + token)
				}
				user := request.User{Name: "joe" + r.Header.Get("User")}
				if text := r.Header.Get("Fails"); text != "" {
					user.Extra = map[string][]string{"fails": {text}}
				}
				return user, true, nil
			},
			Authorizer: authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
				if text := a.User.Extra["fails"]; text != nil {
					return authz.NoOpinion, "", errors.New(text[0])
				}
				return authz.Allow, "", nil
			}),
			API: anything(slow),
		}
		if err := s.PrepareRun(); err != nil {
			t.Fatal(err)
		}
		for what, change := range requests {
			r := httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/x", nil)
			change(r)
			w := httptest.NewRecorder()
			before := len(log.String())
			s.ServeHTTP(w, r)
			text := log.String()[before:]
			// A request has a line of its own, and one for what was slow in it or wrong.
			if most := 2*boundedlog.MaxLine + 4<<10; len(text) > most || text == "" {
				t.Errorf("%s, %s: %d bytes of log, want 1 to %d", what, form, len(text), most)
			}
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "E0101 00:") {
					t.Errorf("%s, %s: the client has written a line: %s", what, form, text[:min(len(text), 1000)])
				}
			}
			if id := r.Header.Get("Audit-Id"); id != "" && w.Header().Get("Audit-Id") != id {
				t.Errorf("%s: %d bytes of audit ID in the answer, want all %d", what, len(w.Header().Get("Audit-Id")), len(id))
			}
			for _, ev := range out.take(t) {
				if len(ev.AuditID) > request.MaxAuditID {
					t.Errorf("%s: an audit ID of %d bytes in the audit, want at most %d", what, len(ev.AuditID), request.MaxAuditID)
				}
			}
		}
	}
}
