package request

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		method, url string
		// verb group/version namespace resource/name/subresource
		want string
	}{
		// Paths that are not about resources.
		{"GET", "/", "get"},
		{"GET", "/healthz", "get"},
		{"POST", "/healthz", "post"},
		{"HEAD", "/healthz", "head"},
		{"GET", "/api", "get"},
		{"GET", "/api/", "get"},
		{"GET", "/api/v1", "get"},
		{"GET", "/api/v1/", "get"},
		{"GET", "/apis", "get"},
		{"GET", "/apis/apps", "get"},
		{"GET", "/apis/apps/v1", "get"},
		{"GET", "/apis/apps/v1/", "get"},
		{"GET", "/apiserver/v1/pods/x", "get"},
		{"GET", "/openapi/v3/api/v1", "get"},

		// Collections.
		{"GET", "/api/v1/pods", "list /v1 - pods"},
		{"HEAD", "/api/v1/pods", "list /v1 - pods"},
		{"GET", "/api/v1/pods/", "list /v1 - pods"},
		{"GET", "/api/v1/namespaces/other/pods", "list /v1 other pods"},
		{"POST", "/api/v1/namespaces/other/pods", "create /v1 other pods"},
		{"DELETE", "/api/v1/namespaces/other/pods", "deletecollection /v1 other pods"},
		{"PUT", "/api/v1/namespaces/other/pods", "update /v1 other pods"},
		{"GET", "/apis/apps/v1/namespaces/other/deployments", "list apps/v1 other deployments"},
		{"OPTIONS", "/api/v1/pods", " /v1 - pods"},

		// Objects.
		{"GET", "/api/v1/nodes/n", "get /v1 - nodes/n"},
		{"HEAD", "/api/v1/nodes/n", "get /v1 - nodes/n"},
		{"GET", "/api/v1/namespaces/other/pods/p", "get /v1 other pods/p"},
		{"PUT", "/api/v1/namespaces/other/pods/p", "update /v1 other pods/p"},
		{"PATCH", "/api/v1/namespaces/other/pods/p", "patch /v1 other pods/p"},
		{"DELETE", "/api/v1/namespaces/other/pods/p", "delete /v1 other pods/p"},
		{"POST", "/api/v1/namespaces/other/pods/p/binding", "create /v1 other pods/p/binding"},
		{"GET", "/api/v1/namespaces/other/pods/p/status", "get /v1 other pods/p/status"},
		{"GET", "/api/v1/namespaces/other/services/s/proxy/a/b", "get /v1 other services/s/proxy"},
		{"DELETE", "/apis/apps/v1/namespaces/other/deployments/d", "delete apps/v1 other deployments/d"},

		// Namespaces are resources and hold them.
		{"GET", "/api/v1/namespaces", "list /v1 - namespaces"},
		{"POST", "/api/v1/namespaces", "create /v1 - namespaces"},
		{"DELETE", "/api/v1/namespaces", "deletecollection /v1 - namespaces"},
		{"GET", "/api/v1/namespaces/other", "get /v1 other namespaces/other"},
		{"GET", "/api/v1/namespaces/other/", "get /v1 other namespaces/other"},
		{"PUT", "/api/v1/namespaces/other/status", "update /v1 other namespaces/other/status"},
		{"PUT", "/api/v1/namespaces/other/finalize", "update /v1 other namespaces/other/finalize"},
		{"GET", "/api/v1/namespaces/other/nope", "list /v1 other nope"},

		// Watches.
		{"GET", "/api/v1/pods?watch=true", "watch /v1 - pods"},
		{"GET", "/api/v1/pods?watch=1", "watch /v1 - pods"},
		{"GET", "/api/v1/pods?watch", "watch /v1 - pods"},
		{"GET", "/api/v1/pods?watch=anything", "watch /v1 - pods"},
		{"GET", "/api/v1/pods?w%61tch=1", "watch /v1 - pods"},
		{"GET", "/api/v1/pods?watch=false", "list /v1 - pods"},
		{"GET", "/api/v1/pods?watch=False", "list /v1 - pods"},
		{"GET", "/api/v1/pods?watch=0&watch=1", "list /v1 - pods"},
		{"GET", "/api/v1/pods?watch=1&limit=x", "watch /v1 - pods"},
		{"GET", "/api/v1/pods/p?watch=1", "get /v1 - pods/p"},
		{"GET", "/api/v1/watch/pods", "watch /v1 - pods"},
		{"GET", "/api/v1/watch/namespaces", "watch /v1 - namespaces"},
		{"GET", "/api/v1/watch/namespaces/other", "watch /v1 other namespaces/other"},
		{"GET", "/api/v1/watch/namespaces/other/pods", "watch /v1 other pods"},
		{"GET", "/api/v1/watch/namespaces/other/pods/p", "watch /v1 other pods/p"},
		{"GET", "/apis/apps/v1/watch/namespaces/other/deployments/d", "watch apps/v1 other deployments/d"},
		{"DELETE", "/api/v1/watch/pods", "watch /v1 - pods"},

		// The old proxy paths have no subresources.
		{"GET", "/api/v1/proxy/namespaces/other/pods/p/a/b", "proxy /v1 other pods/p"},
		{"GET", "/api/v1/proxy/nodes/n", "proxy /v1 - nodes/n"},

		// A field selector for one name names it.
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", "list /v1 - pods/p"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name==p", "list /v1 - pods/p"},
		{"GET", "/api/v1/pods?watch=1&fieldSelector=metadata.name=p,spec.nodeName=n", "watch /v1 - pods/p"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name!=p", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=a/b", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=..", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=p,broken", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=p&limit=x", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=p&limit=5", "list /v1 - pods/p"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=p&timeoutSeconds=", "list /v1 - pods"},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=p&labelSelector=((", "list /v1 - pods"},
		{"DELETE", "/api/v1/pods?fieldSelector=metadata.name=p", "deletecollection /v1 - pods"},
		{"GET", "/api/v1/watch/pods?fieldSelector=metadata.name=p", "watch /v1 - pods"},

		// Empty segments are segments.
		{"GET", "//api/v1/pods//", "list /v1 - pods"},
		{"GET", "/api//pods/p", "get / - pods/p"},
		{"GET", "/api/v1/pods//status", "list /v1 - pods//status"},
	}
	for _, tt := range tests {
		r := httptest.NewRequest(tt.method, "https://host"+tt.url, nil)
		info, err := Parse(r)
		if err != nil {
			t.Errorf("%s %s: %v", tt.method, tt.url, err)
			continue
		}
		if got := describe(info); got != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.method, tt.url, got, tt.want)
		}
		if info.Path != r.URL.Path {
			t.Errorf("%s %s: path is %q", tt.method, tt.url, info.Path)
		}
	}
}

func describe(i Info) string {
	if !i.IsResource {
		return i.Verb
	}
	ns := i.Namespace
	if ns == "" {
		ns = "-"
	}
	s := i.Verb + " " + i.Group + "/" + i.Version + " " + ns + " " + i.Resource
	if i.Name != "" || i.Subresource != "" {
		s += "/" + i.Name
	}
	if i.Subresource != "" {
		s += "/" + i.Subresource
	}
	return s
}

func TestParseParts(t *testing.T) {
	info, err := Parse(httptest.NewRequest("GET", "/api/v1/namespaces/other/services/s/proxy/a/b", nil))
	if want := []string{"services", "s", "proxy", "a", "b"}; err != nil || !reflect.DeepEqual(info.Parts, want) {
		t.Errorf("got %q, %v; want %q", info.Parts, err, want)
	}
}

func TestParseErrors(t *testing.T) {
	for _, path := range []string{"/api/v1/watch", "/api/v1/proxy?a=b", "/apis/apps/v1/watch"} {
		info, err := Parse(httptest.NewRequest("GET", path, nil))
		want := "unable to determine kind and namespace from url, " + path
		if err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
		if !info.IsResource {
			t.Errorf("%s: what was understood is lost: %+v", path, info)
		}
	}
}

func TestLongRunning(t *testing.T) {
	tests := map[string]bool{
		"/api/v1/pods":                                   false,
		"/api/v1/pods?watch=1":                           true,
		"/api/v1/watch/pods":                             true,
		"/api/v1/proxy/nodes/n":                          true,
		"/api/v1/namespaces/n/pods/p/log":                true,
		"/api/v1/namespaces/n/pods/p/exec":               true,
		"/api/v1/namespaces/n/pods/p/attach":             true,
		"/api/v1/namespaces/n/pods/p/portforward":        true,
		"/api/v1/namespaces/n/services/s/proxy/watch":    true,
		"/api/v1/namespaces/n/pods/p/status":             false,
		"/apis/apps/v1/namespaces/n/deployments/d/scale": false,
		"/debug/pprof/profile":                           true,
		"/debug":                                         false,
		"/healthz":                                       false,
	}
	for path, want := range tests {
		info, err := Parse(httptest.NewRequest("GET", path, nil))
		if got := info.LongRunning(); err != nil || got != want {
			t.Errorf("%s: got %v, %v; want %v", path, got, err, want)
		}
	}
}

// FuzzParse looks for panics, and for names that do not come from the path.
func FuzzParse(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/a/pods/b/status", "watch=1")
	f.Add("DELETE", "/apis/g/v/watch/x", "fieldSelector=metadata.name%3Da")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		r := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}}
		info, err := Parse(r)
		if err == nil && info.IsResource && (len(info.Parts) == 0 || info.Resource != info.Parts[0]) {
			t.Errorf("%s %s: %+v", method, path, info)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	for name, target := range map[string]string{
		"get":   "/api/v1/namespaces/default/configmaps/a",
		"list":  "/api/v1/namespaces/default/configmaps?limit=500&resourceVersion=0",
		"watch": "/apis/apps/v1/deployments?allowWatchBookmarks=true&resourceVersion=12&timeoutSeconds=300&watch=true",
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("GET", target, nil)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Parse(r)
			}
		})
	}
}

func TestAcceptsGzip(t *testing.T) {
	for accepted, want := range map[string]bool{
		"gzip": true, "deflate, gzip": true, " gzip ,br": true,
		"": false, "identity": false, "gzip;q=0": false, "gzip;q=0.5": false, "x-gzip": false, "GZIP": false,
	} {
		r := &http.Request{Header: http.Header{"Accept-Encoding": {accepted}}}
		if got := AcceptsGzip(r); got != want {
			t.Errorf("%q: got %t, want %t", accepted, got, want)
		}
	}
}
