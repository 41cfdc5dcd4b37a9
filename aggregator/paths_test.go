package aggregator_test

import (
	"net/http"
	"sync/atomic"
	"testing"
)

// TestOnlyPlainPathsAreSentOn: what is authorized is a path of segments. A backend, or a proxy
// in front of it, could take one with dots or empty segments for another path.
func TestOnlyPlainPathsAreSentOn(t *testing.T) {
	f := newFixture(t)
	var seen atomic.Pointer[string]
	f.register("dots.example.com", f.backend("dots.example.com", func(_ http.ResponseWriter, r *http.Request) {
		if path := r.URL.EscapedPath(); r.URL.RawQuery == "test=1" { // the aggregator has requests of its own
			seen.Store(&path)
		}
	}))
	f.waitFor("v1.dots.example.com", "Passed")
	const root = "/apis/dots.example.com/v1/"
	for path, want := range map[string]string{
		"namespaces/mine/things/a":                 "namespaces/mine/things/a",
		"namespaces/mine/things/...":               "namespaces/mine/things/...",
		"namespaces/mine/things/a%2Fstatus":        "namespaces/mine/things/a/status", // as it is authorized
		"namespaces/mine/things/%252e%252e":        "namespaces/mine/things/%252e%252e",
		"namespaces/mine/things/a..":               "namespaces/mine/things/a..",
		"namespaces/mine/%2e%2e/other/things":      "",
		"namespaces/mine/%2E./other/things":        "",
		"namespaces/mine/.%2e/other/things":        "",
		"namespaces/mine/../other/things":          "",
		"namespaces/mine/things/a/../../other":     "",
		"namespaces/mine/things/x%2f..%2f..%2fall": "",
		"namespaces/mine/things/..":                "",
		"namespaces/mine/things/%2e%2e/":           "",
		"namespaces/./things":                      "",
		"%2e/things":                               "",
		"namespaces/mine/things/":                  "namespaces/mine/things/",
		"namespaces/mine/things//a":                "",
		"namespaces/mine/things%2F%2Fa":            "",
		"namespaces/mine/things//":                 "",
		"namespaces//things":                       "",
		"/namespaces/other/things/a":               "",
		"watch//namespaces/other/things":           "",
	} {
		seen.Store(nil)
		a := f.do(http.MethodGet, root+path+"?test=1", "")
		got := seen.Load()
		switch {
		case want == "" && (got != nil || a.code != http.StatusBadRequest):
			t.Errorf("%s: got %d %s, sent on: %t; want 400 by this server", path, a.code, a.body, got != nil)
		case want != "" && (got == nil || *got != root+want):
			t.Errorf("%s: got %d %s, want it sent on as %s", path, a.code, a.body, want)
		}
	}
}
