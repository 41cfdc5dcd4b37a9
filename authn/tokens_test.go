package authn

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/request"
)

func requestWith(authorization string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	return r.WithContext(request.With(r.Context(), &request.Request{Warned: &request.Warnings{}}))
}

// TestBearer judges Authorization headers, of which not all that are wrong are
// refused: what is not a token is not a credential.
func TestBearer(t *testing.T) {
	s := newStage(t, Config{TokenFile: writeFile(t, "tokens", []byte("good,jane,1\n"))})
	tests := []struct {
		header, user, err, warning string
	}{
		{header: "Bearer good", user: "jane"},
		{header: "bearer good", user: "jane"},
		{header: "BEARER good", user: "jane"},
		{header: "  Bearer good  ", user: "jane"},
		{header: "Bearer good more", user: "jane"},
		{header: "", user: "system:anonymous"},
		{header: "Bearer", user: "system:anonymous"},
		{header: "Bearer ", user: "system:anonymous"},
		{header: "Bearer  good", user: "system:anonymous", warning: spaceWarning},
		{header: "Basic YWRtaW46YWRtaW4=", user: "system:anonymous"},
		{header: "Nonsense", user: "system:anonymous"},
		{header: "Bearerx good", user: "system:anonymous"},
		{header: "bearer wrong", err: "invalid bearer token"},
		{header: "Bearer a.b.c", err: "invalid bearer token"},
		{header: "Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMuY2x1c3Rlci5sb2NhbCJ9.YWJj", err: "invalid bearer token"},
	}
	for _, test := range tests {
		r := requestWith(test.header)
		user, ok, err := s.User(r)
		if ok != (test.err == "") || user.Name != test.user || err != nil && err.Error() != test.err {
			t.Errorf("%q: user %q, error %v", test.header, user.Name, err)
		}
		if warnings := strings.Join(request.From(r.Context()).Warnings(), ""); warnings != test.warning {
			t.Errorf("%q: warnings %q", test.header, warnings)
		}
	}
	// Without any tokens configured, one that is sent is still wrong.
	if _, ok, err := newStage(t, Config{}).User(requestWith("Bearer x")); ok || err == nil {
		t.Errorf("a token is ignored: error %v", err)
	}
}

func TestAnonymous(t *testing.T) {
	get := func(s *Stage, path string) string {
		t.Helper()
		u, _, err := s.User(httptest.NewRequest(http.MethodGet, path, nil))
		if err != nil {
			t.Fatal(err)
		}
		return u.Name
	}
	if s := newStage(t, Config{}); get(s, "/x") != "system:anonymous" {
		t.Error("anonymous callers are not known")
	}
	if s := newStage(t, Config{DisableAnonymous: true}); get(s, "/x") != "" {
		t.Error("anonymous callers are known")
	}
	head := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	file := writeFile(t, "config", []byte(head+"anonymous:\n  enabled: true\n  conditions:\n  - path: /livez\n"))
	s := newStage(t, Config{StructuredFile: file})
	for path, want := range map[string]string{"/livez": "system:anonymous", "/livez/ping": "", "/api": "", "/": ""} {
		if got := get(s, path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	// It cannot be changed while the server runs.
	var l logs
	s = newStage(t, Config{StructuredFile: file, Log: l.logger()})
	rewrite(t, file, []byte(head+"anonymous:\n  enabled: true\n"))
	s.Reload()
	if got := get(s, "/api"); got != "" || !strings.Contains(l.String(), "changed from initial configuration file") {
		t.Errorf("got %q, log %s", got, l.String())
	}
	if _, err := (Config{StructuredFile: file, AnonymousSet: true}).New(); err == nil {
		t.Error("the flag and the file both decide")
	}
	rewrite(t, file, []byte(head+"anonymous:\n  enabled: false\n"))
	if got := get(newStage(t, Config{StructuredFile: file}), "/livez"); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestTokenFile(t *testing.T) {
	var l logs
	file := writeFile(t, "tokens", []byte("secret1,jane,1,\"a,b\"\n,nobody,2\nsecret2,joe,3\nsecret2,jim,4\n"))
	s := newStage(t, Config{TokenFile: file, Log: l.logger(), TokenFailureTTL: time.Hour})
	get := func(token string) request.User {
		t.Helper()
		u, _, _ := s.User(requestWith("Bearer " + token))
		return u
	}
	if got, want := get("secret1"), (request.User{Name: "jane", UID: "1", Groups: []string{"a", "b", "system:authenticated"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := get("secret2"); got.Name != "jim" || !reflect.DeepEqual(got.Groups, []string{"system:authenticated"}) {
		t.Errorf("got %+v", got)
	}
	if got := get("secret3"); got.Name != "" {
		t.Errorf("got %+v", got)
	}
	// What is remembered of tokens does not outlive the file.
	rewrite(t, file, []byte("secret3,ann,5\n"))
	s.Reload()
	if a, b := get("secret1"), get("secret3"); a.Name != "" || b.Name != "ann" {
		t.Errorf("got %+v and %+v", a, b)
	}
	// A broken file changes nothing.
	rewrite(t, file, []byte("secret4,\"x"))
	s.Reload()
	if got := get("secret3"); got.Name != "ann" {
		t.Errorf("got %+v", got)
	}
	if text := l.String(); strings.Contains(text, "secret") || !strings.Contains(text, "duplicate token") || !strings.Contains(text, "empty token") {
		t.Errorf("log %s", text)
	}
	for _, bad := range []string{"token,user\n", "\"x"} {
		if _, err := (Config{TokenFile: writeFile(t, "bad", []byte(bad))}).New(); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if _, err := (Config{TokenFile: "/nonexistent"}).New(); err == nil {
		t.Error("a file that is missing is accepted")
	}
}

func TestBasic(t *testing.T) {
	var l logs
	s := newStage(t, Config{BasicFile: writeFile(t, "basic", []byte("hunter2,jane,1,a\n")), Log: l.logger()})
	if !strings.Contains(l.String(), "level=WARN") {
		t.Error("nobody is warned")
	}
	for _, test := range []struct{ credentials, user, err string }{
		{"jane:hunter2", "jane", ""},
		{"jane:hunter", "", "invalid username/password combination"},
		{"joe:hunter2", "", "invalid username/password combination"},
		{"jane:", "", "invalid username/password combination"},
		{"nocolon", "system:anonymous", ""},
	} {
		u, _, err := s.User(requestWith("Basic " + base64.StdEncoding.EncodeToString([]byte(test.credentials))))
		if u.Name != test.user || err != nil && err.Error() != test.err {
			t.Errorf("%s: user %q, error %v", test.credentials, u.Name, err)
		}
	}
}

func TestWebSocket(t *testing.T) {
	s := newStage(t, Config{TokenFile: writeFile(t, "tokens", []byte("good,jane,1\n"))})
	encode := func(token string) string {
		return webSocketPrefix + base64.RawURLEncoding.EncodeToString([]byte(token))
	}
	tests := []struct {
		name      string
		protocols []string
		plain     bool // no upgrade
		user, err string
		left      string
	}{
		{name: "good", protocols: []string{encode("good"), "v4.channel.k8s.io"}, user: "jane", left: "v4.channel.k8s.io"},
		{name: "one header", protocols: []string{"a, " + encode("good") + " ,b"}, user: "jane", left: "a,b"},
		{name: "no token", protocols: []string{"v4.channel.k8s.io"}, user: "system:anonymous", left: "v4.channel.k8s.io"},
		{name: "not a WebSocket", protocols: []string{encode("good"), "x"}, plain: true, user: "system:anonymous"},
		{name: "alone", protocols: []string{encode("good")}, err: "missing additional subprotocol"},
		{name: "twice", protocols: []string{encode("good"), encode("good"), "x"}, err: "multiple base64.bearer.authorization tokens specified"},
		{name: "bad encoding", protocols: []string{webSocketPrefix + "a=", "x"}, err: "invalid base64.bearer.authorization token encoding"},
		{name: "not text", protocols: []string{encode("\xff"), "x"}, err: "invalid base64.bearer.authorization token"},
		{name: "wrong", protocols: []string{encode("bad"), "x"}, err: "invalid bearer token"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := requestWith("")
			if !test.plain {
				r.Header.Set("Connection", "keep-alive, Upgrade")
				r.Header.Set("Upgrade", "WebSocket")
			}
			r.Header["Sec-Websocket-Protocol"] = test.protocols
			u, _, err := s.User(r)
			if u.Name != test.user || err != nil && err.Error() != test.err || err == nil && test.err != "" {
				t.Fatalf("user %q, error %v", u.Name, err)
			}
			if left := strings.Join(r.Header["Sec-Websocket-Protocol"], ","); test.left != "" && left != test.left {
				t.Errorf("protocols %q", left)
			}
		})
	}
}

func TestBootstrapTokens(t *testing.T) {
	const token = "abcdef.0123456789abcdef"
	now := time.Now()
	tests := []struct {
		name   string
		token  string
		change func(s *corev1.Secret)
		groups []string // nil: refused
	}{
		{name: "good", groups: []string{"system:bootstrappers", "system:authenticated"}},
		{name: "groups", change: func(s *corev1.Secret) {
			s.Data["auth-extra-groups"] = []byte("system:bootstrappers:z,system:bootstrappers:a")
		}, groups: []string{"system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:z", "system:authenticated"}},
		{name: "lasts", change: func(s *corev1.Secret) {
			s.Data["expiration"] = []byte(now.Add(time.Minute).Format(time.RFC3339))
		}, groups: []string{"system:bootstrappers", "system:authenticated"}},
		{name: "groups that are not theirs", change: func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }},
		{name: "expired", change: func(s *corev1.Secret) { s.Data["expiration"] = []byte(now.Add(-time.Second).Format(time.RFC3339)) }},
		{name: "expires when nobody knows", change: func(s *corev1.Secret) { s.Data["expiration"] = []byte("tomorrow") }},
		{name: "wrong secret", change: func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0123456789abcdee") }},
		{name: "wrong id", change: func(s *corev1.Secret) { s.Data["token-id"] = []byte("abcdee") }},
		{name: "wrong type", change: func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }},
		{name: "no data", change: func(s *corev1.Secret) { s.Data = nil }},
		{name: "not for this", change: func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }},
		{name: "being deleted", change: func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: now} }},
		{name: "other namespace", change: func(s *corev1.Secret) { s.Namespace = "default" }},
		{name: "capitals", token: "ABCDEF.0123456789abcdef"},
		{name: "too long", token: token + "0"},
		{name: "too short", token: token[:len(token)-1]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
				Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true")},
			}
			if test.change != nil {
				test.change(secret)
			}
			objects := &fakeObjects{}
			objects.set("secrets", secret)
			var l logs
			s := newStage(t, Config{BootstrapTokens: true, Objects: objects, Now: func() time.Time { return now }, Log: l.logger()})
			if test.token == "" {
				test.token = token
			}
			u, ok, err := s.User(requestWith("Bearer " + test.token))
			if test.groups == nil {
				if ok || err == nil || err.Error() != "invalid bearer token" {
					t.Fatalf("user %+v, error %v", u, err)
				}
			} else if want := (request.User{Name: "system:bootstrap:abcdef", Groups: test.groups}); !reflect.DeepEqual(u, want) {
				t.Errorf("user %+v, want %+v, error %v", u, want, err)
			}
			if strings.Contains(l.String(), "0123456789abc") {
				t.Errorf("log %s", l.String())
			}
		})
	}
	s := newStage(t, Config{BootstrapTokens: true, Objects: &fakeObjects{err: errors.New("no storage")}})
	if _, _, err := s.User(requestWith("Bearer " + token)); err == nil || err.Error() != "no storage" {
		t.Errorf("error %v", err)
	}
}
