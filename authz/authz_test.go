package authz

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
)

func says(d Decision, reason string, err error) Authorizer {
	return Func(func(context.Context, *Attributes) (Decision, string, error) { return d, reason, err })
}

func TestUnion(t *testing.T) {
	broken, worse := errors.New("broken"), errors.New("worse")
	for _, c := range []struct {
		name     string
		of       []Authorizer
		decision Decision
		reason   string
		err      string
	}{
		{name: "nobody", decision: NoOpinion},
		{name: "first allows", of: []Authorizer{says(Allow, "yes", nil), says(Deny, "no", nil)}, decision: Allow, reason: "yes"},
		{name: "first denies", of: []Authorizer{says(Deny, "no", nil), says(Allow, "yes", nil)}, decision: Deny, reason: "no"},
		{name: "second allows in spite of the first's error", of: []Authorizer{says(NoOpinion, "hm", broken), says(Allow, "", nil)}, decision: Allow},
		{name: "denies with an error", of: []Authorizer{says(Deny, "no", broken)}, decision: Deny, reason: "no", err: "broken"},
		{name: "nobody has an opinion", of: []Authorizer{says(NoOpinion, "", nil), says(NoOpinion, "x", nil), says(NoOpinion, "y", nil)},
			decision: NoOpinion, reason: "b: x\nc: y"},
		{name: "errors are joined", of: []Authorizer{says(NoOpinion, "", broken), says(NoOpinion, "", worse)}, decision: NoOpinion, err: "[broken, worse]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var named []Named
			for i, a := range c.of {
				named = append(named, Named{Name: string(rune('a' + i)), Authorizer: a})
			}
			u, err := NewUnion(named...)
			if err != nil {
				t.Fatal(err)
			}
			decision, reason, err := u.Authorize(t.Context(), &Attributes{})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if decision != c.decision || reason != c.reason || text != c.err {
				t.Errorf("got %v, %q, %q", decision, reason, text)
			}
		})
	}
}

func TestUnionNames(t *testing.T) {
	for name, named := range map[string][]Named{
		"none": {{Name: "", Authorizer: AlwaysAllow{}}},
		"same": {{Name: "a", Authorizer: AlwaysAllow{}}, {Name: "a", Authorizer: AlwaysDeny{}}},
	} {
		if _, err := NewUnion(named...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestUnionRules(t *testing.T) {
	u := Union{{Name: "a", Authorizer: AlwaysAllow{}}, {Name: "b", Authorizer: says(Allow, "", nil)}, {Name: "c", Authorizer: AlwaysDeny{}}}
	resources, paths, incomplete, err := u.RulesFor(t.Context(), &request.User{}, "ns")
	if len(resources) != 1 || len(paths) != 1 || incomplete || err != nil {
		t.Error(resources, paths, incomplete, err)
	}
}

func TestBuiltinAuthorizers(t *testing.T) {
	paths, err := NewPaths("/healthz", "/livez/*", "/", "/meta*")
	if err != nil {
		t.Fatal(err)
	}
	masters := PrivilegedGroups{Masters}
	for _, c := range []struct {
		name string
		by   Authorizer
		of   Attributes
		want Decision
	}{
		{"all allowed", AlwaysAllow{}, Attributes{}, Allow},
		{"nothing allowed", AlwaysDeny{}, Attributes{}, NoOpinion},
		{"a master", masters, Attributes{User: &request.User{Groups: []string{"g", Masters}}}, Allow},
		{"a user called like the group", masters, Attributes{User: &request.User{Name: Masters}}, NoOpinion},
		{"a group that begins like it", masters, Attributes{User: &request.User{Groups: []string{Masters + "2"}}}, NoOpinion},
		{"nobody", masters, Attributes{}, NoOpinion},
		{"path", paths, Attributes{Path: "/healthz"}, Allow},
		{"path below one without a star", paths, Attributes{Path: "/healthz/etcd"}, NoOpinion},
		{"path that begins like one", paths, Attributes{Path: "/healthz2"}, NoOpinion},
		{"path below one with a star", paths, Attributes{Path: "/livez/etcd"}, Allow},
		{"path above one with a star", paths, Attributes{Path: "/livez"}, NoOpinion},
		{"path with a star in the middle of a word", paths, Attributes{Path: "/metadata"}, Allow},
		{"the root", paths, Attributes{Path: "/"}, Allow},
		{"a resource", paths, Attributes{Path: "/healthz", IsResource: true}, NoOpinion},
		{"another path", paths, Attributes{Path: "/api"}, NoOpinion},
	} {
		if got, _, _ := c.by.Authorize(t.Context(), &c.of); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if _, err := NewPaths("/a*b"); err == nil || err.Error() != `only trailing * allowed in "a*b"` {
		t.Error(err)
	}
}

func TestForbidden(t *testing.T) {
	jane := &request.User{Name: "jane"}
	for _, c := range []struct {
		of     Attributes
		reason string
		want   string
	}{
		{Attributes{User: jane, Verb: "get", IsResource: true, Resource: "pods", Namespace: "y", Name: "p"}, "",
			`pods "p" is forbidden: User "jane" cannot get resource "pods" in API group "" in the namespace "y"`},
		{Attributes{User: jane, Verb: "list", IsResource: true, Group: "apps", Resource: "deployments", Subresource: "scale"}, "why",
			`deployments.apps is forbidden: User "jane" cannot list resource "deployments/scale" in API group "apps" at the cluster scope: why`},
		{Attributes{User: jane, Verb: "get", Path: "/metrics"}, "", `forbidden: User "jane" cannot get path "/metrics"`},
		{Attributes{User: &request.User{Name: "<b>&"}, Verb: "get", Path: "/"}, "a<b", `forbidden: User "&lt;b&gt;&amp;" cannot get path "/": a<b`},
		{Attributes{Verb: "get", Path: "/"}, "", `forbidden: User "" cannot get path "/"`},
	} {
		if got := Forbidden(&c.of, c.reason).Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	a := &Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/x"}
	for _, c := range []struct {
		by   Authorizer
		want string
	}{
		{says(Allow, "", errors.New("broken")), ""},
		{says(NoOpinion, "why", nil), `forbidden: User "jane" cannot get path "/x": why`},
		{says(Deny, "", nil), `forbidden: User "jane" cannot get path "/x"`},
		{says(NoOpinion, "", errors.New("broken")), "Internal error occurred: broken"},
	} {
		got := ""
		if err := Check(t.Context(), c.by, a); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func abac(t *testing.T, lines ...string) ABAC {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	policies, err := NewABAC(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return policies
}

const v1beta1 = `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":`

func TestABAC(t *testing.T) {
	policies := abac(t,
		"# a comment", "", "  ",
		`{"user":"old","readonly":true,"resource":"events"}`,
		`{"user":"admin"}`,
		`{"group":"viewers","namespace":"ns1"}`,
		v1beta1+`{"user":"alice","namespace":"ns2","resource":"pods","apiGroup":""}}`,
		v1beta1+`{"user":"bob","group":"ops","namespace":"*","resource":"*","apiGroup":"*"}}`,
		v1beta1+`{"user":"carl","nonResourcePath":"/meta*"}}`,
		v1beta1+`{"group":"*","nonResourcePath":"/version","readonly":true}}`,
		v1beta1+`{"namespace":"*","resource":"*","apiGroup":"*"}}`,
	)
	user := func(name string, groups ...string) *request.User { return &request.User{Name: name, Groups: groups} }
	resource := func(u *request.User, verb, ns, group, name string) Attributes {
		return Attributes{User: u, Verb: verb, IsResource: true, Namespace: ns, Group: group, Resource: name}
	}
	path := func(u *request.User, verb, p string) Attributes { return Attributes{User: u, Verb: verb, Path: p} }
	for _, c := range []struct {
		name string
		of   Attributes
		want Decision
	}{
		{"v0 readonly", resource(user("old"), "watch", "x", "any", "events"), Allow},
		{"v0 readonly, write", resource(user("old"), "create", "x", "any", "events"), NoOpinion},
		{"v0 other resource", resource(user("old"), "get", "x", "", "pods"), NoOpinion},
		{"v0 resource, path", path(user("old"), "get", "/version"), NoOpinion},
		{"v0 without namespace and resource, path", path(user("admin"), "post", "/any"), Allow},
		{"v0 without namespace and resource", resource(user("admin"), "delete", "any", "any", "any"), Allow},
		{"v0 group", resource(user("x", "viewers"), "delete", "ns1", "", "pods"), Allow},
		{"v0 group, other namespace", resource(user("x", "viewers"), "get", "ns11", "", "pods"), NoOpinion},
		{"v0 namespace, cluster scope", resource(user("x", "viewers"), "list", "", "", "pods"), NoOpinion},
		{"exact", resource(user("alice"), "delete", "ns2", "", "pods"), Allow},
		{"other group", resource(user("alice"), "get", "ns2", "apps", "pods"), NoOpinion},
		{"other user", resource(user("alice2"), "get", "ns2", "", "pods"), NoOpinion},
		{"user and group", resource(user("bob", "ops"), "get", "x", "y", "z"), Allow},
		{"user without group", resource(user("bob"), "get", "x", "y", "z"), NoOpinion},
		{"group without user", resource(user("x", "ops"), "get", "x", "y", "z"), NoOpinion},
		{"path prefix", path(user("carl"), "get", "/metadata"), Allow},
		{"path, resource", resource(user("carl"), "get", "", "", "metadata"), NoOpinion},
		{"star is all who are authenticated", path(user("x", Authenticated), "get", "/version"), Allow},
		{"star is nobody else", path(user("x", Unauthenticated), "get", "/version"), NoOpinion},
		{"star, below the path", path(user("x", Authenticated), "get", "/version/"), NoOpinion},
		{"no subject is nobody", resource(user("x", Authenticated), "get", "a", "b", "c"), NoOpinion},
		{"no user", resource(nil, "get", "a", "b", "c"), NoOpinion},
	} {
		got, reason, err := policies.Authorize(t.Context(), &c.of)
		if got != c.want || err != nil || (reason == "") != (got == Allow) {
			t.Errorf("%s: %v %q %v", c.name, got, reason, err)
		}
	}
	resources, paths, _, _ := policies.RulesFor(t.Context(), user("alice", Authenticated), "ns2")
	wantResources := []ResourceRule{{Verbs: []string{"*"}, Groups: []string{""}, Resources: []string{"pods"}}}
	if !reflect.DeepEqual(resources, wantResources) || paths != nil {
		t.Error(resources, paths)
	}
}

func TestABACErrors(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":         `user: x`,
		"wrong type":      `{"user":1}`,
		"unknown kind":    `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Nope"}`,
		"unknown version": `{"apiVersion":"v7","kind":"Policy"}`,
	} {
		file := filepath.Join(t.TempDir(), "policy")
		if err := os.WriteFile(file, []byte("{\"user\":\"x\"}\n"+line), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := NewABAC(file, nil); err == nil || !strings.HasPrefix(err.Error(), "error reading policy file "+file+", line 2: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewABAC(filepath.Join(t.TempDir(), "nope"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add([]byte(`{"user":"x"}`), "x")
	f.Add([]byte(v1beta1+`{"group":"*","nonResourcePath":"/version"}}`), "y")
	f.Fuzz(func(t *testing.T, line []byte, user string) {
		p, _, err := parsePolicy(line)
		if err != nil {
			return
		}
		// Whoever is not authenticated gets nothing unless they are named.
		at := &Attributes{User: &request.User{Name: user, Groups: []string{Unauthenticated}}, Verb: "get", Path: "/x"}
		d, _, _ := ABAC{p}.Authorize(t.Context(), at)
		if d == Allow && p.User != user && p.Group != Unauthenticated {
			t.Errorf("%s allows %q something", line, user)
		}
	})
}
