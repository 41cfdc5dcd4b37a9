package kelsontest_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

// TestOddPaths: paths with slashes too many are authorized as what they would be
// without, and answered as kube-apiserver answers them.
func TestOddPaths(t *testing.T) {
	config := kelsontest.Start(t, kelsontest.NoControllers()).Config()
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	const text, json = "text/plain", "application/json"
	for _, c := range []struct {
		method, path string
		code         int // for an administrator
		media        string
		nobody       int // the code for who has no rights
		message      string
	}{
		{"GET", "//api/v1/pods", 404, text, 403, "404 page not found"},
		{"GET", "///api/v1/namespaces/default/configmaps/x", 404, text, 403, "404 page not found"},
		{"DELETE", "//api/v1/namespaces/default", 404, text, 403, "404 page not found"},
		{"GET", "//apis/apps/v1/deployments", 404, text, 403, "404 page not found"},
		{"GET", "//api", 404, text, 403, "404 page not found"},
		{"GET", "/api//v1/pods", 404, json, 403, "could not find the requested resource"},
		{"GET", "/api//", 200, json, 200, "APIVersions"},
		{"GET", "/api/v1///", 200, json, 200, "APIResourceList"},
		{"GET", "/apis/", 200, json, 200, "APIGroupList"},
		{"GET", "/apis//", 404, text, 404, "404 page not found"},
		{"GET", "/apis/apps//", 200, json, 200, "APIGroup"},
		{"GET", "/apis/apps/v1//", 200, json, 200, "APIResourceList"},
		{"GET", "/version//", 200, json, 403, "gitVersion"},
		{"GET", "/healthz//", 404, text, 403, "404 page not found"},
		{"GET", "/.well-known/openid-configuration//", 200, json, 403, "issuer"},
		{"GET", "/.well-known/openid-configuration/x", 404, json, 403, "could not find the requested resource"},
		{"GET", "/openid/v1/jwks/", 406, json, 403, "jwk-set"},
		{"GET", "/api/v1/namespaces/default/configmaps//", 200, json, 403, "ConfigMapList"},
		{"GET", "/api/v1/namespaces/default/pods//log", 400, json, 403, "name must be provided"},
		{"POST", "/api/v1/namespaces/default/pods//exec", 400, json, 403, "name must be provided"},
		{"GET", "/api/v1/namespaces/default/pods//status", 400, json, 403, "name must be provided"},
		{"DELETE", "/api/v1/namespaces/default/pods//status", 405, json, 403, "does not allow this method"},
		{"GET", "/api/v1/nodes//proxy", 400, json, 403, "name must be provided"},
		// Who may list must not get, by a selector, what has to be got: kube-apiserver
		// takes the name from there.
		{"GET", "/api/v1/namespaces/default/pods//log?fieldSelector=metadata.name%3Dx", 400, json, 403, "name must be provided"},
		{"GET", "/api/v1/namespaces/default/pods//status?fieldSelector=metadata.name%3Dx", 400, json, 403, "name must be provided"},
	} {
		for _, user := range []string{"", "nobody"} {
			req, err := http.NewRequestWithContext(t.Context(), c.method, config.Host, nil)
			if err != nil {
				t.Fatal(err)
			}
			path, query, _ := strings.Cut(c.path, "?")
			req.URL = &url.URL{Scheme: server.Scheme, Host: server.Host, Path: path, RawQuery: query}
			req.Header.Set("Accept", json)
			want := c.code
			if user != "" {
				req.Header.Set("Impersonate-User", user)
				req.Header.Set("Impersonate-Group", "system:authenticated")
				want = c.nobody
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != want {
				t.Errorf("%s %s by %q: got %d, want %d: %.200s", c.method, c.path, user, resp.StatusCode, want, body)
			} else if media := resp.Header.Get("Content-Type"); user == "" && (!strings.HasPrefix(media, c.media) || !strings.Contains(string(body), c.message)) {
				t.Errorf("%s %s: got %s %.200s, want %s with %q", c.method, c.path, media, body, c.media, c.message)
			}
		}
	}
}
