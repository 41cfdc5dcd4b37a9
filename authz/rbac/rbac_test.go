package rbac

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// source is a Source for tests.
type source struct {
	pending atomic.Pointer[[]resource.Change]
	reset   bool
	err     error
	pulls   int
}

func (s *source) Current() bool { return s.pending.Load() == nil }

func (s *source) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (s *source) Pull(_ context.Context, apply func(bool, []resource.Change)) error {
	s.pulls++
	if s.err != nil {
		return s.err
	}
	if p := s.pending.Load(); p != nil {
		apply(s.reset, *p)
	}
	s.pending.Store(nil)
	return nil
}

func (s *source) tell(changes ...resource.Change) { s.pending.Store(&changes) }

func set(objs ...resource.Object) (changes []resource.Change) {
	for _, o := range objs {
		changes = append(changes, resource.Change{Object: o})
	}
	return changes
}

func meta(name string) metav1.ObjectMeta {
	if ns, n, ok := strings.Cut(name, "/"); ok {
		return metav1.ObjectMeta{Namespace: ns, Name: n}
	}
	return metav1.ObjectMeta{Name: name}
}

// aRole makes a role, or without a namespace in its name a cluster role.
func aRole(name string, rules ...rbacv1.PolicyRule) resource.Object {
	if m := meta(name); m.Namespace != "" {
		return &rbacv1.Role{ObjectMeta: m, Rules: rules}
	}
	return &rbacv1.ClusterRole{ObjectMeta: meta(name), Rules: rules}
}

// bind makes a binding. The role is "Role x" or "ClusterRole x", subjects are
// "User x", "Group x", "ServiceAccount ns/x" or "ServiceAccount x".
func bind(name, to string, subjects ...string) resource.Object {
	kind, role, _ := strings.Cut(to, " ")
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role}
	var list []rbacv1.Subject
	for _, s := range subjects {
		kind, name, _ := strings.Cut(s, " ")
		sub := rbacv1.Subject{Kind: kind, Name: name}
		if ns, n, ok := strings.Cut(name, "/"); ok && kind == rbacv1.ServiceAccountKind {
			sub.Namespace, sub.Name = ns, n
		}
		list = append(list, sub)
	}
	if m := meta(name); m.Namespace != "" {
		return &rbacv1.RoleBinding{ObjectMeta: m, RoleRef: ref, Subjects: list}
	}
	return &rbacv1.ClusterRoleBinding{ObjectMeta: meta(name), RoleRef: ref, Subjects: list}
}

func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: split(verbs), APIGroups: split(groups), Resources: split(resources), ResourceNames: names}
}

func paths(verbs string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: split(verbs), NonResourceURLs: paths}
}

func split(s string) []string { return strings.Split(s, ",") }

// ask makes attributes from "verb group/resource[/subresource] [namespace/][name]"
// or "verb /path"; the core group is "core".
func ask(user *request.User, question string) *authz.Attributes {
	words := strings.Split(question, " ")
	a := &authz.Attributes{User: user, Verb: words[0]}
	if strings.HasPrefix(words[1], "/") {
		a.Path = words[1]
		return a
	}
	parts := strings.SplitN(words[1], "/", 3)
	a.IsResource, a.Group, a.Resource = true, parts[0], parts[1]
	if a.Group == "core" {
		a.Group = ""
	}
	if len(parts) > 2 {
		a.Subresource = parts[2]
	}
	if len(words) > 2 {
		a.Namespace, a.Name, _ = strings.Cut(words[2], "/")
	}
	return a
}

func TestAuthorize(t *testing.T) {
	src := &source{}
	a := New(src)
	src.tell(set(
		aRole("reader", rule("get,list", "", "pods"), rule("get", "apps", "deployments/scale")),
		aRole("all", rule("*", "*", "*")),
		aRole("stars", rule("*", "*", "*/scale"), rule("get", "*", "nodes"), rule("get", "batch", "*")),
		aRole("named", rule("get,watch,delete", "", "secrets", "a", "b")),
		aRole("urls", paths("get", "/healthz", "/api/*", "/version*"), paths("*", "/all")),
		aRole("every-url", paths("*", "*")),
		aRole("ns1/writer", rule("create,update", "", "pods,configmaps")),
		aRole("ns1/reader", rule("get", "", "services")),
		aRole("ns1/urls", paths("get", "/metrics")),

		bind("readers", "ClusterRole reader", "Group readers", "User rita"),
		bind("admins", "ClusterRole all", "User root"),
		bind("stars", "ClusterRole stars", "User star"),
		bind("named", "ClusterRole named", "User ned"),
		bind("urls", "ClusterRole urls", "User url"),
		bind("every-url", "ClusterRole every-url", "User urls"),
		bind("sa", "ClusterRole reader", "ServiceAccount ns2/robot"),
		bind("sa-lost", "ClusterRole all", "ServiceAccount robot"),
		bind("odd", "Role writer", "User odd"),
		bind("gone", "ClusterRole gone", "User gone"),
		bind("wrong-kind", "Nonsense x", "User wrong"),
		bind("ns1/writers", "Role writer", "User will", "Group writers"),
		bind("ns1/local-readers", "ClusterRole reader", "User lois"),
		bind("ns1/urls", "Role urls", "User will"),
		bind("ns1/sa", "Role reader", "ServiceAccount robot"),
		bind("ns1/gone", "Role gone", "User gone"),
		bind("ns2/reader", "Role reader", "User will"),
	)...)
	const (
		yes, no = authz.Allow, authz.NoOpinion
	)
	user := func(name string, groups ...string) *request.User { return &request.User{Name: name, Groups: groups} }
	for _, c := range []struct {
		who    *request.User
		what   string
		want   authz.Decision
		reason string
	}{
		{user("rita"), "get core/pods ns1/p", yes, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to User "rita"`},
		{user("rita"), "list core/pods", yes, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to User "rita"`},
		{user("x", "y", "readers"), "list core/pods any", yes, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "readers"`},
		// The first subject of the binding is named, not the first of the user.
		{user("rita", "readers"), "get core/pods ns1/p", yes, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to Group "readers"`},
		{user("readers"), "list core/pods", no, ""},
		{user("x", "rita"), "list core/pods", no, ""},
		{user("rita"), "watch core/pods", no, ""},
		{user("rita"), "get apps/pods ns1/p", no, ""},
		{user("rita"), "get core/pod ns1/p", no, ""},
		{user("rita"), "get core/podsx ns1/p", no, ""},
		{user("rita"), "get core/pods/log ns1/p", no, ""},
		{user("rita"), "get apps/deployments/scale ns1/d", yes, `RBAC: allowed by ClusterRoleBinding "readers" of ClusterRole "reader" to User "rita"`},
		{user("rita"), "get apps/deployments ns1/d", no, ""},
		{user("rita"), "get /api", no, ""},

		{user("root"), "anything any/thing/at all", yes, `RBAC: allowed by ClusterRoleBinding "admins" of ClusterRole "all" to User "root"`},
		{user("root"), "get /healthz", no, ""},

		{user("star"), "patch apps/deployments/scale ns1/d", yes, `RBAC: allowed by ClusterRoleBinding "stars" of ClusterRole "stars" to User "star"`},
		{user("star"), "get core/scale ns1/d", no, ""},
		{user("star"), "get apps/deployments/scales ns1/d", no, ""},
		{user("star"), "get apps/deployments ns1/d", no, ""},
		{user("star"), "get any/nodes", yes, `RBAC: allowed by ClusterRoleBinding "stars" of ClusterRole "stars" to User "star"`},
		{user("star"), "get batch/jobs/status n/j", yes, `RBAC: allowed by ClusterRoleBinding "stars" of ClusterRole "stars" to User "star"`},
		{user("star"), "get batch2/jobs n/j", no, ""},

		{user("ned"), "get core/secrets ns1/a", yes, `RBAC: allowed by ClusterRoleBinding "named" of ClusterRole "named" to User "ned"`},
		{user("ned"), "get core/secrets ns1/c", no, ""},
		{user("ned"), "get core/secrets ns1/ab", no, ""},
		{user("ned"), "watch core/secrets ns1", no, ""},
		{user("ned"), "watch core/secrets ns1/b", yes, `RBAC: allowed by ClusterRoleBinding "named" of ClusterRole "named" to User "ned"`},
		{user("ned"), "list core/secrets ns1/b", no, ""},
		{user("ned"), "deletecollection core/secrets ns1", no, ""},
		{user("ned"), "get core/secrets/status ns1/a", no, ""},

		{user("url"), "get /healthz", yes, `RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to User "url"`},
		{user("url"), "post /healthz", no, ""},
		{user("url"), "get /healthz/", no, ""},
		{user("url"), "get /healthz/etcd", no, ""},
		{user("url"), "get /api", no, ""},
		{user("url"), "get /api/", yes, `RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to User "url"`},
		{user("url"), "get /api/v1", yes, `RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to User "url"`},
		{user("url"), "get /apis", no, ""},
		{user("url"), "get //api/v1", no, ""},
		{user("url"), "get /versions", yes, `RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to User "url"`},
		{user("url"), "put /all", yes, `RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to User "url"`},
		{user("url"), "get core/api", no, ""},
		{user("urls"), "get /what/ever", yes, `RBAC: allowed by ClusterRoleBinding "every-url" of ClusterRole "every-url" to User "urls"`},
		{user("urls"), "get core/pods ns1/p", no, ""},
		// Roles in namespaces give no paths.
		{user("will"), "get /metrics", no, ""},

		{user("will"), "create core/pods ns1", yes, `RBAC: allowed by RoleBinding "writers/ns1" of Role "writer" to User "will"`},
		{user("x", "writers"), "update core/configmaps ns1/c", yes, `RBAC: allowed by RoleBinding "writers/ns1" of Role "writer" to Group "writers"`},
		{user("will"), "create core/pods ns2", no, `RBAC: role.rbac.authorization.k8s.io "reader" not found`},
		{user("will"), "create core/pods", no, ""},
		{user("will"), "create core/pods ns11", no, ""},
		{user("lois"), "get core/pods ns1/p", yes, `RBAC: allowed by RoleBinding "local-readers/ns1" of ClusterRole "reader" to User "lois"`},
		{user("lois"), "get core/pods ns2/p", no, ""},
		{user("lois"), "list core/pods", no, ""},

		{user("system:serviceaccount:ns2:robot"), "list core/pods", yes, `RBAC: allowed by ClusterRoleBinding "sa" of ClusterRole "reader" to ServiceAccount "robot/ns2"`},
		{user("system:serviceaccount:ns3:robot"), "list core/pods", no, ""},
		{user("system:serviceaccount::robot"), "list core/pods", no, ""},
		{user("robot"), "list core/pods", no, ""},
		{user("system:serviceaccount:ns1:robot"), "get core/services ns1/s", yes, `RBAC: allowed by RoleBinding "sa/ns1" of Role "reader" to ServiceAccount "robot/ns1"`},
		{user("system:serviceaccount:ns2:robot"), "get core/services ns1/s", no, ""},

		// A ClusterRoleBinding to a Role binds nothing, least of all a cluster role.
		{user("odd"), "create core/pods ns1", no, `RBAC: role.rbac.authorization.k8s.io "writer" not found`},
		{user("gone"), "get core/pods ns2/p", no, `RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found`},
		{user("gone"), "get core/pods ns1/p", no, `RBAC: [clusterrole.rbac.authorization.k8s.io "gone" not found, role.rbac.authorization.k8s.io "gone" not found]`},
		{user("wrong"), "get core/pods ns1/p", no, `RBAC: unsupported role reference kind: "Nonsense"`},
		{user(""), "get core/pods ns1/p", no, ""},
		{user("nobody"), "get core/pods ns1/p", no, ""},
	} {
		got, reason, err := a.Authorize(t.Context(), ask(c.who, c.what))
		if got != c.want || reason != c.reason || err != nil {
			t.Errorf("%s %v: %s: got %v %q %v\nwant %v %q", c.who.Name, c.who.Groups, c.what, got, reason, err, c.want, c.reason)
		}
	}
	if got, _, _ := a.Authorize(t.Context(), &authz.Attributes{Verb: "get", Path: "/"}); got != no {
		t.Error("somebody who is nobody was allowed something")
	}
}

// TestChanges wants every change to hold for the very next decision.
func TestChanges(t *testing.T) {
	src := &source{}
	a := New(src)
	jane := &request.User{Name: "jane", Groups: []string{"g"}}
	check := func(what string, want authz.Decision) {
		t.Helper()
		if got, reason, err := a.Authorize(t.Context(), ask(jane, what)); got != want || err != nil {
			t.Errorf("%s: %v %q %v", what, got, reason, err)
		}
	}
	del := func(objs ...resource.Object) {
		changes := set(objs...)
		for i := range changes {
			changes[i].Deleted = true
		}
		src.tell(changes...)
	}
	binding := bind("ns/b", "Role r", "User jane")
	src.tell(set(binding)...)
	check("get core/pods ns/p", authz.NoOpinion)
	src.tell(set(aRole("ns/r", rule("get", "", "pods")))...)
	check("get core/pods ns/p", authz.Allow)
	src.tell(set(aRole("ns/r", rule("list", "", "pods")))...)
	check("get core/pods ns/p", authz.NoOpinion)
	check("list core/pods ns", authz.Allow)
	del(aRole("ns/r"))
	check("list core/pods ns", authz.NoOpinion)
	src.tell(set(aRole("ns/r", rule("list", "", "pods")))...)
	check("list core/pods ns", authz.Allow)
	src.tell(set(bind("ns/b", "Role r", "User joe", "Group h"))...)
	check("list core/pods ns", authz.NoOpinion)
	src.tell(set(bind("ns/b", "Role r", "Group g", "Group g", "User jane"))...)
	check("list core/pods ns", authz.Allow)
	del(binding)
	check("list core/pods ns", authz.NoOpinion)
	src.tell(set(bind("c", "ClusterRole cr", "Group g"), aRole("cr", rule("get", "", "nodes")))...)
	check("get core/nodes", authz.Allow)
	src.tell(set(bind("c", "ClusterRole other", "Group g"))...)
	check("get core/nodes", authz.NoOpinion)

	src.reset = true
	src.tell(set(bind("d", "ClusterRole d", "User jane"), aRole("d", paths("get", "/x")))...)
	check("get /x", authz.Allow)
	check("get core/nodes", authz.NoOpinion)
	src.reset = false
	del(bind("d", "ClusterRole d", "User jane"), aRole("d"))
	check("get /x", authz.NoOpinion)
	if n := len(a.roles) + len(a.bindings) + len(a.subjects); n != 0 {
		t.Errorf("%d things were not forgotten: %v %v %v", n, a.roles, a.bindings, a.subjects)
	}

	pulls := src.pulls
	check("get /x", authz.NoOpinion)
	if src.pulls != pulls {
		t.Error("nothing has changed, and the source was asked all the same")
	}
}

func TestSourceFails(t *testing.T) {
	src := &source{err: errors.New("the store is closed")}
	src.tell()
	a := New(src)
	jane := &request.User{Name: "jane"}
	if got, _, err := a.Authorize(t.Context(), ask(jane, "get /x")); got != authz.NoOpinion || !errors.Is(err, src.err) {
		t.Error(got, err)
	}
	if _, _, _, err := a.RulesFor(t.Context(), jane, "ns"); !errors.Is(err, src.err) {
		t.Error(err)
	}
	if _, err := a.RoleRules(t.Context(), rbacv1.RoleRef{}, "ns"); !errors.Is(err, src.err) {
		t.Error(err)
	}
}

func TestRulesFor(t *testing.T) {
	src := &source{}
	a := New(src)
	one, two, three := rule("get", "", "pods"), paths("get", "/x"), rule("*", "apps", "deployments", "web")
	src.tell(set(
		aRole("one", one), aRole("two", two), aRole("ns/three", three),
		bind("b", "ClusterRole one", "User jane", "Group g"), bind("a", "ClusterRole two", "Group g"), bind("c", "ClusterRole gone", "Group g"),
		bind("ns/a", "Role three", "User jane"), bind("other/a", "ClusterRole one", "User jane"),
	)...)
	jane := &request.User{Name: "jane", Groups: []string{"g"}}
	resources, urls, incomplete, err := a.RulesFor(t.Context(), jane, "ns")
	if got, want := fmt.Sprint(resources, urls, incomplete, err),
		`[{[get] [] [pods] []} {[*] [apps] [deployments] [web]}] [{[get] [/x]}] false clusterrole.rbac.authorization.k8s.io "gone" not found`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if rules, _ := a.PolicyRules(t.Context(), jane, ""); len(rules) != 2 {
		t.Error(rules)
	}
}

// TestAgainstScan compares decisions with those of the obvious way to make
// them: look at all bindings, and at all rules of each.
func TestAgainstScan(t *testing.T) {
	r := randomtest.From(t, 7)
	g := random{r}
	src := &source{}
	a := New(src)
	all := map[string]resource.Object{}
	for step := range 3000 {
		ns := g.pick("", "n1/", "n2/")
		var obj resource.Object
		if r.IntN(2) == 0 {
			var rules []rbacv1.PolicyRule
			for range r.IntN(3) {
				rules = append(rules, g.rule())
			}
			obj = aRole(ns+g.pick("r1", "r2", "r3"), rules...)
		} else {
			obj = bind(ns+g.pick("b1", "b2", "b3", "b4"), g.pick("Role ", "ClusterRole ")+g.pick("r1", "r2", "r3"),
				g.some("User u1", "User u2", "Group g1", "Group g2", "ServiceAccount n1/s", "ServiceAccount s")...)
		}
		change := resource.Change{Object: obj, Deleted: r.IntN(4) == 0}
		id := fmt.Sprintf("%T %s/%s", obj, obj.GetNamespace(), obj.GetName())
		if change.Deleted {
			delete(all, id)
		} else {
			all[id] = obj
		}
		src.tell(change)
		for range 10 {
			who := &request.User{Name: g.pick("u1", "u2", "system:serviceaccount:n1:s", "system:serviceaccount:n2:s"), Groups: g.some("g1", "g2", "g3")}
			what := g.pick("get", "list", "create", "*") + " " + g.pick("/a", "/a/b", "/a/c", "/abc", "/", "core/pods", "core/pods/log", "apps/nodes/log", "apps/nodes", "core/pods/x")
			if !strings.Contains(what, " /") {
				what += " " + g.pick("", "n1", "n2", "n1/x", "n2/y", "/x")
			}
			at := ask(who, what)
			got, reason, err := a.Authorize(t.Context(), at)
			if want := scan(all, at); (got == authz.Allow) != want || err != nil {
				t.Fatalf("step %d: %+v %s: got %v %q %v", step, who, what, got, reason, err)
			}
		}
	}
}

func scan(all map[string]resource.Object, a *authz.Attributes) bool {
	for _, obj := range all {
		var subjects []rbacv1.Subject
		var ref rbacv1.RoleRef
		switch b := obj.(type) {
		case *rbacv1.RoleBinding:
			subjects, ref = b.Subjects, b.RoleRef
		case *rbacv1.ClusterRoleBinding:
			subjects, ref = b.Subjects, b.RoleRef
		default:
			continue
		}
		ns := obj.GetNamespace()
		if ns != "" && ns != a.Namespace || !slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			switch s.Kind {
			case "User":
				return s.Name == a.User.Name
			case "Group":
				return slices.Contains(a.User.Groups, s.Name)
			}
			home := s.Namespace
			if home == "" {
				home = ns
			}
			return home != "" && a.User.Name == "system:serviceaccount:"+home+":"+s.Name
		}) {
			continue
		}
		var rules []rbacv1.PolicyRule
		if r, ok := all["*v1.Role "+ns+"/"+ref.Name].(*rbacv1.Role); ok && ref.Kind == "Role" && ns != "" {
			rules = r.Rules
		}
		if r, ok := all["*v1.ClusterRole /"+ref.Name].(*rbacv1.ClusterRole); ok && ref.Kind == "ClusterRole" {
			rules = r.Rules
		}
		if slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return fits(&r, a) }) {
			return true
		}
	}
	return false
}

func fits(r *rbacv1.PolicyRule, a *authz.Attributes) bool {
	has := func(list []string, s string) bool { return slices.Contains(list, s) || slices.Contains(list, "*") }
	if !has(r.Verbs, a.Verb) {
		return false
	}
	if !a.IsResource {
		return slices.ContainsFunc(r.NonResourceURLs, func(u string) bool {
			return u == a.Path || strings.HasSuffix(u, "*") && strings.HasPrefix(a.Path, strings.TrimRight(u, "*"))
		})
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return has(r.APIGroups, a.Group) &&
		(has(r.Resources, resource) || a.Subresource != "" && slices.Contains(r.Resources, "*/"+a.Subresource)) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name))
}

// A right that another server has granted counts at once, though its event has not come
// yet: before a request is not allowed, the store is asked.
func TestGrantOfAnotherServerCounts(t *testing.T) {
	src := &source{}
	a := New(src)
	src.tell(set(aRole("reader", rule("get", "", "pods")))...)
	jane := &request.User{Name: "jane"}
	asked := 0
	granted := false
	a.Newest = func(context.Context) error {
		asked++
		if granted {
			src.tell(set(bind("b", "ClusterRole reader", "User jane"))...)
			granted = false
		}
		return nil
	}
	at := ask(jane, "get core/pods default/p")
	for i, want := range []authz.Decision{authz.NoOpinion, authz.Allow, authz.Allow} {
		granted = i == 1
		if got, reason, err := a.Authorize(t.Context(), at); got != want || err != nil {
			t.Errorf("decision %d: got %v %q %v, want %v", i, got, reason, err, want)
		}
	}
	if asked != 2 {
		t.Errorf("the store was asked %d times, want twice: a request that is allowed needs no answer", asked)
	}
	a.Newest = func(context.Context) error { return errors.New("unreachable") }
	if got, _, err := a.Authorize(t.Context(), ask(jane, "delete core/pods default/p")); got != authz.NoOpinion || err != nil {
		t.Errorf("without the store: got %v %v, want no opinion", got, err)
	}
}

// TestManyBindingsToOneRole bounds what the first decision about a user costs who has
// 10,000 bindings to a role with 5,000 names: without care it looks at 50,000,000 of them,
// which takes longer than the request has.
func TestManyBindingsToOneRole(t *testing.T) {
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("name-%d", i)
	}
	objs := []resource.Object{aRole("r", rule("get,list", "", "secrets", names...))}
	for i := range 10000 {
		objs = append(objs, bind(fmt.Sprintf("b-%05d", i), "ClusterRole r", "User u"))
	}
	src := &source{}
	src.tell(set(objs...)...)
	a := New(src)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	decided := make(chan string, 1)
	go func() {
		_, reason, _ := a.Authorize(ctx, ask(&request.User{Name: "u"}, "get core/secrets n/name-4999"))
		decided <- reason
	}()
	select {
	case reason := <-decided:
		if !strings.Contains(reason, `"b-00000"`) {
			t.Errorf("reason %q, want the first binding, b-00000", reason)
		}
	case <-ctx.Done():
		t.Error("no decision within 5 s")
	}
}
