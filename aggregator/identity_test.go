package aggregator

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/request"
)

// TestConnectionHeaderDoesNotRemoveTheUser: a client that names the headers of
// authenticating proxies in Connection, which a proxy has to drop, is passed on as
// who it is.
func TestConnectionHeaderDoesNotRemoveTheUser(t *testing.T) {
	r := httptest.NewRequest("GET", "/apis/wardle.example.com/v1/flunders", nil)
	r.Header.Set("Connection", "X-Remote-User, X-Remote-Group, X-Remote-Uid, X-Remote-Extra-Scopes, X-Dropped")
	r.Header.Set("X-Dropped", "1")
	r.Header.Set("X-Remote-User", "admin")
	for _, name := range []string{
		"X_Remote_User", "x-remote_group", "X_REMOTE_EXTRA_Scopes", "Impersonate-User", "Impersonate_Group", "AUTHORIZATION", "Sec-WebSocket-Protocol",
		"X-HTTP-Method-Override", "X_HTTP_METHOD", "x-original-url",
	} {
		r.Header.Set(name, "admin") // some servers do not tell _ from -
	}
	req := &request.Request{User: request.User{Name: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes": {"view"}}}}
	b := &backend{server: &Server{}}
	h := b.requestHeader(r, req, b.user(req), &url.URL{Scheme: "https", Host: "backend", Path: "/"})
	for name, want := range map[string]int{"X-Remote-User": 1, "X-Remote-Group": 2, "X-Remote-Uid": 1, "X-Remote-Extra-Scopes": 1, "X-Dropped": 0, "Connection": 0} {
		if got := h[name]; len(got) != want {
			t.Errorf("%s: got %q, want %d values", name, got, want)
		}
	}
	for name, values := range h {
		if slices.Contains(values, "admin") {
			t.Errorf("%s: got %q, want nothing that the client says of itself", name, values)
		}
	}
	if got := h.Get("X-Remote-User"); got != "jane" {
		t.Errorf("X-Remote-User: got %q, want jane", got)
	}
}

// TestUsersThatHeadersChangeAreRefused: a backend would take who is in the group
// " system:masters" for an administrator.
func TestUsersThatHeadersChangeAreRefused(t *testing.T) {
	var failed error
	b := &backend{server: &Server{Config: Config{Fail: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err }}}}
	b.available.Store(true)
	r := httptest.NewRequest("GET", "/apis/wardle.example.com/v1/flunders", nil)
	req := &request.Request{User: request.User{Name: "jane", Groups: []string{" system:masters"}}}
	b.proxy(httptest.NewRecorder(), r.WithContext(request.With(r.Context(), req)))
	if !apierrors.IsServiceUnavailable(failed) {
		t.Errorf("got %v, want that the user cannot be passed on", failed)
	}
}
