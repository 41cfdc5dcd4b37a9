package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
)

// lines is where a log goes in tests.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	fail error
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return 0, l.fail
	}
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) events(t *testing.T) (events []Event) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var ev Event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		events = append(events, ev)
	}
	return events
}

// policyFile writes a policy of rules in YAML.
func policyFile(t testing.TB, rules string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n"+rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// open opens an audit whose log goes to lines.
func open(t testing.TB, rules string, change func(*Config)) (*Log, *lines) {
	t.Helper()
	out := &lines{}
	c := DefaultConfig()
	c.PolicyFile, c.Log.Path, c.Out = policyFile(t, rules), "-", out
	if change != nil {
		change(&c)
	}
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(context.Background()) })
	return l, out
}

func asked(method, url string) (*http.Request, *request.Request) {
	hr := httptest.NewRequest(method, url, nil)
	hr.Header.Set("User-Agent", "kubectl/v1.37")
	info, _ := request.Parse(hr)
	return hr, &request.Request{
		// What a request says of its time, and when it really came.
		Info: info, AuditID: "id", Received: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), MachineTime: time.Now().Add(time.Hour),
		User: request.User{Name: "jane", UID: "u", Groups: []string{"a", "b"}, Extra: map[string][]string{"k": {"v"}}},
	}
}

func stageNames(events []Event) (names []string) {
	for _, ev := range events {
		names = append(names, string(ev.Stage))
	}
	return names
}

const everything = "rules: [{level: RequestResponse}]"

// The form of the lines is that of kube-apiserver's.
func TestLines(t *testing.T) {
	l, out := open(t, everything, nil)
	hr, req := asked("POST", "/api/v1/namespaces/n/configmaps?fieldManager=x")
	r := l.Record()
	r.Annotate("early", "1")
	if !r.Begin(hr, req) || !r.Received() {
		t.Fatal("not audited")
	}
	meta := &metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "7", Namespace: "other"}
	r.SentObject(meta, func() ([]byte, error) { return []byte(`{"kind":"ConfigMap","data":{"a":"<"}}`), nil })
	r.Annotate("authorization.k8s.io/decision", "allow")
	r.AnsweredObject(func() ([]byte, error) { return []byte(`{"kind":"ConfigMap","x":1}`), nil })
	r.Answer(201)
	r.Complete(nil)

	const begin = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"id","stage":"`
	const middle = `","requestURI":"/api/v1/namespaces/n/configmaps?fieldManager=x","verb":"create","user":{"username":"jane","uid":"u","groups":["a","b"],"extra":{"k":["v"]}},` +
		`"sourceIPs":["192.0.2.1"],"userAgent":"kubectl/v1.37","objectRef":{"resource":"configmaps","namespace":"n",`
	want := begin + `RequestReceived` + middle + `"apiVersion":"v1"},"requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z","stageTimestamp":"2026-01-02T03:04:05.000006Z","annotations":{"early":"1"}}` + "\n" +
		begin + `ResponseComplete` + middle + `"name":"a","uid":"uid","apiVersion":"v1","resourceVersion":"7"},"responseStatus":{"metadata":{},"code":201},` +
		`"requestObject":{"kind":"ConfigMap","data":{"a":"\u003c"}},"responseObject":{"kind":"ConfigMap","x":1},` +
		`"requestReceivedTimestamp":"2026-01-02T03:04:05.000006Z","stageTimestamp":"NOW","annotations":{"authorization.k8s.io/decision":"allow","early":"1"}}` + "\n"
	got := regexp.MustCompile(`"stageTimestamp":"20[^0][^"]*","annotations":{"auth`).ReplaceAllString(out.String(), `"stageTimestamp":"NOW","annotations":{"auth`)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What has taken long is explained.
func TestSlow(t *testing.T) {
	for _, ago := range []time.Duration{-time.Hour, 2 * time.Second} {
		l, out := open(t, everything, nil)
		hr, req := asked("GET", "/api/v1/namespaces/n/pods/p")
		req.MachineTime = time.Now().Add(-ago)
		r := l.Record()
		r.Spent(request.Authentication, time.Second)
		r.Begin(hr, req)
		r.Received()
		for _, d := range []time.Duration{3, 1} {
			r.Spent(request.Storage, d*time.Millisecond)
			r.Spent(request.ValidatingWebhooks, d*time.Millisecond)
			r.Spent(request.Queue, d*time.Millisecond)
			r.Spent(request.Decode, d*time.Millisecond)
			r.Spent(request.Transform, d*time.Millisecond)
			r.Spent(request.Serialize, d*time.Millisecond)
		}
		r.Answer(200)
		r.Complete(nil)
		events := out.events(t)
		got := events[len(events)-1].Annotations
		if ago < 0 {
			if got != nil {
				t.Errorf("a quick request has %v", got)
			}
			continue
		}
		total, err := time.ParseDuration(got["apiserver.latency.k8s.io/total"])
		if err != nil || total < ago {
			t.Errorf("in all %v, %v", total, err)
		}
		delete(got, "apiserver.latency.k8s.io/total")
		want := map[string]string{
			"apiserver.latency.k8s.io/authentication": "1s", "apiserver.latency.k8s.io/etcd": "4ms", "apiserver.latency.k8s.io/validating-webhook": "3ms",
			"apiserver.latency.k8s.io/apf-queue-wait": "3ms", "apiserver.latency.k8s.io/decode-response-object": "4ms",
			"apiserver.latency.k8s.io/transform-response-object": "4ms", "apiserver.latency.k8s.io/serialize-response-object": "4ms",
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v", got)
		}
	}
}

func TestLegacyLine(t *testing.T) {
	l, out := open(t, everything, func(c *Config) { c.Log.Format = FormatLegacy })
	hr, req := asked("GET", "/api/v1/namespaces/n/pods/p")
	r := l.Record()
	r.Begin(hr, req)
	r.Received()
	r.Answer(200)
	req.Impersonator = &request.User{Name: "jane"}
	req.User = request.User{Name: "bob", Groups: []string{"g"}}
	r.Complete(nil)
	const want = `2026-01-02T03:04:05.000006Z AUDIT: id="id" stage="RequestReceived" ip="192.0.2.1" method="get" user="jane" groups="\"a\",\"b\"" as="<self>" asgroups="<lookup>" user-agent="kubectl/v1.37" namespace="n" uri="/api/v1/namespaces/n/pods/p" response="<deferred>"` + "\n" +
		`2026-01-02T03:04:05.000006Z AUDIT: id="id" stage="ResponseComplete" ip="192.0.2.1" method="get" user="jane" groups="\"a\",\"b\"" as="bob" asgroups="\"g\"" user-agent="kubectl/v1.37" namespace="n" uri="/api/v1/namespaces/n/pods/p" response="200"` + "\n"
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", out, want)
	}
}

func TestLevels(t *testing.T) {
	object := func() ([]byte, error) {
		return []byte(`{"metadata":{"name":"s","managedFields":[]},"data":{"password":"c2VjcmV0"}}`), nil
	}
	tests := []struct {
		rules                  string
		events                 int
		wantSent, wantAnswered string
	}{
		{"rules: [{level: None}]", 0, "", ""},
		{"rules: [{level: RequestResponse, users: [other]}]", 0, "", ""},
		{"rules: [{level: Metadata}]", 2, "", ""},
		{"rules: [{level: Request}]", 2, `{"metadata":{"name":"s","managedFields":[]},"data":{"password":"c2VjcmV0"}}`, ""},
		{"rules: [{level: RequestResponse, omitManagedFields: true}]", 2,
			`{"metadata":{"name":"s"},"data":{"password":"c2VjcmV0"}}`, `{"metadata":{"name":"s"},"data":{"password":"c2VjcmV0"}}`},
		{"rules: [{level: Metadata, omitStages: [RequestReceived]}]", 1, "", ""},
		{"omitStages: [ResponseComplete]\nrules: [{level: Metadata, omitStages: [RequestReceived]}]", 0, "", ""},
	}
	for _, tt := range tests {
		l, out := open(t, tt.rules, nil)
		hr, req := asked("POST", "/api/v1/namespaces/n/secrets")
		r := l.Record()
		if r.Begin(hr, req) {
			r.Received()
			r.SentObject(&metav1.ObjectMeta{Name: "s"}, object)
			r.AnsweredObject(object)
			r.Answer(201)
			r.Complete(nil)
		}
		events := out.events(t)
		if len(events) != tt.events {
			t.Errorf("%s: %d events", tt.rules, len(events))
		}
		for _, ev := range events {
			if ev.Stage == StageRequestReceived {
				continue
			}
			if string(ev.RequestObject) != tt.wantSent || string(ev.ResponseObject) != tt.wantAnswered || ev.ObjectRef.Name != "s" {
				t.Errorf("%s: got %s and %s of %+v", tt.rules, ev.RequestObject, ev.ResponseObject, ev.ObjectRef)
			}
		}
		if tt.wantSent == "" && strings.Contains(out.String(), "c2VjcmV0") {
			t.Errorf("%s: a secret is in the log: %s", tt.rules, out)
		}
	}
}

func TestStages(t *testing.T) {
	tests := []struct {
		name, url string
		run       func(r *Record)
		stages    string
		status    string
	}{
		{"short", "/api/v1/pods", func(r *Record) { r.Received(); r.Answer(200); r.Complete(nil) },
			"RequestReceived ResponseComplete", `{"metadata":{},"code":200}`},
		{"watch", "/api/v1/pods?watch=1", func(r *Record) { r.Received(); r.Answer(200); r.Complete(nil) },
			"RequestReceived ResponseStarted ResponseComplete", `{"metadata":{},"code":200}`},
		{"silent watch", "/api/v1/pods?watch=1", func(r *Record) { r.Received(); r.Complete(&metav1.Status{Message: "early"}) },
			"RequestReceived ResponseStarted ResponseComplete", `{"metadata":{},"message":"early"}`},
		{"panic", "/api/v1/pods", func(r *Record) { r.Received(); r.Panic("oops") },
			"RequestReceived Panic", `{"metadata":{},"status":"Failure","message":"APIServer panic'd: oops","reason":"InternalError","code":500}`},
		{"refused", "/api/v1/pods", func(r *Record) {
			r.Refuse("no credentials")
			r.AnsweredStatus(&metav1.Status{ListMeta: metav1.ListMeta{Continue: "x"}, Status: "Failure", Message: "Unauthorized", Reason: "Unauthorized", Code: 401},
				func() ([]byte, error) { return nil, errors.New("no") })
			r.Answer(401)
		}, "ResponseStarted", `{"metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`},
		{"refused without a word", "/api/v1/pods", func(r *Record) { r.Refuse("no credentials"); r.Answer(401) },
			"ResponseStarted", `{"metadata":{},"message":"no credentials","code":401}`},
		{"patch", "/healthz", func(r *Record) { r.SentPatch([]byte(`[]`)); r.Answer(404); r.Complete(nil) },
			"ResponseComplete", `{"metadata":{},"code":404}`},
	}
	for _, tt := range tests {
		l, out := open(t, everything, nil)
		hr, req := asked("GET", tt.url)
		r := l.Record()
		r.Begin(hr, req)
		tt.run(r)
		events := out.events(t)
		status, _ := json.Marshal(events[len(events)-1].ResponseStatus)
		if got := strings.Join(stageNames(events), " "); got != tt.stages || string(status) != tt.status {
			t.Errorf("%s: got %s, %s", tt.name, got, status)
		}
	}
}

func TestWhoAndWhere(t *testing.T) {
	l, out := open(t, everything, nil)
	hr, req := asked("GET", "/api/v1/pods")
	hr.Header.Set("X-Forwarded-For", "1.2.3.4, bad, 5.6.7.8")
	hr.Header.Set("X-Real-Ip", "9.9.9.9")
	hr.Header.Set("User-Agent", strings.Repeat("x", 1500))
	r := l.Record()
	r.Begin(hr, req)
	r.Received()
	req.Impersonator, req.ImpersonationConstraint = &request.User{Name: "jane"}, "impersonate:user-info"
	req.User = request.User{Name: "bob", Groups: []string{"g"}, UID: "7", Extra: map[string][]string{"s": {"a"}}}
	r.Answer(200)
	r.Complete(nil)
	events := out.events(t)
	first, last := events[0], events[1]
	if got := strings.Join(last.SourceIPs, " "); got != "1.2.3.4 5.6.7.8 9.9.9.9 192.0.2.1" {
		t.Errorf("source IPs %s", got)
	}
	if last.UserAgent != strings.Repeat("x", 1024)+"...TRUNCATED" {
		t.Errorf("user agent %q", last.UserAgent)
	}
	if first.ImpersonatedUser != nil || last.User.Username != "jane" || last.ImpersonatedUser.Username != "bob" ||
		last.ImpersonatedUser.UID != "7" || last.AuthenticationMetadata.ImpersonationConstraint != "impersonate:user-info" {
		t.Errorf("%+v, %+v", last.User, last.ImpersonatedUser)
	}
}

func TestAnnotate(t *testing.T) {
	var log strings.Builder
	l, out := open(t, everything, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	hr, req := asked("GET", "/x")
	r := l.Record()
	r.Begin(hr, req)
	r.Annotate("a", "1")
	r.Annotate("a", "1")
	r.Annotate("a", "2")
	for i := range 2 * maxAnnotations {
		r.Annotate(strings.Repeat("k", i+1), "v")
	}
	r.Complete(&metav1.Status{})
	got := out.events(t)[0].Annotations
	if got["a"] != "1" || len(got) != maxAnnotations || strings.Count(log.String(), "is set already") != 1 {
		t.Errorf("%d annotations, a is %q; %s", len(got), got["a"], log.String())
	}
	(&request.Request{}).Annotate("off", "nothing")
}

func TestOff(t *testing.T) {
	c := DefaultConfig()
	for _, change := range []func(){
		func() {},
		func() { c.Log.Path = filepath.Join(t.TempDir(), "a") },
		func() { c.Log.Path, c.PolicyFile = "", policyFile(t, everything) },
	} {
		change()
		if l, err := New(c); l != nil || err != nil {
			t.Errorf("%+v: got %v, %v", c, l, err)
		}
	}
}

func TestStats(t *testing.T) {
	l, _ := open(t, "rules: [{level: None, users: [x]}, {level: Metadata}]", nil)
	for _, user := range []string{"x", "y", "z"} {
		hr, req := asked("GET", "/x")
		req.User.Name = user
		if r := l.Record(); r.Begin(hr, req) {
			r.Received()
			r.Complete(&metav1.Status{})
		}
	}
	if s := l.Stats(); s.Events != 4 || s.Levels[LevelNone] != 1 || s.Levels[LevelMetadata] != 2 || s.Dropped["log"] != 0 {
		t.Errorf("got %+v", s)
	}
}

func BenchmarkRecord(b *testing.B) {
	for _, level := range []string{"None", "Metadata", "RequestResponse"} {
		b.Run(level, func(b *testing.B) {
			l, out := open(b, "rules: [{level: "+level+"}]", nil)
			hr, req := asked("GET", "/api/v1/namespaces/n/configmaps/a")
			b.ReportAllocs()
			for b.Loop() {
				if r := l.Record(); r.Begin(hr, req) {
					r.Received()
					r.Annotate("authorization.k8s.io/decision", "allow")
					r.AnsweredObject(func() ([]byte, error) {
						return []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}`), nil
					})
					r.Answer(200)
					r.Complete(nil)
				}
				out.text.Reset()
			}
		})
	}
}
