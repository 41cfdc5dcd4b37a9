package kelson

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// arrived is a router that keeps the last request that got through.
type arrived struct {
	last   *request.Request
	header http.Header
}

func (a *arrived) Route(w http.ResponseWriter, r *http.Request) bool {
	a.last, a.header = request.From(r.Context()), r.Header
	w.WriteHeader(http.StatusOK)
	return true
}

func (a *arrived) Paths() []string { return nil }

// guarded is a server at which everybody is authenticated as user.
func guarded(tb testing.TB, user request.User, authorizer authz.Authorizer) (*Server, *arrived) {
	tb.Helper()
	api := &arrived{}
	s := &Server{API: api, Authorizer: authorizer, Authenticate: func(*http.Request) (request.User, bool, error) { return user, true, nil }}
	if err := s.PrepareRun(); err != nil {
		tb.Fatal(err)
	}
	return s, api
}

// send sends a request and returns the status and the message of the answer.
func send(tb testing.TB, s *Server, api *arrived, method, path string, header http.Header) (int, string) {
	tb.Helper()
	api.last = nil
	r := httptest.NewRequest(method, path, nil)
	for k, v := range header {
		r.Header[k] = v
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if (api.last != nil) != (w.Code == http.StatusOK) && !strings.HasPrefix(path, "/version") {
		tb.Errorf("%s %s: answered %d, but got through: %v", method, path, w.Code, api.last != nil)
	}
	var status metav1.Status
	if json.Unmarshal(w.Body.Bytes(), &status) != nil {
		return w.Code, w.Body.String()
	}
	return w.Code, status.Message
}

func TestAuthorizeAttributes(t *testing.T) {
	var last *authz.Attributes
	s, api := guarded(t, request.User{Name: "jane"}, authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		last = a
		return authz.Allow, "", nil
	}))
	for _, c := range []struct{ method, path, want string }{
		{"GET", "/healthz2", `get path /healthz2`},
		{"POST", "/x", `post path /x`},
		{"GET", "/api/v1", `get path /api/v1`},
		{"GET", "/api/v1/namespaces/ns/pods", `list /v1 pods in "ns" [] []`},
		{"GET", "/api/v1/namespaces/ns/pods/p/log", `get /v1 pods/log p in "ns" [] []`},
		{"GET", "/api/v1/namespaces/ns", `get /v1 namespaces ns in "ns" [] []`},
		{"PUT", "/api/v1/namespaces/ns/finalize", `update /v1 namespaces/finalize ns in "ns" [] []`},
		{"HEAD", "/apis/apps/v1/deployments", `list apps/v1 deployments in "" [] []`},
		{"OPTIONS", "/apis/apps/v1/deployments", ` apps/v1 deployments in "" [] []`},
		{"GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=a%3Db,c", `list /v1 pods in "" [{= spec.nodeName n1}] [a=b c]`},
		{"GET", "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1", `watch /v1 pods in "" [{= spec.nodeName n1}] []`},
		{"DELETE", "/api/v1/namespaces/ns/pods?labelSelector=a", `deletecollection /v1 pods in "ns" [] [a]`},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", `list /v1 pods p in "" [{= metadata.name p}] []`},
		{"GET", "/api/v1/pods?fieldSelector=%3D%3D%3D&labelSelector=%21%21", `list /v1 pods in "" [] [] fields labels`},
		// Selectors that nobody looks at narrow nothing.
		{"GET", "/api/v1/watch/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=a", `watch /v1 pods in "" [] []`},
		{"GET", "/apis/apps/v1/watch/deployments?fieldSelector=spec.x%3Dy", `watch apps/v1 deployments in "" [] []`},
		{"GET", "/api/v1/namespaces/ns/pods/p?fieldSelector=spec.nodeName%3Dn1", `get /v1 pods p in "ns" [] []`},
		{"POST", "/api/v1/namespaces/ns/pods?labelSelector=a", `create /v1 pods in "ns" [] []`},
	} {
		if code, text := send(t, s, api, c.method, c.path, nil); code != http.StatusOK {
			t.Errorf("%s: %d %s", c.path, code, text)
		}
		got := fmt.Sprintf("%s path %s", last.Verb, last.Path)
		if last.IsResource {
			resource := last.Resource
			if last.Subresource != "" {
				resource += "/" + last.Subresource
			}
			if last.Name != "" {
				resource += " " + last.Name
			}
			var labels []string
			for _, l := range last.Labels {
				labels = append(labels, l.String())
			}
			got = fmt.Sprintf("%s %s/%s %s in %q %v %v", last.Verb, last.Group, last.Version, resource, last.Namespace, last.Fields, labels)
			if last.FieldsErr != nil {
				got += " fields"
			}
			if last.LabelsErr != nil {
				got += " labels"
			}
		}
		if got != c.want || last.User.Name != "jane" {
			t.Errorf("%s %s: got %s, want %s", c.method, c.path, got, c.want)
		}
	}
}

func TestAuthorizeAnswers(t *testing.T) {
	type answer struct {
		decision authz.Decision
		reason   string
		err      error
	}
	for _, c := range []struct {
		name string
		answer
		code int
		text string
	}{
		{"allowed", answer{authz.Allow, "r", nil}, 200, ""},
		{"allowed in spite of an error", answer{authz.Allow, "", errors.New("x")}, 200, ""},
		{"no opinion", answer{authz.NoOpinion, "", nil}, 403, `pods "p" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "ns"`},
		{"denied", answer{authz.Deny, "rbac: why", nil}, 403, `pods "p" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "ns": rbac: why`},
		{"failed", answer{authz.NoOpinion, "", errors.New("<broken>")}, 500, "Internal Server Error: \"/api/v1/namespaces/ns/pods/p\": &lt;broken&gt;\n"},
		{"denied and failed", answer{authz.Deny, "", errors.New("broken")}, 500, "Internal Server Error: \"/api/v1/namespaces/ns/pods/p\": broken\n"},
	} {
		s, api := guarded(t, request.User{Name: "jane"}, authz.Func(func(context.Context, *authz.Attributes) (authz.Decision, string, error) {
			return c.decision, c.reason, c.err
		}))
		if code, text := send(t, s, api, "GET", "/api/v1/namespaces/ns/pods/p", nil); code != c.code || text != c.text {
			t.Errorf("%s: %d %q", c.name, code, text)
		}
	}
	// Without an authorizer everybody may everything.
	s, api := guarded(t, request.User{Name: "jane"}, nil)
	if code, _ := send(t, s, api, "GET", "/api/v1/pods", nil); code != 200 {
		t.Error(code)
	}
}

// static is a Source of what never changes.
type static struct {
	objects []resource.Object
	told    bool
}

func (s *static) Current() bool { return s.told }

func (s *static) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *static) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	var changes []resource.Change
	for _, o := range s.objects {
		changes = append(changes, resource.Change{Object: o})
	}
	apply(true, changes)
	s.told = true
	return nil
}

// granted is RBAC with rules for Jane, some of them in the namespace ns1 only.
func granted(cluster, ns1 []rbacv1.PolicyRule) authz.Authorizer {
	jane := []rbacv1.Subject{{Kind: "User", Name: "jane"}}
	ref := rbacv1.RoleRef{Kind: "ClusterRole", Name: "c"}
	return rbac.New(&static{objects: []resource.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Rules: cluster},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "c"}, RoleRef: ref, Subjects: jane},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Rules: ns1},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: "n"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "n"}, Subjects: jane},
	}})
}

// TestScopeConfusion tries to get with rights in one place at something in
// another.
func TestScopeConfusion(t *testing.T) {
	all := func(verbs, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: []string{""}, Resources: []string{resource}, ResourceNames: names}
	}
	s, api := guarded(t, request.User{Name: "jane", Groups: []string{authz.Authenticated}}, granted(
		[]rbacv1.PolicyRule{
			all("get", "pods/log"), all("get", "configmaps", "a"), all("watch,list", "configmaps", "a"),
			{Verbs: []string{"get"}, NonResourceURLs: []string{"/version", "/docs/*"}},
		},
		[]rbacv1.PolicyRule{all("*", "pods"), all("get", "nodes"), all("get", "namespaces"), all("*", "secrets/status")},
	))
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/api/v1/namespaces/ns1/pods/p", 200},
		{"GET", "/api/v1/namespaces/ns1/pods", 200},
		{"GET", "/api/v1/namespaces/ns1", 200},
		{"GET", "/api/v1/namespaces/ns2/pods/p", 403},
		{"GET", "/api/v1/namespaces/ns11/pods/p", 403},
		{"GET", "/api/v1/namespaces/ns/pods/p", 403},
		{"GET", "/api/v1/namespaces/NS1/pods/p", 403},
		{"GET", "/api/v1/pods", 403},
		{"GET", "/api/v1/watch/pods", 403},
		{"GET", "/api/v1/watch/namespaces/ns1/pods", 200},
		{"GET", "/api/v1/watch/namespaces/ns2/pods", 403},
		{"GET", "/api/v1/namespaces/ns2", 403},
		{"GET", "/api/v1/namespaces", 403},
		// A kind of the cluster under the namespace: allowed here, as the path
		// says, and the API does not know such a path.
		{"GET", "/api/v1/namespaces/ns1/nodes/n", 200},
		{"GET", "/api/v1/nodes/n", 403},
		{"GET", "/api/v1/namespaces/ns1/namespaces/ns2", 200},
		// Paths are taken as they are.
		{"GET", "/api/v1/namespaces/ns1/../ns2/pods/p", 403},
		{"GET", "/api/v1/namespaces/ns1/pods/../../ns2/pods", 403},
		{"GET", "/api/v1/namespaces/ns1%2F..%2Fns2/pods/p", 403},
		{"GET", "/api/v1/namespaces/ns2%2F..%2Fns1/pods/p", 403},
		{"GET", "/api/v1/./namespaces/ns1/pods", 403},
		{"GET", "/api//v1/namespaces/ns1/pods", 403},
		{"GET", "/api/v1//namespaces/ns1/pods", 403},
		{"GET", "/api/v1/namespaces//ns1/pods", 403},
		{"GET", "/api/v1/namespaces//pods", 403},
		{"GET", "/api/v1/namespaces/%6es1/pods", 200},
		{"GET", "/API/v1/namespaces/ns1/pods", 403},
		{"GET", "/apis//v1/namespaces/ns1/pods", 200}, // the core group by another name is the core group
		{"GET", "/apis/apps/v1/namespaces/ns1/pods", 403},
		{"GET", "/version/../api/v1/namespaces/ns2/pods/p", 403},
		{"GET", "/docs/../api/v1/secrets", 200}, // a path below /docs like any other
		{"GET", "/docs", 403},
		{"GET", "/docsx", 403},
		// Rights to a subresource are not rights to the resource, nor the other
		// way round.
		{"GET", "/api/v1/namespaces/ns2/pods/p/log", 200},
		{"GET", "/api/v1/namespaces/ns1/pods/p/exec", 403},
		{"POST", "/api/v1/namespaces/ns1/pods/p/eviction", 403},
		{"GET", "/api/v1/namespaces/ns1/secrets/s", 403},
		{"PUT", "/api/v1/namespaces/ns1/secrets/s/status", 200},
		{"GET", "/api/v1/namespaces/ns1/podsx/p", 403},
		{"GET", "/api/v1/namespaces/ns1/pod/p", 403},
		// Who may read one may list and watch that one.
		{"GET", "/api/v1/namespaces/ns2/configmaps/a", 200},
		{"GET", "/api/v1/namespaces/ns2/configmaps/ab", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?watch=1", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?watch=1&fieldSelector=metadata.name%3Da", 200},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Da", 200},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Db", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%21%3Da", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.namespace%3Da", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Da&limit=x", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Da%2F..%2Fb", 403},
		{"GET", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Db&fieldSelector=metadata.name%3Da", 403},
		{"DELETE", "/api/v1/namespaces/ns2/configmaps?fieldSelector=metadata.name%3Da", 403},
		{"GET", "/version", 200},
		{"POST", "/version", 403},
		{"GET", "/version/", 403},
		{"GET", "/versionx", 403},
		{"GET", "/healthz", 403},
		{"GET", "/", 403},
	} {
		if code, text := send(t, s, api, c.method, c.path, nil); code != c.code {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, text)
		}
	}
}

func BenchmarkAuthorizeStage(b *testing.B) {
	s, _ := guarded(b, request.User{Name: "jane", Groups: []string{authz.Authenticated}}, granted(nil,
		[]rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}))
	impersonate, authorize := s.impersonate(), s.authorize()
	r := httptest.NewRequest("GET", "/api/v1/namespaces/ns1/pods/p", nil)
	x := newExchange(httptest.NewRecorder(), r)
	x.User = request.User{Name: "jane", Groups: []string{authz.Authenticated}}
	x.Info, _ = request.Parse(r)
	b.ReportAllocs()
	for b.Loop() {
		if !impersonate.begin(x) || !authorize.begin(x) {
			b.Fatal("the request was refused")
		}
	}
}
