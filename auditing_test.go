package kelson

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/apikeel/kelson/audit"
	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/request"
)

// auditLog is where events go in tests.
type auditLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	fail bool
}

func (l *auditLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail {
		return 0, errors.New("disk full")
	}
	return l.text.Write(b)
}

// take returns the events so far, and forgets them.
func (l *auditLog) take(t *testing.T) (events []audit.Event) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var ev audit.Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		events = append(events, ev)
	}
	l.text.Reset()
	return events
}

func openAudit(t testing.TB, rules string, change func(*audit.Config)) (*audit.Log, *auditLog) {
	t.Helper()
	out := &auditLog{}
	c := audit.DefaultConfig()
	c.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(c.PolicyFile, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: "+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Log.Path, c.Out = "-", out
	if change != nil {
		change(&c)
	}
	l, err := audit.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l, out
}

// What is written of requests, in a form that is short enough to compare:
// stage, user, code and message of each event.
func TestAudit(t *testing.T) {
	log, out := openAudit(t, "[{level: None, nonResourceURLs: [/healthz]}, {level: RequestResponse}]", nil)
	var recorded bool
	note := func(w http.ResponseWriter, r *http.Request) {
		recorded = request.From(r.Context()).Audit != nil
		request.From(r.Context()).Annotate("note", "n")
	}
	s := start(t, &Server{
		Audit: log,
		Authorizer: authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
			switch {
			case a.Resource == "secrets":
				return authz.NoOpinion, "not yours", nil
			case a.Resource == "broken":
				return authz.NoOpinion, "", errors.New("broken")
			}
			return authz.Allow, "because", nil
		}),
		Paths: map[string]http.Handler{"/noted": http.HandlerFunc(note)},
		API: routes{
			"/api/v1/pods":       say("pods"),
			"/api/v1/watch/pods": say("watch"),
			"/api/v1/silent":     func(http.ResponseWriter, *http.Request) {},
			"/api/v1/slow":       func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"/api/v1/panic":      func(http.ResponseWriter, *http.Request) { panic("oops") },
			"/api/v1/watch/hijacked": func(w http.ResponseWriter, _ *http.Request) {
				conn, _, _ := w.(http.Hijacker).Hijack()
				_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
				conn.Close()
			},
		},
	})
	const admin = "kubernetes-admin"
	allowed := "authorization.k8s.io/decision=allow authorization.k8s.io/reason=because"
	tests := []struct {
		request string
		known   bool
		want    string
		notes   string
	}{
		{"GET /api/v1/pods", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 200", allowed},
		{"GET /api/v1/watch/pods", true, "RequestReceived " + admin + "|ResponseStarted " + admin + " 200|ResponseComplete " + admin + " 200", allowed},
		{"GET /api/v1/silent", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 200 Connection closed early", allowed},
		{"GET /api/v1/slow?timeout=20ms", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 504 Timeout: request did not complete within the allotted timeout", allowed},
		{"GET /api/v1/panic", true, "RequestReceived " + admin + "|Panic " + admin + " 500 APIServer panic'd: oops", allowed},
		{"GET /api/v1/watch/hijacked", true, "RequestReceived " + admin + "|ResponseStarted " + admin + " 101|ResponseComplete " + admin + " 101", allowed},
		{"GET /api/v1/pods?timeout=1x", true, "ResponseStarted  400 invalid timeout specified in the request URL - time: unknown unit \"x\" in duration \"1x\"", ""},
		{"GET /api/v1/pods?a=1" + strings.Repeat("&", request.MaxParameters), true, "ResponseStarted  400 the query has more than 10000 parameters", ""},
		{"GET /api/v1/pods", false, "ResponseStarted  401 Unauthorized", ""},
		{"GET /api/v1/secrets", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 403 secrets is forbidden: User \"kubernetes-admin\" cannot list resource \"secrets\" in API group \"\" at the cluster scope: not yours",
			"authorization.k8s.io/decision=forbid authorization.k8s.io/reason=not yours"},
		{"GET /api/v1/broken", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 500", "authorization.k8s.io/reason=internal error"},
		{"GET /noted", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 200 Connection closed early", allowed + " note=n"},
		{"GET /nope", true, "RequestReceived " + admin + "|ResponseComplete " + admin + " 404", allowed},
		{"GET /healthz", true, "", ""},
		{"GET /api/v1/watch", true, "", ""}, // it is not known what this asks for
	}
	for _, tt := range tests {
		client := s.client(t, 1, nil)
		if tt.known {
			client = s.client(t, 1, s.PKI.AdminCertificate())
		}
		method, path, _ := strings.Cut(tt.request, " ")
		s.get(t, client, method, path)
		client.CloseIdleConnections()
		// The last event of a request may come after its answer.
		var events []audit.Event
		polltest.Until(t, tt.request, func() bool {
			events = append(events, out.take(t)...)
			return len(events) == strings.Count(tt.want, "|")+1 || tt.want == ""
		})
		var got []string
		for _, ev := range events {
			text := string(ev.Stage) + " " + ev.User.Username
			if ev.ResponseStatus != nil {
				code, _ := json.Marshal(ev.ResponseStatus.Code)
				text += strings.TrimRight(" "+string(code)+" "+ev.ResponseStatus.Message, " ")
			}
			got = append(got, text)
		}
		if text := strings.Join(got, "|"); text != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.request, text, tt.want)
		}
		if len(events) == 0 {
			continue
		}
		last := events[len(events)-1]
		notes := ""
		for _, key := range []string{"authorization.k8s.io/decision", "authorization.k8s.io/reason", "note"} {
			if value, ok := last.Annotations[key]; ok {
				notes += " " + key + "=" + value
			}
		}
		if strings.TrimSpace(notes) != tt.notes {
			t.Errorf("%s: annotations %v", tt.request, last.Annotations)
		}
		if last.ResponseStatus.Status == "Failure" && last.Stage != audit.StagePanic && last.ResponseStatus.Code != 504 && !bytes.Contains(last.ResponseObject, []byte(`"kind":"Status"`)) {
			t.Errorf("%s: the answer is not in the event: %s", tt.request, last.ResponseObject)
		}
	}
	if !recorded {
		t.Error("handlers cannot add to the record")
	}
}

func TestAuditOff(t *testing.T) {
	seen := make(chan request.Recorder, 1)
	look := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- request.From(r.Context()).Audit })
	log, _ := openAudit(t, "[{level: None}]", nil)
	for name, s := range map[string]*Server{"no audit": {}, "level None": {Audit: log}} {
		s.Paths = map[string]http.Handler{"/x": look}
		run := start(t, s)
		run.get(t, run.admin(t), "GET", "/x")
		if got := <-seen; got != nil {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

// An audit that must not miss anything stops what it cannot write down.
func TestAuditStrict(t *testing.T) {
	log, out := openAudit(t, "[{level: Metadata}]", func(c *audit.Config) { c.Log.Batch.Mode = audit.ModeBlockingStrict })
	served := false
	s := start(t, &Server{Audit: log, API: routes{"/api/v1/pods": func(http.ResponseWriter, *http.Request) { served = true }}})
	out.fail = true
	code, body, _ := s.get(t, s.admin(t), "GET", "/api/v1/pods")
	if want := "Internal Server Error: \"/api/v1/pods\": failed to store audit event\n"; code != 500 || body != want || served {
		t.Errorf("got %d %q, served %v", code, body, served)
	}
	if log.Stats().Rejected != 1 {
		t.Errorf("%+v", log.Stats())
	}
}

// When a server has stopped, all of its events are written.
func TestAuditFlushed(t *testing.T) {
	log, out := openAudit(t, "[{level: Metadata}]", func(c *audit.Config) {
		c.Log.Batch.Mode, c.Log.Batch.MaxSize, c.Log.Batch.MaxWait = audit.ModeBatch, 1000, 1<<40
	})
	s := start(t, &Server{Audit: log, API: routes{"/api/v1/pods": say("pods")}})
	client := s.admin(t)
	for range 10 {
		s.get(t, client, "GET", "/api/v1/pods")
	}
	if got := len(out.take(t)); got != 0 {
		t.Errorf("%d events do not wait", got)
	}
	s.stop()
	if err := s.ended(); err != nil {
		t.Fatal(err)
	}
	if got := len(out.take(t)); got != 20 {
		t.Errorf("%d events of 20 are written", got)
	}
}

func TestAttempted(t *testing.T) {
	for header, want := range map[string]string{
		"":             "Authentication failed, no credentials provided",
		"Bearer x":     "Authentication failed, attempted: bearer",
		"bearer x":     "Authentication failed, attempted: bearer",
		"Basic YTpi":   "Authentication failed, attempted: basic",
		"Negotiate xx": "Authentication failed, no credentials provided",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		if got := authAttempt(r); got != want {
			t.Errorf("%q: %s", header, got)
		}
	}
	r := httptest.NewRequest("GET", "https://host/?access_token=a", nil)
	r.TLS = nil
	if got := authAttempt(r); got != "Authentication failed, attempted: access_token" {
		t.Error(got)
	}
}

// What a request costs in the pipeline with the audit off and on.
func BenchmarkAudit(b *testing.B) {
	for _, level := range []string{"", "None", "Metadata", "RequestResponse"} {
		b.Run("level="+level, func(b *testing.B) {
			s := &Server{
				API:          routes{"/api/v1/pods": func(http.ResponseWriter, *http.Request) {}},
				Authenticate: func(*http.Request) (request.User, bool, error) { return request.User{Name: "jane"}, true, nil },
			}
			var out *auditLog
			if level != "" {
				s.Audit, out = openAudit(b, "[{level: "+level+"}]", nil)
			}
			if err := s.PrepareRun(); err != nil {
				b.Fatal(err)
			}
			r := httptest.NewRequest("GET", "/api/v1/pods", nil)
			b.ReportAllocs()
			for b.Loop() {
				s.ServeHTTP(httptest.NewRecorder(), r)
				if out != nil {
					out.text.Reset()
				}
			}
		})
	}
}
