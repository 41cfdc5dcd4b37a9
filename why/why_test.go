package why

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/rbac"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// source is a resource.Follower with objects that do not change.
type source struct {
	objects []resource.Object
	pulled  bool
}

func (s *source) Current() bool { return s.pulled }

func (s *source) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *source) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	var changes []resource.Change
	for _, o := range s.objects {
		changes = append(changes, resource.Change{Object: o})
	}
	apply(true, changes)
	s.pulled = true
	return nil
}

// counted counts how often an authorizer is asked.
type counted struct {
	authz.Authorizer
	asked int
}

func (c *counted) Authorize(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	c.asked++
	return c.Authorizer.Authorize(ctx, a)
}

// oneNode is an authorizer that allows everything to a node.
type oneNode struct{ authz.AlwaysDeny }

func (oneNode) WhoCan(_ context.Context, _ *authz.Attributes, found func(authz.Grant) bool) (string, error) {
	found(authz.Grant{Subject: &authz.Subject{Kind: "User", Name: "system:node:n1"}, Policy: "it is its own"})
	return "", nil
}

func get(t *testing.T, p *Pages, user request.User, path string, query url.Values, answer any) int {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path+"?"+query.Encode(), nil)
	info, err := request.Parse(r)
	if err != nil {
		t.Fatal(err)
	}
	r = r.WithContext(request.With(t.Context(), &request.Request{User: user, Info: info}))
	w := httptest.NewRecorder()
	p.Handlers()[path].ServeHTTP(w, r)
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), answer); err != nil {
			t.Fatal(err)
		}
	}
	return w.Code
}

// TestWhoCanIsBounded: with ten thousand bindings the answer has at most maxSubjects, and
// the authorizer, which may be a webhook, is asked at most maxChecks times what the asker
// may see.
func TestWhoCanIsBounded(t *testing.T) {
	src := &source{objects: []resource.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"create"}, APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}},
			{Verbs: []string{"get"}, APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{"clusterrolebindings"}, ResourceNames: []string{"b9999"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "s"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "s"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "auditor"}}},
	}}
	for i := range 10000 {
		src.objects = append(src.objects, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b%d", i)},
			RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "r"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: fmt.Sprintf("u%d", i)}}})
	}
	masters := &counted{Authorizer: authz.PrivilegedGroups{authz.Masters}}
	union, err := authz.NewUnion(authz.Named{Name: "masters", Authorizer: masters}, authz.Named{Name: "rbac", Authorizer: rbac.New(src)})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pages{Authorizer: union}
	query := url.Values{"verb": {"get"}, "resource": {"pods"}}
	for _, c := range []struct {
		user     request.User
		subjects int
		hidden   bool
	}{
		{request.User{Name: "root", Groups: []string{authz.Masters}}, maxSubjects, false},
		{request.User{Name: "auditor"}, 0, true},
	} {
		masters.asked = 0
		began := time.Now()
		var answer Subjects
		if code := get(t, p, c.user, WhoCanPath, query, &answer); code != http.StatusOK {
			t.Fatalf("%s: got status %d", c.user.Name, code)
		}
		if len(answer.Subjects) != c.subjects || answer.Hidden != c.hidden || answer.Truncated != (c.subjects == maxSubjects) {
			t.Errorf("%s: got %d subjects, hidden %v, truncated %v; want %d, %v", c.user.Name, len(answer.Subjects), answer.Hidden, answer.Truncated, c.subjects, c.hidden)
		}
		if masters.asked > maxChecks+1 {
			t.Errorf("%s: the authorizer was asked %d times, want at most %d", c.user.Name, masters.asked, maxChecks+1)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %v", c.user.Name, took)
		}
	}
	// The names of nodes are for those who may read nodes.
	nodes, err := authz.NewUnion(append(union, authz.Named{Name: "node", Authorizer: oneNode{}})...)
	if err != nil {
		t.Fatal(err)
	}
	for user, want := range map[string]int{"root": 1, "auditor": 0} {
		var answer Subjects
		asker := request.User{Name: user}
		if user == "root" {
			asker.Groups = []string{authz.Masters}
		}
		get(t, &Pages{Authorizer: nodes}, asker, WhoCanPath, url.Values{"verb": {"list"}, "resource": {"nowhere"}}, &answer)
		found := 0
		for _, h := range answer.Subjects {
			if h.Subject.Name == "system:node:n1" {
				found++
			}
		}
		if found != want {
			t.Errorf("%s sees %d nodes, want %d", user, found, want)
		}
	}
	var answer Subjects
	if code := get(t, p, request.User{Name: "u1"}, WhoCanPath, query, &answer); code != http.StatusForbidden {
		t.Errorf("a user who may not ask: got status %d, want 403", code)
	}
}

// TestQuestionsAreBounded: a question that is too long or makes no sense is refused.
func TestQuestionsAreBounded(t *testing.T) {
	union, err := authz.NewUnion(authz.Named{Name: "all", Authorizer: authz.AlwaysAllow{}})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pages{Authorizer: union}
	long := strings.Repeat("x", maxText+1)
	for _, c := range []struct {
		query url.Values
		code  int
	}{
		{url.Values{"verb": {"get"}, "resource": {"pods"}, "user": {"u"}}, 200},
		{url.Values{"verb": {"get"}, "path": {"/x"}}, 200},
		{url.Values{"verb": {"get"}}, 400},
		{url.Values{"resource": {"pods"}}, 400},
		{url.Values{"verb": {"get"}, "path": {"/x"}, "resource": {"pods"}}, 400},
		{url.Values{"verb": {"get"}, "path": {"x"}}, 400},
		{url.Values{"verb": {"get"}, "resource": {"pods"}, "user": {long}}, 400},
		{url.Values{"verb": {"get"}, "resource": {long}}, 400},
		{url.Values{"verb": {"get"}, "resource": {"pods"}, "groups": {long}}, 400},
		{url.Values{"verb": {"get"}, "resource": {"pods"}, "groups": make([]string, maxGroups+1)}, 400},
		{url.Values{"verb": {"list"}, "resource": {"pods"}, "labelSelector": {"!!"}}, 400},
	} {
		if code := get(t, p, request.User{Name: "root"}, Path, c.query, &Answer{}); code != c.code {
			t.Errorf("%.100s: got status %d, want %d", c.query.Encode(), code, c.code)
		}
	}
}

func denial1(user, name string) *authz.Attributes {
	return &authz.Attributes{User: &request.User{Name: user, Groups: []string{"g"}}, Verb: "get", IsResource: true, Resource: "pods", Namespace: "ns", Name: name}
}

// TestDenialsAreBounded: whatever users are called and ask for, what is kept stays within
// its bounds, and the oldest users go first.
func TestDenialsAreBounded(t *testing.T) {
	d := &Denials{}
	now := time.Now()
	check := func(what string) {
		t.Helper()
		bytes := 0
		for e := d.order.Front(); e != nil; e = e.Next() {
			of := e.Value.(*denied)
			own := 2*len(of.key) + denialBytes
			for i := range of.last {
				own += of.last[i].bytes()
			}
			if own != of.bytes || len(of.last) > maxDenials {
				t.Fatalf("%s: a user has %d denials of %d bytes, counted as %d", what, len(of.last), own, of.bytes)
			}
			bytes += own
		}
		if bytes != d.bytes || bytes > maxDeniedBytes || len(d.users) != d.order.Len() || len(d.users) > maxUsers {
			t.Fatalf("%s: %d users and %d bytes, counted as %d", what, len(d.users), bytes, d.bytes)
		}
	}
	for i := range 3 * maxUsers {
		d.add(denial1(fmt.Sprintf("u%d", i), "x"), now)
	}
	check("many users")
	if len(d.of("u0")) != 0 || len(d.of(fmt.Sprintf("u%d", 3*maxUsers-1))) != 1 {
		t.Error("the oldest user was kept, or the newest was not")
	}
	for i := range 100 {
		d.add(denial1("busy", fmt.Sprintf("n%d", i)), now)
	}
	check("many denials")
	if last := d.of("busy"); len(last) != maxDenials || last[0].question.Name != "n99" || last[maxDenials-1].question.Name != fmt.Sprint("n", 100-maxDenials) {
		t.Errorf("got %d denials, the first of %s, want %d and n99", len(last), last[0].question.Name, maxDenials)
	}
	for range 5 {
		d.add(denial1("busy", "n99"), now)
	}
	if last := d.of("busy"); last[0].count != 6 || len(last) != maxDenials {
		t.Errorf("a repeated denial: got count %d, want 6", last[0].count)
	}
	for range 100 { // a program that polls
		d.add(denial1("busy", "n97"), now)
		d.add(denial1("busy", "n98"), now)
	}
	check("denials that come again")
	if last := d.of("busy"); last[0].question.Name != "n98" || last[1].question.Name != "n97" || last[2].question.Name != "n99" || len(last) != maxDenials {
		t.Errorf("polling: got %d denials, %s, %s and %s first, want n98, n97 and n99", len(last), last[0].question.Name, last[1].question.Name, last[2].question.Name)
	}
	huge := strings.Repeat("\u00e9", 1<<15)
	for i := range 300 {
		a := denial1(fmt.Sprint(huge, i), huge)
		for j := range 100 {
			a.User.Groups = append(a.User.Groups, fmt.Sprint(huge[:2000], j))
		}
		d.add(a, now)
		if i%100 == 0 {
			check("huge names")
		}
	}
	// Long names that begin alike are different users.
	if got := d.of(fmt.Sprint(huge, 299)); len(got) != 1 || !got[0].cut {
		t.Errorf("got %d denials of a user with a long name, want 1, cut", len(got))
	}
	if got := d.of(huge + "other"); len(got) != 0 {
		t.Errorf("a user whose name begins like another's gets %d denials of that one", len(got))
	}
}

// TestDenialsConcurrently: denials are kept and read at the same time.
func TestDenialsConcurrently(t *testing.T) {
	union, err := authz.NewUnion(authz.Named{Name: "never", Authorizer: authz.AlwaysDeny{}})
	if err != nil {
		t.Fatal(err)
	}
	const names = 7
	d := &Denials{}
	watch := d.Watch(union)
	p := &Pages{Authorizer: union, Denials: d}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 500 {
				user := fmt.Sprintf("u%d", (i+j)%20)
				if decision, _, _ := watch.Authorize(t.Context(), denial1(user, fmt.Sprint(j%names))); decision == authz.Allow {
					t.Error("allowed")
				}
				if j%50 == 0 {
					var answer LastDenials
					if code := get(t, p, request.User{Name: user}, DenialsPath, nil, &answer); code != 200 || len(answer.Denials) == 0 {
						t.Errorf("got status %d and %d denials", code, len(answer.Denials))
					}
				}
			}
		})
	}
	group.Wait()
	if got := len(d.of("u3")); got != names {
		t.Errorf("got %d denials, want the %d that differ", got, names)
	}
}

// TestOnlyDenialsAreKept: neither what is allowed, nor what failed, nor the questions of
// constrained impersonation are denials.
func TestOnlyDenialsAreKept(t *testing.T) {
	d := &Denials{}
	watch := d.Watch(authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		switch a.Name {
		case "allowed":
			return authz.Allow, "", nil
		case "failed":
			return authz.NoOpinion, "", fmt.Errorf("broken")
		}
		return authz.NoOpinion, "", nil
	}))
	for _, name := range []string{"allowed", "failed", "denied"} {
		_, _, _ = watch.Authorize(t.Context(), denial1("jane", name))
	}
	probe := denial1("jane", "probe")
	probe.Verb = "impersonate:user-info"
	_, _, _ = watch.Authorize(t.Context(), probe)
	if got := d.of("jane"); len(got) != 1 || got[0].question.Name != "denied" {
		t.Errorf("got %+v, want one denial", got)
	}
}

func BenchmarkAllowedThroughDenials(b *testing.B) {
	watch := (&Denials{}).Watch(authz.AlwaysAllow{})
	a := denial1("jane", "x")
	for b.Loop() {
		if decision, _, _ := watch.Authorize(b.Context(), a); decision != authz.Allow {
			b.Fatal(decision)
		}
	}
}

// onlyPages allows a user everything, and another one to impersonate it, with constraints, for
// pages alone.
type onlyPages struct{ Authorizer }

func (onlyPages) Authorize(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	if a.User.Name == "jane" || !a.IsResource {
		return authz.Allow, "", nil
	}
	return authz.NoOpinion, "", nil
}

// roundTripper is a function that answers requests.
type roundTripper func(r *http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

// TestExplainedWritesAreOfTheImpersonator: a write that is explained to somebody who impersonates
// is impersonated in the same way, so that the checks of that and the audit see it; and the
// object as it is, is read only by who may impersonate for that.
func TestExplainedWritesAreOfTheImpersonator(t *testing.T) {
	var sender request.User
	var sent http.Header
	p := &Pages{
		Authorizer: onlyPages{}, Serves: func(string, string, string) bool { return true },
		Submit: func(user request.User) http.RoundTripper {
			return roundTripper(func(r *http.Request) *http.Response {
				sender, sent = user, r.Header
				return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}"))}
			})
		},
	}
	ask := func(method, path string) int {
		r := httptest.NewRequest(http.MethodPost, AdmissionPath+"?"+url.Values{"method": {method}, "path": {path}}.Encode(), strings.NewReader("{}"))
		info, err := request.Parse(r)
		if err != nil {
			t.Fatal(err)
		}
		r = r.WithContext(request.With(t.Context(), &request.Request{
			Info: info, User: request.User{Name: "jane", Groups: []string{"dev", "system:authenticated"}},
			Impersonator: &request.User{Name: "bot"}, ImpersonationConstraint: "impersonate:user-info",
			Wanted: &request.User{Name: "jane", Groups: []string{"dev"}, Extra: map[string][]string{"a/B": {"x"}}},
		}))
		w := httptest.NewRecorder()
		p.Handlers()[AdmissionPath].ServeHTTP(w, r)
		return w.Code
	}
	if code := ask(http.MethodPost, "/api/v1/namespaces/a/configmaps"); code != http.StatusOK {
		t.Errorf("got %d, want 200", code)
	}
	want := http.Header{"Impersonate-User": {"jane"}, "Impersonate-Group": {"dev"}, "Impersonate-Extra-A%2f%42": {"x"}}
	for name, values := range want {
		if !slices.Equal(sent[name], values) {
			t.Errorf("%s: got %q of %v, want %q", name, sent[name], sent, values)
		}
	}
	if sender.Name != "bot" {
		t.Errorf("the write is of %q, want bot, who impersonates", sender.Name)
	}
	if code := ask(http.MethodPut, "/api/v1/namespaces/a/configmaps/b"); code != http.StatusForbidden {
		t.Errorf("an update, which shows the object: got %d, want 403", code)
	}
}
