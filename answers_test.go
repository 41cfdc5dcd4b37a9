package kelson

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/version"

	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/status"
)

const (
	text = "text/plain; charset=utf-8"

	notFoundStatus = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}` + "\n"
	notAllowed     = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server does not allow this method on the requested resource","reason":"MethodNotAllowed","details":{},"code":405}` + "\n"
	unauthorized   = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}` + "\n"
	badTimeout     = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"invalid timeout specified in the request URL - time: unknown unit \"x\" in duration \"1x\"","reason":"BadRequest","code":400}` + "\n"
	timedOut       = `{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}` + "\n"
)

// The answers are those of kube-apiserver to the same requests.
func TestAnswers(t *testing.T) {
	fine := func(context.Context) error { return nil }
	s := start(t, &Server{
		API:          routes{"/api/v1/pods": say("pods"), "/api/v1/watch/pods": say("watch")},
		HealthChecks: []HealthCheck{{Name: "etcd", Check: fine}, {Name: "etcd-readiness", Check: fine, On: Readyz}},
	})
	client := s.admin(t)
	tests := []struct {
		request, accept string
		code            int
		contentType     string
		body            string
	}{
		{"GET /healthz", "", 200, text, "ok"},
		{"POST /healthz", "", 200, text, "ok"},
		{"DELETE /healthz", "", 200, text, "ok"},
		{"OPTIONS /healthz", "", 200, text, "ok"},
		{"HEAD /healthz", "", 200, text, ""},
		{"GET /healthz/", "", 404, text, "404 page not found\n"},
		{"GET /healthz/ping", "", 200, text, "ok"},
		{"GET /healthz/etcd", "", 200, text, "ok"},
		{"GET /healthz/etcd-readiness", "", 404, text, "404 page not found\n"},
		{"GET /readyz/etcd-readiness", "", 200, text, "ok"},
		{"GET /healthz/nope", "", 404, text, "404 page not found\n"},
		{"GET /readyz/shutdown", "", 200, text, "ok"},
		{"GET /livez?exclude=etcd", "", 200, text, "ok"},
		{"GET /readyz?exclude=nope", "", 200, text, "ok"},
		{"GET /healthz?verbose", "", 200, text, "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]etcd ok\nhealthz check passed\n"},
		{"GET /livez?verbose=1", "", 200, text, "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]etcd ok\nlivez check passed\n"},
		{"GET /readyz?verbose", "", 200, text, "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]etcd-readiness ok\n[+]shutdown ok\nreadyz check passed\n"},
		{"GET /livez?verbose&exclude=ping&exclude=foo&exclude=bar", "", 200, text,
			"[+]ping excluded: ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]etcd ok\nwarn: some health checks cannot be excluded: no matches for \"bar\",\"foo\"\nlivez check passed\n"},

		{"GET /version/foo", "", 404, mediaJSON, notFoundStatus},
		{"POST /version/foo", "", 404, mediaJSON, notFoundStatus},
		{"POST /version", "", 405, mediaJSON, notAllowed},
		{"OPTIONS /version", "", 405, mediaJSON, notAllowed},
		{"HEAD /version", "", 405, mediaJSON, ""},
		{"GET /version", "application/yaml", 406, status.YAML, "apiVersion: v1\ncode: 406\ndetails: {}\nkind: Status\nmessage: |-\n  406: Not Acceptable\n\n  Available representations: application/json\nmetadata: {}\nreason: NotAcceptable\nstatus: Failure\n"},
		{"POST /version", "text/html", 405, mediaJSON, "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"the server does not allow this method on the requested resource\",\n  \"reason\": \"MethodNotAllowed\",\n  \"details\": {},\n  \"code\": 405\n}"},

		{"GET /nope", "", 404, text, "404 page not found\n"},
		{"GET /apis/nope.example.com/v1", "", 404, text, "404 page not found\n"},
		{"GET /apis/nope/v1/x", "", 404, text, "404 page not found\n"},
		{"GET /api/v1/pods", "", 200, text, "pods"},

		{"GET /api/v1/proxy", "", 500, text, "Internal Server Error: \"/api/v1/proxy\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/proxy\n"},
		{"GET /api/v1/watch?x=<b>", "", 500, text, "Internal Server Error: \"/api/v1/watch?x=&lt;b&gt;\": failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch?x=&lt;b&gt;\n"},

		{"GET /api/v1/pods?timeout=1x", "", 400, mediaJSON, badTimeout},
		{"GET /version?timeout=1x", "", 400, mediaJSON, badTimeout},
		{"GET /api/v1/pods?timeout=1x", "application/yaml", 400, status.YAML, "apiVersion: v1\ncode: 400\nkind: Status\nmessage: 'invalid timeout specified in the request URL - time: unknown unit \"x\" in\n  duration \"1x\"'\nmetadata: {}\nreason: BadRequest\nstatus: Failure\n"},
		{"GET /api/v1/pods?timeout=-1s", "", 200, text, "pods"},
		{"GET /api/v1/pods?timeout=0", "", 200, text, "pods"},
		{"GET /api/v1/pods?timeout=1000h", "", 200, text, "pods"},
		{"GET /api/v1/watch/pods?timeout=1x", "", 200, text, "watch"},
		{"GET /api/v1/pods?timeout=1ns", "", 504, text, timedOut},
	}
	for _, tt := range tests {
		method, path, _ := strings.Cut(tt.request, " ")
		code, body, header := s.get(t, client, method, path, "Accept", tt.accept, "User-Agent", "test")
		if code != tt.code || body != tt.body || header.Get("Content-Type") != tt.contentType {
			t.Errorf("%s, accepting %q: got %d %s %q, want %d %s %q", tt.request, tt.accept,
				code, header.Get("Content-Type"), body, tt.code, tt.contentType, tt.body)
		}
		if header.Get("Audit-Id") == "" {
			t.Errorf("%s: no audit id", tt.request)
		}
		wantCache := "no-cache, private"
		if tt.code == 500 {
			wantCache = ""
		}
		if got := header.Get("Cache-Control"); got != wantCache {
			t.Errorf("%s: Cache-Control %q", tt.request, got)
		}
	}
}

func TestVersion(t *testing.T) {
	s := start(t, &Server{})
	for _, accept := range []string{"", "*/*", "application/json", "text/html, application/json;as=Table;v=v1;g=meta.k8s.io"} {
		code, body, header := s.get(t, s.admin(t), "GET", "/version/", "Accept", accept)
		var got version.Info
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || header.Get("Content-Type") != mediaJSON {
			t.Fatalf("%q: %d %s %v", accept, code, body, err)
		}
		if got.Major != "1" || got.Minor != "37" || got.GitVersion != "v1.37.1+kelson" || got.GoVersion != runtime.Version() {
			t.Errorf("got %+v", got)
		}
		if !strings.HasPrefix(body, "{\n  \"major\": \"1\",\n  \"minor\": \"37\",\n  \"emulationMajor\": \"1\",\n") {
			t.Errorf("got %s", body)
		}
	}
	for _, accept := range []string{"application/*", "text/html"} {
		if code, _, _ := s.get(t, s.admin(t), "GET", "/version", "Accept", accept); code != 406 {
			t.Errorf("%q: %d", accept, code)
		}
	}
}

func TestProtobufError(t *testing.T) {
	s := start(t, &Server{})
	code, body, header := s.get(t, s.admin(t), "GET", "/version", "Accept", "application/vnd.kubernetes.protobuf")
	content, found := strings.CutPrefix(body, "k8s\x00")
	if code != 406 || !found || header.Get("Content-Type") != status.Protobuf {
		t.Fatalf("%d %q", code, body)
	}
	var envelope kruntime.Unknown
	var got metav1.Status
	if err := errors.Join(envelope.Unmarshal([]byte(content)), got.Unmarshal(envelope.Raw)); err != nil {
		t.Fatal(err)
	}
	if envelope.Kind != "Status" || envelope.APIVersion != "v1" || got.Reason != metav1.StatusReasonNotAcceptable {
		t.Errorf("%+v %+v", envelope.TypeMeta, got)
	}
}

func TestFailedCheck(t *testing.T) {
	s := start(t, &Server{HealthChecks: []HealthCheck{
		{Name: "a", Check: func(context.Context) error { return errors.New("secret") }},
		{Name: "b", Check: func(context.Context) error { return errors.New("not yet") }, On: Readyz},
	}})
	client := s.admin(t)
	for path, want := range map[string]string{
		"/livez":           "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[-]a failed: reason withheld\nlivez check failed\n",
		"/readyz":          "[+]ping ok\n[+]log ok\n[-]a failed: reason withheld\n[-]b failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n",
		"/readyz/a":        "internal server error: secret\n",
		"/livez?exclude=b": "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[-]a failed: reason withheld\nwarn: some health checks cannot be excluded: no matches for \"b\"\nlivez check failed\n",
	} {
		code, body, header := s.get(t, client, "GET", path)
		if code != 500 || body != want || header.Get("Content-Type") != text || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
	if code, _, _ := s.get(t, client, "GET", "/livez?exclude=a"); code != 200 {
		t.Errorf("the failing check cannot be excluded: %d", code)
	}
	if !strings.Contains(s.log.String(), "secret") {
		t.Error("the reason is not in the log")
	}
}

func TestAuthentication(t *testing.T) {
	var asked request.User
	var headers http.Header
	s := start(t, &Server{API: routes{"/api/v1/pods": func(w http.ResponseWriter, r *http.Request) {
		asked, headers = request.From(r.Context()).User, r.Header
	}}})
	other, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	issue := func(authority *pki.Authority, user string, groups ...string) *tls.Certificate {
		content, err := authority.IssueClient(user, groups...)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(content, content)
		if err != nil {
			t.Fatal(err)
		}
		return &pair
	}
	serverCert, _ := s.PKI.ServerCertificate(nil)
	for _, major := range []int{1, 2} {
		tests := []struct {
			name   string
			cert   *tls.Certificate
			groups []string
		}{
			{"jane", issue(s.PKI, "jane", "a", "b"), []string{"a", "b", "system:authenticated"}},
			{"joe", issue(s.PKI, "joe", "system:authenticated"), []string{"system:authenticated"}},
			{"kubernetes-admin", s.PKI.AdminCertificate(), []string{"system:masters", "system:authenticated"}},
			{"", nil, nil},
			{"", issue(s.PKI, ""), nil},
			{"", other.AdminCertificate(), nil},
			{"", serverCert, nil}, // it is not for clients
		}
		for i, tt := range tests {
			client := s.client(t, major, tt.cert)
			if tt.cert != nil {
				// Clients do not show what the server does not ask for; this
				// one does.
				transport := client.Transport.(*http.Transport)
				transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tt.cert, nil }
			}
			for range 2 { // the second finds the connection known
				asked = request.User{}
				code, body, header := s.get(t, client, "GET", "/api/v1/pods", "Authorization", "Bearer x",
					"X-Remote-User", "eve", "X-Remote-Extra-Scopes", "all", "X-Other", "y")
				if tt.name == "" {
					if code != 401 || body != unauthorized || header.Get("Content-Type") != mediaJSON || header.Get("Audit-Id") == "" {
						t.Errorf("HTTP/%d, %d: got %d %q", major, i, code, body)
					}
					continue
				}
				if code != 200 || asked.Name != tt.name || !slices.Equal(asked.Groups, tt.groups) {
					t.Errorf("HTTP/%d, %s: got %d %+v", major, tt.name, code, asked)
				}
				id := asked.Extra["authentication.kubernetes.io/credential-id"]
				if len(id) != 1 || !regexp.MustCompile("^X509SHA256=[0-9a-f]{64}$").MatchString(id[0]) {
					t.Errorf("credential id %q", id)
				}
				for _, name := range []string{"Authorization", "X-Remote-User", "X-Remote-Extra-Scopes"} {
					if headers.Get(name) != "" {
						t.Errorf("%s reaches the handler", name)
					}
				}
				if headers.Get("X-Other") != "y" {
					t.Error("another header is lost")
				}
			}
		}
	}
}

func TestAuditID(t *testing.T) {
	var seen string
	s := start(t, &Server{Paths: map[string]http.Handler{"/x": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = request.From(r.Context()).AuditID
	})}})
	client := s.admin(t)
	_, _, header := s.get(t, client, "GET", "/x", "Audit-Id", "my own")
	if header.Get("Audit-Id") != "my own" || seen != "my own" {
		t.Errorf("got %q, and the handler %q", header.Get("Audit-Id"), seen)
	}
	_, _, header = s.get(t, client, "GET", "/x")
	if got := header.Get("Audit-Id"); !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(got) || got != seen {
		t.Errorf("got %q, and the handler %q", got, seen)
	}
}

func TestWarnings(t *testing.T) {
	long := strings.Repeat("é", 300)
	tests := []struct{ warnings, want []string }{
		{nil, nil},
		{[]string{"a", `say "b\"`}, []string{`299 - "a"`, `299 - "say \"b\\\""`}},
		{[]string{"with\nnewline", "", "kept"}, []string{`299 - "kept"`}},
		{[]string{long}, []string{`299 - "` + long + `"`}},
	}
	// More than 4,096 characters together: each is cut, the last ones go.
	var many, cut []string
	for i := range 20 {
		many = append(many, string(rune('a'+i))+long)
		if i < 16 {
			cut = append(cut, `299 - "`+string(rune('a'+i))+strings.Repeat("é", 255)+`"`)
		}
	}
	tests = append(tests, struct{ warnings, want []string }{many, cut})

	handlers := map[string]func(w http.ResponseWriter){
		"write":  func(w http.ResponseWriter) { _, _ = w.Write([]byte("x")) },
		"header": func(w http.ResponseWriter) { w.WriteHeader(201) },
		"flush":  func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"none":   func(http.ResponseWriter) {},
	}
	var warnings []string
	paths := map[string]http.Handler{}
	for name, respond := range handlers {
		paths["/"+name] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, text := range warnings {
				request.From(r.Context()).Warn(text)
			}
			respond(w)
		})
	}
	s := start(t, &Server{Paths: paths})
	for _, tt := range tests {
		for name := range handlers {
			warnings = tt.warnings
			if _, _, header := s.get(t, s.admin(t), "GET", "/"+name); !slices.Equal(header["Warning"], tt.want) {
				t.Errorf("%s: got %q, want %q", name, header["Warning"], tt.want)
			}
		}
	}
}

// A check that belongs to a post-start hook comes after it, and /livez asks both
// when the start may be over.
func TestCheckAfterHook(t *testing.T) {
	s := &Server{
		HealthChecks: []HealthCheck{
			{Name: "late", After: "first", Check: func(context.Context) error { return errors.New("not yet") }},
			{Name: "unasked", On: Healthz | Readyz, Check: func(context.Context) error { return nil }},
		},
		PostStartHooks: []Hook{{Name: "first", Run: func(context.Context) error { return nil }}, {Name: "second", Run: func(context.Context) error { return nil }}},
		LivezGrace:     time.Hour,
	}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	const hooks = "[-]poststarthook/first failed: reason withheld\n[-]late failed: reason withheld\n[-]poststarthook/second failed: reason withheld\n"
	for path, want := range map[string]string{
		"/livez?verbose": "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]poststarthook/first ok\n[+]late ok\n[+]poststarthook/second ok\nlivez check passed\n",
		"/readyz":        "[+]ping ok\n[+]log ok\n[+]unasked ok\n" + hooks + "[+]shutdown ok\nreadyz check failed\n",
		"/healthz":       "[+]ping ok\n[+]log ok\n[+]loopback-serving-certificate ok\n[+]unasked ok\n" + hooks + "healthz check failed\n",
		"/livez/late":    "ok",
		"/readyz/late":   "internal server error: not yet\n",
	} {
		resp, err := s.Loopback(request.User{Name: "x"}).RoundTrip(httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(body) != want {
			t.Errorf("%s: %q, not %q", path, body, want)
		}
	}
}
