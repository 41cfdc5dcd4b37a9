package rbac

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// TestExplanationAgreesWithDecision: on random roles, bindings and requests, there are
// grants if and only if the request is allowed, one of them is the one that the reason
// names, WhoCan names the user or a group in the same case, and what Suggest returns
// makes the request pass.
func TestExplanationAgreesWithDecision(t *testing.T) {
	r := randomtest.From(t, 11)
	g := random{r}
	requests, allowed, suggested, near := testsize.Part(10000, 4), 0, 0, 0
	var src *source
	var a *Authorizer
	for i := range requests {
		if i%20 == 0 {
			src = &source{}
			a = New(src)
			var objects []resource.Object
			for range 2 + r.IntN(8) {
				ns := g.pick("", "n1/", "n2/")
				objects = append(objects, aRole(ns+g.pick("r1", "r2", "r3"), g.rule(), g.rule()),
					bind(g.pick("", "n1/", "n2/")+g.pick("b1", "b2", "b3", "b4"), g.pick("Role ", "ClusterRole ")+g.pick("r1", "r2", "r3"),
						g.some("User u1", "User u2", "Group g1", "Group g2", "ServiceAccount n1/s", "ServiceAccount s")...))
			}
			src.tell(set(objects...)...)
		}
		who := &request.User{Name: g.pick("u1", "u2", "system:serviceaccount:n1:s", "system:serviceaccount:n2:s", ""), Groups: g.some("g1", "g2", "g3")}
		what := g.pick("get", "list", "create", "*") + " " + g.pick("/a", "/a/b", "/a/c", "/abc", "/", "core/pods", "core/pods/log", "apps/nodes/log", "apps/nodes", "core/pods/x")
		if !strings.Contains(what, " /") {
			what += " " + g.pick("", "n1", "n2", "n1/x", "n2/y", "/x")
		}
		at := ask(who, what)
		decision, reason, err := a.Authorize(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		d, err := a.Explain(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(d.Grants) > 0, decision == authz.Allow; got != want {
			t.Fatalf("request %d, %+v %s: explained as allowed: got %v, want %v: %+v", i, who, what, got, want, d)
		}
		if can := canByFinding(t, a, at); can != (decision == authz.Allow) {
			t.Fatalf("request %d, %+v %s: WhoCan names the user: got %v, want %v", i, who, what, can, decision == authz.Allow)
		}
		if decision == authz.Allow {
			allowed++
			if name := fmt.Sprintf("%q of", nameInReason(d.Grants[0].Binding)); !strings.Contains(reason, name) {
				t.Fatalf("request %d, %+v %s: the first grant is %s, the reason is %s", i, who, what, name, reason)
			}
			continue
		}
		near += min(1, len(d.Near))
		for _, g := range d.Near {
			if len(g.Lacks) == 0 {
				t.Fatalf("request %d, %+v %s: %+v lacks nothing, and is not allowed", i, who, what, g)
			}
		}
		made := Suggest(at)
		if made == nil {
			t.Fatalf("request %d, %+v %s: nothing is suggested", i, who, what)
		}
		for _, o := range made {
			if wrong := content.IsPathSegmentName(o.GetName()); len(wrong) > 0 {
				t.Fatalf("the suggested name %q is not valid: %v", o.GetName(), wrong)
			}
		}
		src.tell(set(made...)...)
		if after, _, err := a.Authorize(t.Context(), at); after != authz.Allow || err != nil {
			t.Fatalf("request %d, %+v %s: after the suggestion got %v %v, want Allow: %+v", i, who, what, after, err, made)
		}
		suggested++
	}
	if allowed < requests/20 || suggested < requests/20 || near == 0 {
		t.Errorf("of %d requests, %d were allowed, %d not, %d of these with near grants: the test proves too little", requests, allowed, suggested, near)
	}
}

func nameInReason(o *authz.Object) string {
	if o.Namespace != "" {
		return o.Name + "/" + o.Namespace
	}
	return o.Name
}

// canByFinding reports whether WhoCan names the user of a request, or a group.
func canByFinding(t *testing.T, a *Authorizer, at *authz.Attributes) (can bool) {
	t.Helper()
	_, err := a.WhoCan(t.Context(), at, func(g authz.Grant) bool {
		name := g.Subject.Name
		if g.Subject.Kind == rbacv1.ServiceAccountKind {
			name = authz.ServiceAccountPrefix + g.Subject.Namespace + ":" + name
		}
		if g.Subject.Kind != rbacv1.GroupKind {
			can = can || name == at.User.Name
			return true
		}
		for _, group := range at.User.Groups {
			can = can || name == group
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return can
}

// TestNearestGrantsComeFirst: of the bindings that do not allow a request, those come
// first that lack least, with what they lack.
func TestNearestGrantsComeFirst(t *testing.T) {
	src := &source{}
	a := New(src)
	src.tell(set(
		aRole("shop/reader", rule("get,list", "", "pods")),
		aRole("other/deleter", rule("delete", "", "pods")),
		aRole("one", rule("delete", "", "pods", "web-0")),
		aRole("far", rule("delete", "batch", "jobs")),
		aRole("logs", rule("delete", "", "pods/log")),
		bind("shop/readers", "Role reader", "User jane"),
		bind("other/deleters", "Role deleter", "User jane"),
		bind("ones", "ClusterRole one", "Group devs"),
		bind("fars", "ClusterRole far", "User jane"),
		bind("gone", "ClusterRole nowhere", "User jane"),
		bind("shop/joes", "ClusterRole admin", "User joe"),
		aRole("admin", rule("*", "*", "*")),
		bind("loggers", "ClusterRole logs", "User jane"),
	)...)
	d, err := a.Explain(t.Context(), ask(&request.User{Name: "jane", Groups: []string{"devs"}}, "delete core/pods shop/web-1"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range d.Near {
		got = append(got, fmt.Sprintf("%s/%s of %s lacks %s, applies %v", g.Binding.Namespace, g.Binding.Name, g.Role.Name, strings.Join(g.Lacks, " and "), g.Applies))
	}
	want := []string{
		`/loggers of logs lacks resource "pods", applies true`,
		`/ones of one lacks name "web-1", applies true`,
		`shop/readers of reader lacks verb "delete", applies true`,
		`other/deleters of deleter lacks namespace "shop", applies true`,
		`shop/joes of admin lacks subject "jane", applies false`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(d.Dangling) != 1 || d.Dangling[0].Binding.Name != "gone" {
		t.Errorf("bindings to roles that do not exist: got %+v, want gone", d.Dangling)
	}
}

// TestExplanationIsBounded: an explanation has a bounded size whatever the roles are, and
// finding subjects ends when nobody wants more or the context ends.
func TestExplanationIsBounded(t *testing.T) {
	src := &source{}
	a := New(src)
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("n%d", i)
	}
	objects := []resource.Object{aRole("big", rule("get", "", "pods", names...)), aRole("small", rule("get", "", "pods", "n1", "n4999"))}
	for i := range 10000 {
		objects = append(objects, bind(fmt.Sprintf("b%d", i), "ClusterRole small", "User jane"))
	}
	for i := range maxGrants {
		objects = append(objects, bind(fmt.Sprintf("a%d", i), "ClusterRole big", "User jane"))
	}
	src.tell(set(objects...)...)
	for _, what := range []string{"get core/pods ns/n4999", "get core/pods ns/other"} {
		began := time.Now()
		d, err := a.Explain(t.Context(), ask(&request.User{Name: "jane"}, what))
		if err != nil {
			t.Fatal(err)
		}
		if n := len(d.Grants) + len(d.Near); n == 0 || n > maxGrants {
			t.Errorf("%s: got %d grants, want at most %d", what, n, maxGrants)
		}
		for _, g := range append(d.Grants, d.Near...) {
			if len(g.Rule.ResourceNames) > maxListed+1 {
				t.Errorf("%s: a rule has %d names, want at most %d", what, len(g.Rule.ResourceNames), maxListed+1)
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: took %v", what, took)
		}
	}
	found := 0
	if _, err := a.WhoCan(t.Context(), ask(nil, "get core/pods ns/n1"), func(authz.Grant) bool { found++; return found < 7 }); err != nil || found != 7 {
		t.Errorf("got %d subjects, %v, want 7", found, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.WhoCan(ctx, ask(nil, "get core/pods ns/n1"), func(authz.Grant) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestSuggestRefusesNonsense: no role is suggested that could not be written.
func TestSuggestRefusesNonsense(t *testing.T) {
	jane := &request.User{Name: "jane"}
	for _, at := range []*authz.Attributes{
		{}, {User: &request.User{}, Verb: "get", Path: "/"}, {User: jane, Path: "/"}, {User: jane, Verb: "get"}, {User: jane, Verb: "get", IsResource: true},
	} {
		if got := Suggest(at); got != nil {
			t.Errorf("%+v: got %+v, want nothing", at, got)
		}
	}
	made := Suggest(ask(jane, "create core/pods shop/web"))
	if names := made[0].(*rbacv1.Role).Rules[0].ResourceNames; names != nil {
		t.Errorf("a rule to create has names %q, with which it would allow nothing", names)
	}
}
