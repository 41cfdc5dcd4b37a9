package aggregator

import (
	"net/http/httptest"
	"net/url"
	"testing"

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
	req := &request.Request{User: request.User{Name: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes": {"view"}}}}
	h := (&backend{server: &Server{}}).requestHeader(r, req, &url.URL{Scheme: "https", Host: "backend", Path: "/"})
	for name, want := range map[string]int{"X-Remote-User": 1, "X-Remote-Group": 2, "X-Remote-Uid": 1, "X-Remote-Extra-Scopes": 1, "X-Dropped": 0, "Connection": 0} {
		if got := h[name]; len(got) != want {
			t.Errorf("%s: got %q, want %d values", name, got, want)
		}
	}
	if got := h.Get("X-Remote-User"); got != "jane" {
		t.Errorf("X-Remote-User: got %q, want jane", got)
	}
}
