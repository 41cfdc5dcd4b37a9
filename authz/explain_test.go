package authz

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apikeel/kelson/request"
)

// counter counts decisions.
type counter int

func (c *counter) Observe(float64) { *c++ }

// TestExplainAgreesWithAuthorize: a union explains with the decision, reason and error of
// Authorize, says who was not asked any more, and counts nothing.
func TestExplainAgreesWithAuthorize(t *testing.T) {
	says := func(d Decision, reason string, err error) Authorizer {
		return Func(func(context.Context, *Attributes) (Decision, string, error) { return d, reason, err })
	}
	failed := errors.New("broken")
	all := map[string]Authorizer{
		"silent": says(NoOpinion, "", nil), "unsure": says(NoOpinion, "I do not know", nil), "broken": says(NoOpinion, "", failed),
		"yes": says(Allow, "why not", nil), "no": says(Deny, "never", nil), "masters": PrivilegedGroups{Masters},
	}
	for _, order := range []string{"silent", "silent unsure", "broken unsure", "unsure yes no", "no yes", "masters yes", "broken yes", "masters silent"} {
		var counted counter
		var named []Named
		for _, name := range strings.Fields(order) {
			named = append(named, Named{Name: name, Authorizer: all[name], Allowed: &counted, Denied: &counted})
		}
		u, err := NewUnion(named...)
		if err != nil {
			t.Fatal(err)
		}
		a := &Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/"}
		e := u.Explain(t.Context(), a)
		if counted != 0 {
			t.Errorf("%s: an explanation was counted as a decision", order)
		}
		decision, reason, err := u.Authorize(t.Context(), a)
		if got, want := fmt.Sprint(e.Decision, e.Reason, e.Err), fmt.Sprint(decision, reason, err); got != want {
			t.Errorf("%s: explained as %q, decided as %q", order, got, want)
		}
		if len(e.Opinions) != len(u) {
			t.Fatalf("%s: got %d opinions, want %d", order, len(e.Opinions), len(u))
		}
		decided := false
		for i, o := range e.Opinions {
			if o.Name != u[i].Name || o.Asked == decided {
				t.Errorf("%s: opinion %d is %+v", order, i, o)
			}
			decided = decided || o.Decision != NoOpinion
		}
	}
}

// TestABACExplains: the policy that allows a request is shown, or what the policies of the
// user lack; WhoCan names the subjects of all that allow it.
func TestABACExplains(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy")
	line := func(spec string) string {
		return `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{` + spec + "}}\n"
	}
	policies := line(`"user":"jane","namespace":"shop","resource":"pods","readonly":true`) + line(`"group":"devs","namespace":"*","resource":"*","apiGroup":"*"`) +
		line(`"user":"jane","nonResourcePath":"/version"`)
	if err := os.WriteFile(file, []byte(policies), 0o600); err != nil {
		t.Fatal(err)
	}
	abac, err := NewABAC(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	pods := func(verb string, groups ...string) *Attributes {
		return &Attributes{User: &request.User{Name: "jane", Groups: groups}, Verb: verb, IsResource: true, Resource: "pods", Namespace: "shop"}
	}
	for _, c := range []struct {
		a    *Attributes
		want string
	}{
		{pods("get"), `allowed by {"user":"jane","group":"","readonly":true,"apiGroup":"","resource":"pods","namespace":"shop","nonResourcePath":""}`},
		{pods("delete"), `lacks [verb "delete"]`},
		{pods("delete", "devs"), `allowed by {"user":"","group":"devs","readonly":false,"apiGroup":"*","resource":"*","namespace":"*","nonResourcePath":""}`},
		{&Attributes{User: &request.User{Name: "jane"}, Verb: "get", Path: "/metrics"}, `lacks [path "/metrics"]`},
	} {
		d, err := abac.Explain(t.Context(), c.a)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(d.Grants) > 0 {
			got = "allowed by " + d.Grants[0].Policy
		} else if len(d.Near) > 0 {
			got = fmt.Sprintf("lacks %v", d.Near[0].Lacks)
		}
		if got != c.want {
			t.Errorf("%+v: got %s, want %s", c.a, got, c.want)
		}
		decision, _, _ := abac.Authorize(t.Context(), c.a)
		if (decision == Allow) != (len(d.Grants) > 0) {
			t.Errorf("%+v: decided %v, explained as %+v", c.a, decision, d)
		}
	}
	var who []string
	if _, err := abac.WhoCan(t.Context(), pods("get"), func(g Grant) bool { who = append(who, g.Subject.Kind+" "+g.Subject.Name); return true }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(who, ", "); got != "User jane, Group devs" {
		t.Errorf("who can get pods: got %s, want User jane, Group devs", got)
	}
}
