package kelson

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/impersonate"
	"github.com/apikeel/kelson/request"
)

// as makes headers from "user", "group:x", "uid:x" and "extra:k=v".
func as(what ...string) http.Header {
	h := http.Header{}
	for _, w := range what {
		switch kind, value, _ := strings.Cut(w, ":"); kind {
		case "group":
			h.Add("Impersonate-Group", value)
		case "uid":
			h.Set("Impersonate-Uid", value)
		case "extra":
			k, v, _ := strings.Cut(value, "=")
			h.Add("Impersonate-Extra-"+k, v)
		default:
			h.Set("Impersonate-User", w)
		}
	}
	return h
}

// TestImpersonate lets somebody who may everything be somebody else.
func TestImpersonate(t *testing.T) {
	root := request.User{Name: "root", Groups: []string{authz.Masters}}
	for _, c := range []struct {
		header http.Header
		want   string
	}{
		{as("bob"), `bob "" [system:authenticated] map[]`},
		{as("a b"), `a b "" [system:authenticated] map[]`},
		{as("bob", "group:g", "group:h"), `bob "" [g h system:authenticated] map[]`},
		{as("bob", "group:system:authenticated"), `bob "" [system:authenticated] map[]`},
		{as("bob", "group:system:unauthenticated"), `bob "" [system:unauthenticated] map[]`},
		{as("bob", "uid:u"), `bob "u" [system:authenticated] map[]`},
		{as("bob", "extra:Scopes=a", "extra:Scopes=b", "extra:Example.com%2fkey=v"), `bob "" [system:authenticated] map[example.com/key:[v] scopes:[a b]]`},
		{as("bob", "extra:A%zz=v"), `bob "" [system:authenticated] map[a%zz:[v]]`},
		{as("system:anonymous"), `system:anonymous "" [system:unauthenticated] map[]`},
		{as("system:anonymous", "group:g"), `system:anonymous "" [g system:unauthenticated] map[]`},
		{as("system:serviceaccount:ns:sa"), `system:serviceaccount:ns:sa "" [system:serviceaccounts system:serviceaccounts:ns system:authenticated] map[]`},
		{as("system:serviceaccount:ns:sa", "group:g"), `system:serviceaccount:ns:sa "" [g system:authenticated] map[]`},
		{as("system:serviceaccount:ns"), `system:serviceaccount:ns "" [system:authenticated] map[]`},
		{as("system:serviceaccount:ns:sa:x"), `system:serviceaccount:ns:sa:x "" [system:authenticated] map[]`},
		{as("system:serviceaccount:NS:sa"), `system:serviceaccount:NS:sa "" [system:authenticated] map[]`},
		{as("system:node:n1"), `system:node:n1 "" [system:nodes system:authenticated] map[]`},
		{as("system:node:n1", "group:g"), `system:node:n1 "" [g system:authenticated] map[]`},
		{as("system:node:"), `system:node: "" [system:authenticated] map[]`},
	} {
		// How somebody impersonated before makes a difference.
		s, api := guarded(t, root, authz.AlwaysAllow{})
		if code, text := send(t, s, api, "GET", "/api/v1/pods", c.header); code != 200 {
			t.Errorf("%v: %d %s", c.header, code, text)
			continue
		}
		u := api.last.User
		if got := fmt.Sprintf("%s %q %v %v", u.Name, u.UID, u.Groups, u.Extra); got != c.want {
			t.Errorf("%v: got %s, want %s", c.header, got, c.want)
		}
		if i := api.last.Impersonator; i == nil || i.Name != "root" {
			t.Errorf("%v: the impersonator is %v", c.header, i)
		}
		for name := range api.header {
			if strings.HasPrefix(name, "Impersonate-") {
				t.Errorf("%v: %s is still there", c.header, name)
			}
		}
	}
	s, api := guarded(t, root, authz.AlwaysAllow{})
	if code, _ := send(t, s, api, "GET", "/api/v1/pods", nil); code != 200 || api.last.User.Name != "root" || api.last.Impersonator != nil {
		t.Error(code, api.last)
	}
}

func TestImpersonateNobody(t *testing.T) {
	s, api := guarded(t, request.User{Name: "root"}, authz.AlwaysAllow{})
	for _, c := range []struct {
		header http.Header
		want   string
	}{
		{as("extra:Scopes=view"), `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"scopes":[]string{"view"}}} without impersonating a user name`},
		{as("group:g"), `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name`},
		{as("uid:u"), `requested &user.DefaultInfo{Name:"", UID:"u", Groups:[]string(nil), Extra:map[string][]string(nil)} without impersonating a user name`},
		{http.Header{"Impersonate-User": {""}, "Impersonate-Group": {"g"}}, `requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name`},
	} {
		if code, text := send(t, s, api, "GET", "/api/v1/pods", c.header); code != 400 || text != c.want {
			t.Errorf("%v: %d %s", c.header, code, text)
		}
	}
}

// TestImpersonateNobodyUnconstrained has the gate ConstrainedImpersonation off.
func TestImpersonateNobodyUnconstrained(t *testing.T) {
	stage := impersonate.New(nil, nil)
	stage.OnlyUnconstrained = true
	header := http.Header{"Impersonate-Group": {"g"}, "Impersonate-Extra-Scopes": {"a"}, "Impersonate-Uid": {"u"}}
	_, err := stage.Judge(t.Context(), header, func() *authz.Attributes { return &authz.Attributes{User: &request.User{Name: "root"}} })
	const want = "requested [{Group  g    } {UserExtra  a  authentication.k8s.io/v1  scopes} {UID  u  authentication.k8s.io/v1  }] without impersonating a user"
	if err == nil || err.ErrStatus.Message != want || err.ErrStatus.Code != http.StatusBadRequest {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestMayImpersonate checks which rights are wanted, and what is said if they
// are missing.
func TestMayImpersonate(t *testing.T) {
	const authn = "authentication.k8s.io"
	may := func(verb, group, resource string, names ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: strings.Split(verb, ","), APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names}
	}
	rules := func(r ...rbacv1.PolicyRule) []rbacv1.PolicyRule { return r }
	on := func(mode string) rbacv1.PolicyRule { return may("impersonate-on:"+mode+":list", "", "configmaps") }
	cannot := func(verb, resource, group, where string) string {
		return `User "jane" cannot ` + verb + ` resource "` + resource + `" in API group "` + group + `" ` + where
	}
	const cluster = "at the cluster scope"
	list := func(mode string) string {
		return "configmaps is forbidden: " + cannot("impersonate-on:"+mode+":list", "configmaps", "", `in the namespace "ns"`)
	}
	pod := map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}, "other": {"x"}}
	for _, c := range []struct {
		name       string
		rules      []rbacv1.PolicyRule
		as         http.Header
		extra      map[string][]string
		want       string // the refusal
		groups     string
		constraint string
	}{
		{name: "no right, user", as: as("bob"), want: list("user-info")},
		{name: "no right, group", as: as("bob", "group:g"), want: list("user-info")},
		{name: "no right, service account", as: as("system:serviceaccount:other:sa"), want: list("serviceaccount")},
		{name: "no right, node", as: as("system:node:n1"), want: list("arbitrary-node")},
		{name: "no right, node with a uid", as: as("system:node:n1", "uid:u"), want: `users "system:node:n1" is forbidden: ` + cannot("impersonate", "users", "", cluster)},
		{name: "no right, service account with a group", as: as("system:serviceaccount:a:b", "group:g"), want: `serviceaccounts "b" is forbidden: ` + cannot("impersonate", "serviceaccounts", "", `in the namespace "a"`)},

		{name: "user", rules: rules(may("impersonate", "", "users", "bob")), as: as("bob")},
		{name: "another user", rules: rules(may("impersonate", "", "users", "bob")), as: as("bobby"), want: list("user-info")},
		{name: "user, not the group", rules: rules(may("impersonate", "", "users", "bob")), as: as("bob", "group:g"), want: list("user-info")},
		{name: "user and group", rules: rules(may("impersonate", "", "users", "bob"), may("impersonate", "", "groups", "g")), as: as("bob", "group:g"), groups: "[g system:authenticated]"},
		{name: "user and one of two groups", rules: rules(may("impersonate", "", "users", "bob"), may("impersonate", "", "groups", "g")), as: as("bob", "group:g", "group:system:masters"), want: list("user-info")},
		{name: "user, not the uid", rules: rules(may("impersonate", "", "users")), as: as("bob", "uid:u"), want: list("user-info")},
		{name: "user and uid", rules: rules(may("impersonate", "", "users"), may("impersonate", authn, "uids", "u")), as: as("bob", "uid:u")},
		{name: "user, not the extra", rules: rules(may("impersonate", "", "users")), as: as("bob", "extra:K=v"), want: list("user-info")},
		{name: "user and extra", rules: rules(may("impersonate", "", "users"), may("impersonate", authn, "userextras/k", "v")), as: as("bob", "extra:K=v")},
		{name: "another value of the extra", rules: rules(may("impersonate", "", "users"), may("impersonate", authn, "userextras/k", "v")), as: as("bob", "extra:K=v", "extra:K=w"), want: list("user-info")},
		{name: "another extra", rules: rules(may("impersonate", "", "users"), may("impersonate", authn, "userextras/k")), as: as("bob", "extra:Kk=v"), want: list("user-info")},
		{name: "the extra of another group", rules: rules(may("impersonate", "", "users,userextras/k")), as: as("bob", "extra:K=v"), want: list("user-info")},
		{name: "service account is no user", rules: rules(may("impersonate", "", "users")), as: as("system:serviceaccount:a:b"), want: list("serviceaccount")},
		{name: "a user that looks like one is", rules: rules(may("impersonate", "", "users")), as: as("system:serviceaccount:a:b:c")},
		{name: "service account", rules: rules(may("impersonate", "", "serviceaccounts", "b")), as: as("system:serviceaccount:a:b"), groups: "[system:serviceaccounts system:serviceaccounts:a system:authenticated]"},
		{name: "node by the right to all", rules: rules(may("impersonate", "", "users")), as: as("system:node:n1"), groups: "[system:authenticated]"},

		{name: "to list", rules: rules(on("user-info"), may("impersonate:user-info", authn, "users", "bob")), as: as("bob"), constraint: "impersonate:user-info"},
		{name: "to do something else", rules: rules(may("impersonate-on:user-info:get", "", "configmaps"), may("impersonate:user-info", authn, "users")), as: as("bob"), want: list("user-info")},
		{name: "to list, but not him", rules: rules(on("user-info")), as: as("bob"), want: `users.authentication.k8s.io "bob" is forbidden: ` + cannot("impersonate:user-info", "users", authn, cluster)},
		{name: "to list, but not the group", rules: rules(on("user-info"), may("impersonate:user-info", authn, "users")), as: as("bob", "group:g"), want: `groups.authentication.k8s.io "g" is forbidden: ` + cannot("impersonate:user-info", "groups", authn, cluster)},
		{name: "to list, not as a master", rules: rules(on("user-info"), may("impersonate:user-info", authn, "*")), as: as("bob", "group:system:masters"), want: `groups.authentication.k8s.io "system:masters" is forbidden: ` + cannot("impersonate:user-info", "groups", authn, cluster) + ": impersonating the system:masters group is not allowed"},
		{name: "to list, not as an empty group", rules: rules(on("user-info"), may("impersonate:user-info", authn, "*")), as: as("bob", "group:"), want: `groups.authentication.k8s.io is forbidden: ` + cannot("impersonate:user-info", "groups", authn, cluster) + ": impersonating the empty string group is not allowed"},
		{name: "to list, many groups", rules: rules(on("user-info"), may("impersonate:user-info", authn, "users"), may("impersonate:user-info", authn, "groups", "*")), as: as("bob", "group:a", "group:b", "group:c", "group:d"), groups: "[a b c d system:authenticated]", constraint: "impersonate:user-info"},
		{name: "to list, some groups", rules: rules(on("user-info"), may("impersonate:user-info", authn, "users"), may("impersonate:user-info", authn, "groups", "*")), as: as("bob", "group:a"), want: `groups.authentication.k8s.io "a" is forbidden: ` + cannot("impersonate:user-info", "groups", authn, cluster)},
		{name: "to list, uid", rules: rules(on("user-info"), may("impersonate:user-info", authn, "users")), as: as("bob", "uid:u"), want: `uids.authentication.k8s.io "u" is forbidden: ` + cannot("impersonate:user-info", "uids", authn, cluster)},
		{name: "to list, extra", rules: rules(on("user-info"), may("impersonate:user-info", authn, "*")), as: as("bob", "extra:K.com%2Fx=v"), constraint: "impersonate:user-info"},
		{name: "to list, bad extra", rules: rules(on("user-info"), may("impersonate:user-info", authn, "*")), as: as("bob", "extra:K="), want: `userextras.authentication.k8s.io is forbidden: ` + cannot("impersonate:user-info", "userextras", authn, cluster) + `: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "k": must be a domain-prefixed path (such as "acme.io/foo")`},
		{name: "to list, empty extra", rules: rules(on("user-info"), may("impersonate:user-info", authn, "*")), as: as("bob", "extra:K.com%2Fx="), want: `userextras.authentication.k8s.io is forbidden: ` + cannot("impersonate:user-info", "userextras", authn, cluster) + ": impersonating the empty string value in extra is not allowed"},
		{name: "to list, service account", rules: rules(on("serviceaccount"), may("impersonate:serviceaccount", authn, "serviceaccounts", "b")), as: as("system:serviceaccount:a:b"), groups: "[system:serviceaccounts system:serviceaccounts:a system:authenticated]", constraint: "impersonate:serviceaccount"},
		{name: "to list, another service account", rules: rules(on("serviceaccount"), may("impersonate:serviceaccount", authn, "serviceaccounts", "b")), as: as("system:serviceaccount:a:c"), want: `serviceaccounts.authentication.k8s.io "c" is forbidden: ` + cannot("impersonate:serviceaccount", "serviceaccounts", authn, `in the namespace "a"`)},
		{name: "to list, node", rules: rules(on("arbitrary-node"), may("impersonate:arbitrary-node", authn, "nodes", "n1")), as: as("system:node:n1"), groups: "[system:nodes system:authenticated]", constraint: "impersonate:arbitrary-node"},
		{name: "to list, another node", rules: rules(on("arbitrary-node"), may("impersonate:arbitrary-node", authn, "nodes", "n1")), as: as("system:node:n2"), want: `nodes.authentication.k8s.io "n2" is forbidden: ` + cannot("impersonate:arbitrary-node", "nodes", authn, cluster)},
		{name: "a user by the right to nodes", rules: rules(on("arbitrary-node"), may("impersonate:arbitrary-node", authn, "*")), as: as("bob"), want: list("user-info")},
		{name: "one's own node needs a service account", rules: rules(on("associated-node"), may("impersonate:associated-node", authn, "nodes", "*")), extra: pod, as: as("system:node:n1"), want: list("arbitrary-node")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, api := guarded(t, request.User{Name: "jane", Extra: c.extra}, union(granted(c.rules, nil)))
			code, text := send(t, s, api, "GET", "/api/v1/namespaces/ns/configmaps", c.as)
			if c.want != "" {
				if code != 403 || text != c.want {
					t.Errorf("got  %d %s\nwant %s", code, text, c.want)
				}
				return
			}
			if code != 200 {
				t.Fatalf("%d %s", code, text)
			}
			if c.groups == "" {
				c.groups = "[system:authenticated]"
			}
			if got := fmt.Sprint(api.last.User.Groups); got != c.groups || api.last.ImpersonationConstraint != c.constraint {
				t.Errorf("%s %q", got, api.last.ImpersonationConstraint)
			}
		})
	}
}

// union allows users other than Jane everything: what they may do once they are
// impersonated is not the question.
func union(a authz.Authorizer) authz.Authorizer {
	return authz.Func(func(ctx context.Context, at *authz.Attributes) (authz.Decision, string, error) {
		if at.User.Name != "jane" {
			return authz.Allow, "", nil
		}
		return a.Authorize(ctx, at)
	})
}

// TestAssociatedNode lets a service account be the node that its pod is on.
func TestAssociatedNode(t *testing.T) {
	const account = "system:serviceaccount:ns:agent"
	var asked []string
	allow := "impersonate-on:associated-node:list impersonate:associated-node"
	authorizer := authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		if a.User.Name != account {
			return authz.Allow, "", nil
		}
		asked = append(asked, fmt.Sprintf("%s %s %q %v", a.Verb, a.Resource, a.Name, a.User.Extra))
		if slices.Contains(strings.Fields(allow), a.Verb) {
			return authz.Allow, "", nil
		}
		return authz.NoOpinion, "no", nil
	})
	user := request.User{Name: account, Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}, "b": {"x"}}}
	s, api := guarded(t, user, authorizer)
	code, text := send(t, s, api, "GET", "/api/v1/pods", as("system:node:n1"))
	if code != 200 || fmt.Sprint(api.last.User) != "{system:node:n1  [system:nodes system:authenticated] map[]}" || api.last.ImpersonationConstraint != "impersonate:associated-node" {
		t.Fatal(code, text, api.last)
	}
	keys := "map[authentication.kubernetes.io/associated-node-keys:[authentication.kubernetes.io/node-name b]]"
	if got, want := strings.Join(asked, "; "), `impersonate-on:associated-node:list pods "" `+keys+`; impersonate:associated-node nodes "*" `+keys; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Another node is another mode.
	if code, text := send(t, s, api, "GET", "/api/v1/pods", as("system:node:n2")); code != 403 || !strings.Contains(text, "cannot impersonate-on:arbitrary-node:list") {
		t.Error(code, text)
	}
	allow = "impersonate-on:associated-node:list"
	if code, text := send(t, s, api, "GET", "/api/v1/pods", as("system:node:n1")); code != 403 ||
		text != `nodes.authentication.k8s.io "*" is forbidden: User "`+account+`" cannot impersonate:associated-node resource "nodes" in API group "authentication.k8s.io" at the cluster scope: no` {
		t.Error(code, text)
	}
}

// TestUnconstrainedImpersonation wants rights to impersonate for some purpose to count for
// nothing if the server has them off.
func TestUnconstrainedImpersonation(t *testing.T) {
	var asked []string
	may := "impersonate-on:user-info:list impersonate:user-info"
	api := &arrived{}
	authenticate := func(*http.Request) (request.User, bool, error) { return request.User{Name: "jane"}, true, nil }
	s := &Server{API: api, UnconstrainedImpersonation: true, Authenticate: authenticate, Authorizer: authz.Func(func(_ context.Context, a *authz.Attributes) (authz.Decision, string, error) {
		if a.User.Name != "jane" {
			return authz.Allow, "", nil
		}
		asked = append(asked, a.Verb)
		if slices.Contains(strings.Fields(may), a.Verb) {
			return authz.Allow, "", nil
		}
		return authz.NoOpinion, "", nil
	})}
	if err := s.PrepareRun(); err != nil {
		t.Fatal(err)
	}
	const refused = `users "bob" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope`
	if code, text := send(t, s, api, "GET", "/api/v1/pods", as("bob")); code != 403 || text != refused {
		t.Errorf("got  %d %s\nwant 403 %s", code, text, refused)
	}
	may = "impersonate"
	if code, text := send(t, s, api, "GET", "/api/v1/pods", as("bob")); code != 200 || api.last.User.Name != "bob" || api.last.ImpersonationConstraint != "" {
		t.Errorf("got %d %s as %s by %q, want 200 as bob", code, text, api.last.User.Name, api.last.ImpersonationConstraint)
	}
	if got := strings.Join(asked, " "); got != "impersonate impersonate" {
		t.Errorf("asked for %s, want only impersonate", got)
	}
}

// TestImpersonateRemembered wants the refusal in the words of the mode by which
// the user succeeded last.
func TestImpersonateRemembered(t *testing.T) {
	rules := []rbacv1.PolicyRule{{Verbs: []string{"impersonate"}, APIGroups: []string{""}, Resources: []string{"users"}, ResourceNames: []string{"bob"}}}
	s, api := guarded(t, request.User{Name: "jane"}, union(granted(rules, nil)))
	const path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	if code, text := send(t, s, api, "POST", path, as("bob")); code != 200 {
		t.Fatal(code, text)
	}
	for want, header := range map[string]http.Header{
		`groups "g" is forbidden: User "jane" cannot impersonate resource "groups" in API group "" at the cluster scope`:                                                      as("bob", "group:g"),
		`users "alice" is forbidden: User "jane" cannot impersonate resource "users" in API group "" at the cluster scope`:                                                    as("alice"),
		`userextras.authentication.k8s.io "v" is forbidden: User "jane" cannot impersonate resource "userextras/k" in API group "authentication.k8s.io" at the cluster scope`: as("bob", "extra:K=v"),
	} {
		if code, text := send(t, s, api, "POST", path, header); code != 403 || text != want {
			t.Errorf("got  %d %s\nwant %s", code, text, want)
		}
	}
}

func TestImpersonateError(t *testing.T) {
	for _, c := range []struct {
		reason string
		err    error
		want   string
	}{
		{"why", nil, ": why"}, {"", errors.New("broken"), ": broken"}, {"why", errors.New("broken"), ": broken: why"}, {"", nil, ""},
	} {
		s, api := guarded(t, request.User{Name: "jane"}, authz.Func(func(context.Context, *authz.Attributes) (authz.Decision, string, error) {
			return authz.Deny, c.reason, c.err
		}))
		want := `pods is forbidden: User "jane" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope` + c.want
		if code, text := send(t, s, api, "GET", "/api/v1/pods", as("bob")); code != 403 || text != want {
			t.Errorf("got  %d %s\nwant %s", code, text, want)
		}
	}
}
