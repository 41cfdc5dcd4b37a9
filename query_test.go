package kelson

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// TestTooManyParametersAreRefusedBeforeAuthentication: with more parameters than net/url reads,
// a query has none at all; nobody may be asked for rights by what then is not done.
func TestTooManyParametersAreRefusedBeforeAuthentication(t *testing.T) {
	asked := 0
	api := &arrived{}
	s := &Server{API: api, Authorizer: authz.AlwaysAllow{}, Authenticate: func(*http.Request) (request.User, bool, error) {
		asked++
		return request.User{Name: "system:node:n1"}, true, nil
	}}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{
		"GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1", "GET /api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1", "GET /api/v1/watch/pods?limit=1",
		"DELETE /apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dn1", "POST /api/v1/namespaces/a/configmaps?dryRun=All",
		"GET /api/v1/namespaces/a/pods/p/log?container=c", "GET /healthz?verbose", "GET /version?pretty=1", "GET /api/v1/pods?timeout=1x", "GET /?a",
	} {
		method, target, _ := strings.Cut(request, " ")
		for n, want := range map[int]int{0: http.StatusOK, 9_000: http.StatusOK, 10_000: http.StatusBadRequest, 50_000: http.StatusBadRequest} {
			if want == http.StatusOK && (!strings.HasPrefix(target, "/api") || strings.Contains(target, "timeout")) {
				continue
			}
			asked, api.last = 0, nil
			code, message := send(t, s, api, method, target+strings.Repeat("&", n), nil)
			if code != want || want == http.StatusBadRequest && (asked > 0 || !strings.Contains(message, "the query has more than 10000 parameters")) {
				t.Errorf("%s and %d ampersands: got %d %q, authenticated %d times; want %d before authentication", request, n, code, message, asked, want)
			}
		}
	}
}

// TestQueryOfAuthorizerAndHandlerAreOne: what the authorizer has seen is what a handler gets,
// whatever the query looks like.
func TestQueryOfAuthorizerAndHandlerAreOne(t *testing.T) {
	for _, query := range []string{
		"fieldSelector=spec.nodeName%3Dn1", "fieldSelector=spec.nodeName%3Dn1&fieldSelector=", "fieldSelector=&fieldSelector=spec.nodeName%3Dn1",
		"field%53elector=spec.nodeName%3Dn1", "fieldSelector=spec.nodeName%3Dn1;&limit=1", "a=%zz&fieldSelector=spec.nodeName%3Dn1", "fieldSelector=%zz&fieldSelector=spec.nodeName%3Dn1",
		"FieldSelector=spec.nodeName%3Dn1", "fieldSelector=spec.nodeName%3Dn1" + strings.Repeat("&", 9_998),
	} {
		var seen string
		s, api := guarded(t, request.User{Name: "n"}, authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
			seen = ""
			for _, r := range a.Fields {
				seen += r.Field + "=" + r.Value
			}
			return authz.Allow, "", nil
		}))
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?"+query, nil)
		s.ServeHTTP(httptest.NewRecorder(), r)
		if api.last == nil {
			t.Fatalf("%.100s: did not arrive", query)
		}
		if got, want := api.last.Query.Get("fieldSelector"), r.URL.Query().Get("fieldSelector"); got != want || got != seen {
			t.Errorf("%.100s: the handler got %q, the authorizer %q; want %q", query, got, seen, want)
		}
	}
}
