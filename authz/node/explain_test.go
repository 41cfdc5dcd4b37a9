package node

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
)

// describe returns the paths of an explanation as one text.
func describe(d authz.Detail) string {
	var lines []string
	for _, p := range d.Paths {
		line := "node " + p.Node
		for _, o := range p.Objects {
			line += fmt.Sprintf(" > %s %s", o.Resource, strings.TrimPrefix(o.Namespace+"/"+o.Name, "/"))
		}
		lines = append(lines, line)
	}
	if d.Missing != "" {
		lines = append(lines, "missing: "+d.Missing)
	}
	return strings.Join(append(lines, d.Notes...), "; ")
}

// TestExplanationShowsPath: the explanation of an allowed request has the path from the
// node to the object, that of another one says which connection is missing.
func TestExplanationShowsPath(t *testing.T) {
	src := &source{}
	a := New(src, Defaults())
	src.tell(false, world()...)
	for _, c := range []struct{ node, resource, namespace, name, want, who string }{
		{"n1", "secrets", "ns", "main-env", "node n1 > pods ns/p > secrets ns/main-env", "system:node:n1"},
		{"n1", "secrets", "vault", "stage", "node n1 > pods ns/p > persistentvolumeclaims ns/pvc > persistentvolumes pv > secrets vault/stage", "system:node:n1"},
		{"n1", "persistentvolumes", "", "pv", "node n1 > pods ns/p > persistentvolumeclaims ns/pvc > persistentvolumes pv", "system:node:n1"},
		{"n1", "pods", "ns", "p", "node n1 > pods ns/p", "system:node:n1"},
		{"n2", "secrets", "ns", "main-env", `node n1 > pods ns/p > secrets ns/main-env; missing: a pod on node "n2" that uses secret "ns/main-env"`, "system:node:n1"},
		{"n2", "secrets", "ns", "unused", `missing: a pod on node "n2" that uses secret "ns/unused"`, ""},
		{"n2", "pods", "ns", "p", `node n1 > pods ns/p; missing: pod "ns/p" on node "n2"`, "system:node:n1"},
		{"n2", "persistentvolumes", "", "other", `missing: a pod on node "n2" that uses the claim to which persistent volume "other" is bound`, ""},
		{"n2", "nodes", "", "n1", "", "system:node:n1"},
		{"n2", "services", "ns", "x", "", "system:nodes"},
	} {
		at := &authz.Attributes{User: &request.User{Name: "system:node:" + c.node, Groups: []string{"system:nodes"}}, Verb: "get",
			IsResource: true, Resource: c.resource, Namespace: c.namespace, Name: c.name}
		decision, _, err := a.Authorize(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		d, err := a.Explain(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(d); got != c.want {
			t.Errorf("%s get %s %s: got %q, want %q", c.node, c.resource, c.name, got, c.want)
		}
		if d.Missing != "" && decision == authz.Allow {
			t.Errorf("%s get %s %s is allowed, and %s is missing", c.node, c.resource, c.name, d.Missing)
		}
		var who []string
		if _, err := a.WhoCan(t.Context(), at, func(g authz.Grant) bool { who = append(who, g.Subject.Name); return true }); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(who, " "); got != c.who {
			t.Errorf("who can get %s %s: got %q, want %q", c.resource, c.name, got, c.who)
		}
	}
}

// TestWhoCanOfSelectors: a list of the pods of one node is allowed to that node, a list of
// all to none.
func TestWhoCanOfSelectors(t *testing.T) {
	src := &source{}
	a := New(src, Defaults())
	src.tell(false, world()...)
	for selector, want := range map[string]string{"": "", "spec.nodeName=n7": "system:node:n7"} {
		at := &authz.Attributes{Verb: "list", IsResource: true, Resource: "pods"}
		if selector != "" {
			at.Fields = fields.ParseSelectorOrDie(selector).Requirements()
		}
		got := ""
		if _, err := a.WhoCan(t.Context(), at, func(g authz.Grant) bool { got += g.Subject.Name; return true }); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Errorf("list pods with %q: got %q, want %q", selector, got, want)
		}
	}
}

// TestExplainOthers: the authorizer says that somebody is not a node.
func TestExplainOthers(t *testing.T) {
	a := New(&source{}, Defaults())
	d, err := a.Explain(t.Context(), &authz.Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/"})
	if got := describe(d); err != nil || got != "the user is not a node" {
		t.Errorf("got %q, %v", got, err)
	}
}
