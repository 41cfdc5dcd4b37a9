package rbac

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

func TestGuard(t *testing.T) {
	src := &source{}
	a := New(src)
	g := &Guard{Authorizer: a, Roles: a}
	const rbacGroup = rbacv1.GroupName
	src.tell(set(
		aRole("ns/owner", rule("get,list", "", "pods"), rule("*", "apps", "deployments"), rule("get", "", "secrets", "mine"), rule("get", "*", "*/status")),
		aRole("reader", rule("get", "", "pods")),
		aRole("admin", allRules()...),
		aRole("escalator", rule("escalate", rbacGroup, "roles,clusterroles")),
		aRole("escalator-of-x", rule("escalate", rbacGroup, "roles", "x")),
		aRole("binder", rule("bind", rbacGroup, "clusterroles", "admin")),
		aRole("urls", paths("get", "/a/*")),
		bind("ns/owner", "Role owner", "User jane"),
		bind("admin", "ClusterRole admin", "User root"),
		bind("escalator", "ClusterRole escalator", "User esther"),
		bind("escalator-of-x", "ClusterRole escalator-of-x", "User xavier"),
		bind("binder", "ClusterRole binder", "User bill"),
		bind("urls", "ClusterRole urls", "User url"),
		bind("lost", "ClusterRole lost", "User url"),
	)...)
	jane := request.User{Name: "jane", Groups: []string{authz.Authenticated}}
	master := request.User{Name: "m", Groups: []string{authz.Masters}}
	named := func(name string) request.User { return request.User{Name: name} }
	denied := func(user, groups, lines string) string {
		return `user "` + user + `" (groups=` + groups + `) is attempting to grant RBAC permissions not currently held:` + "\n" + lines
	}
	cluster := func(obj resource.Object) *rbacv1.ClusterRole { return obj.(*rbacv1.ClusterRole) }
	aggregating := func(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
		r := cluster(aRole(name, rules...))
		r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"x": "y"}}}}
		return r
	}
	for _, c := range []struct {
		name     string
		who      request.User
		obj, old resource.Object
		update   bool
		want     string // of the error, after what it is about
	}{
		{name: "what one has", who: jane, obj: aRole("ns/x", rule("get", "", "pods"), rule("delete", "apps", "deployments"))},
		{name: "in another namespace", who: jane, obj: aRole("ns2/x", rule("get", "", "pods")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "for the whole cluster", who: jane, obj: aRole("x", rule("get", "", "pods")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "more verbs", who: jane, obj: aRole("ns/x", rule("get,watch,delete", "", "pods")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["watch" "delete"]}`)},
		{name: "all verbs", who: jane, obj: aRole("ns/x", rule("*", "", "pods")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["*"]}`)},
		{name: "one's own secret", who: jane, obj: aRole("ns/x", rule("get", "", "secrets", "mine"))},
		{name: "another secret", who: jane, obj: aRole("ns/x", rule("get", "", "secrets", "mine", "yours")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["secrets"], ResourceNames:["yours"], Verbs:["get"]}`)},
		{name: "all secrets", who: jane, obj: aRole("ns/x", rule("get", "", "secrets")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}`)},
		{name: "a subresource of any", who: jane, obj: aRole("ns/x", rule("get", "batch", "jobs/status"))},
		{name: "the resource of the subresource", who: jane, obj: aRole("ns/x", rule("get", "batch", "jobs,jobs/scale")),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:["batch"], Resources:["jobs"], Verbs:["get"]}`+"\n"+`{APIGroups:["batch"], Resources:["jobs/scale"], Verbs:["get"]}`)},
		{name: "nothing", who: jane, obj: aRole("ns/x")},
		{name: "paths", who: named("url"), obj: aRole("x", paths("get", "/a/b", "/a/*"))},
		{name: "more paths", who: named("url"), obj: aRole("x", paths("get,post", "/a", "/a/b")),
			want: denied("url", `[]`, `{NonResourceURLs:["/a"], Verbs:["get"]}`+"\n"+`{NonResourceURLs:["/a"], Verbs:["post"]}`+"\n"+`{NonResourceURLs:["/a/b"], Verbs:["post"]}`) +
				`; resolution errors: [clusterrole.rbac.authorization.k8s.io "lost" not found]`},
		{name: "a master", who: master, obj: aRole("x", allRules()...)},
		{name: "who has everything", who: named("root"), obj: aRole("x", allRules()...)},
		{name: "who may escalate", who: named("esther"), obj: aRole("x", allRules()...)},
		{name: "who may escalate, binding", who: named("esther"), obj: bind("x", "ClusterRole admin", "User esther"),
			want: denied("esther", `[]`, `{APIGroups:["*"], Resources:["*"], Verbs:["*"]}`+"\n"+`{NonResourceURLs:["*"], Verbs:["*"]}`)},
		{name: "who may escalate x, creating it", who: named("xavier"), obj: aRole("ns/x", rule("get", "", "pods")),
			want: denied("xavier", `[]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "who may escalate x", who: named("xavier"), update: true, obj: aRole("ns/x", rule("get", "", "pods"))},
		{name: "who may escalate x, y", who: named("xavier"), update: true, obj: aRole("ns/y", rule("get", "", "pods")),
			want: denied("xavier", `[]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "aggregation", who: named("url"), obj: aggregating("x"), want: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "no more aggregation", who: named("url"), update: true, obj: aRole("x"), old: aggregating("x"),
			want: "must have cluster-admin privileges to use the aggregationRule"},
		{name: "aggregation by who has everything", who: named("root"), obj: aggregating("x")},
		{name: "aggregation by who may escalate", who: named("esther"), obj: aggregating("x")},
		{name: "binding what one has", who: jane, obj: bind("ns/x", "ClusterRole reader", "User joe")},
		{name: "binding it elsewhere", who: jane, obj: bind("ns2/x", "ClusterRole reader", "User joe"),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "binding it everywhere", who: jane, obj: bind("x", "ClusterRole reader", "User joe"),
			want: denied("jane", `["system:authenticated"]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "who may bind", who: named("bill"), obj: bind("ns/x", "ClusterRole admin", "User joe")},
		{name: "who may bind, another role", who: named("bill"), obj: bind("ns/x", "ClusterRole reader", "User joe"),
			want: denied("bill", `[]`, `{APIGroups:[""], Resources:["pods"], Verbs:["get"]}`)},
		{name: "a role that is not there", who: jane, obj: bind("ns/x", "Role nope", "User joe"),
			want: `rolebindings.rbac.authorization.k8s.io "nope" not found`},
		{name: "a cluster role that is not there", who: jane, obj: bind("x", "ClusterRole nope", "User joe"),
			want: `clusterrolebindings.rbac.authorization.k8s.io "nope" not found`},
		{name: "a master binding a role that is not there", who: master, obj: bind("x", "ClusterRole nope", "User joe")},
	} {
		t.Run(c.name, func(t *testing.T) {
			plural := pluralOf(c.obj)
			req := &request.Request{User: c.who, Info: request.Info{
				IsResource: true, Verb: request.Create, Group: rbacGroup, Version: "v1",
				Resource: plural, Namespace: c.obj.GetNamespace(), Name: c.obj.GetName(),
			}}
			if c.update {
				req.Verb = request.Update
			}
			err := g.Check(request.With(t.Context(), req), c.obj, c.old)
			got := ""
			if err != nil {
				got = strings.TrimPrefix(err.Error(), plural+"."+rbacGroup+` "`+c.obj.GetName()+`" is forbidden: `)
				if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
					t.Errorf("not forbidden: %#v", err)
				}
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func pluralOf(obj any) string {
	switch obj.(type) {
	case *rbacv1.Role:
		return "roles"
	case *rbacv1.ClusterRole:
		return "clusterroles"
	case *rbacv1.RoleBinding:
		return "rolebindings"
	}
	return "clusterrolebindings"
}
