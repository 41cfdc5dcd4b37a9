package console

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// A console that impersonates a user does not forward requests to be somebody else.
func TestConsoleOfAUserSpeaksForNobodyElse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		as, header string
		want       int
	}{
		{"", "Impersonate-User", http.StatusOK},
		{"jane", "", http.StatusOK},
		{"jane", "Impersonate-User", http.StatusForbidden},
		{"jane", "Impersonate-Group", http.StatusForbidden},
		{"jane", "Impersonate-Extra-Scopes", http.StatusForbidden},
	} {
		c := New(Config{
			Server: &url.URL{Scheme: "https", Host: "server"},
			Info:   Info{User: test.as},
			Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
			}),
		})
		r := httptest.NewRequest(http.MethodGet, "/k8s/api", nil)
		if test.header != "" {
			r.Header.Set(test.header, "root")
		}
		w := httptest.NewRecorder()
		c.forward()(w, r)
		if w.Code != test.want {
			t.Errorf("as %q with header %q: got code %d, want %d", test.as, test.header, w.Code, test.want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
