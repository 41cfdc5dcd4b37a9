package authorization

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// asked is an authorizer that remembers what it was asked. It allows Jane to
// get, denies her to delete, and fails at what breaks.
type asked struct{ last *authz.Attributes }

func (a *asked) Authorize(_ context.Context, at *authz.Attributes) (authz.Decision, string, error) {
	a.last = at
	switch {
	case at.Verb == "break":
		return authz.NoOpinion, "", errors.New("broken")
	case at.User.Name == "jane" && at.Verb == "get":
		return authz.Allow, "because", nil
	case at.User.Name == "jane" && at.Verb == "delete":
		return authz.Deny, "never", nil
	}
	return authz.NoOpinion, "", nil
}

func (a *asked) RulesFor(_ context.Context, user *request.User, namespace string) ([]authz.ResourceRule, []authz.PathRule, bool, error) {
	if user.Name == "nobody" {
		return nil, nil, true, errors.New("cannot tell")
	}
	return []authz.ResourceRule{{Verbs: []string{"get"}, Groups: []string{""}, Resources: []string{"pods"}, Names: []string{namespace}}},
		[]authz.PathRule{{Verbs: []string{"get"}, Paths: []string{"/x"}}}, false, nil
}

// create sends a review and returns the status of the answer, or the error.
func create(t *testing.T, g resource.Group, user, plural, body string) string {
	t.Helper()
	for _, d := range g.Resources {
		if d.Resource != plural {
			continue
		}
		obj := d.Versions[0].New()
		if err := json.Unmarshal([]byte(body), obj); err != nil {
			t.Fatal(err)
		}
		req := &request.Request{User: request.User{Name: user}, Info: request.Info{Namespace: obj.GetNamespace()}}
		answer, err := d.Answer(request.With(t.Context(), req), obj)
		if err != nil {
			if plural != "selfsubjectrulesreviews" && !apierrors.IsInvalid(err) {
				t.Errorf("%v is not about an invalid object", err)
			}
			return strings.TrimPrefix(err.Error(), `.authorization.k8s.io "" is invalid: `)
		}
		var status struct{ Status json.RawMessage }
		text, _ := json.Marshal(answer)
		_ = json.Unmarshal(text, &status)
		return string(status.Status)
	}
	t.Fatal(plural)
	return ""
}

func TestReviews(t *testing.T) {
	const (
		self, subject, local = "selfsubjectaccessreviews", "subjectaccessreviews", "localsubjectaccessreviews"
		exactly              = `: exactly one of nonResourceAttributes or resourceAttributes must be specified`
	)
	a := &asked{}
	g := Group(Config{Authorizer: a})
	for _, c := range []struct{ plural, body, want string }{
		{self, `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`, `{"allowed":true,"reason":"because"}`},
		{self, `{"spec":{"nonResourceAttributes":{"verb":"get","path":"/x"}}}`, `{"allowed":true,"reason":"because"}`},
		{self, `{"spec":{"nonResourceAttributes":{"verb":"delete","path":"/x"}}}`, `{"allowed":false,"denied":true,"reason":"never"}`},
		{self, `{"spec":{"nonResourceAttributes":{"verb":"break","path":"/x"}}}`, `{"allowed":false,"evaluationError":"broken"}`},
		{self, `{"spec":{}}`, `spec: Invalid value: null` + exactly},
		{self, `{"spec":{"resourceAttributes":{},"nonResourceAttributes":{"path":"/","verb":"get"}}}`, `spec: Invalid value: {"Path":"/","Verb":"get"}` + exactly},
		{self, `{"metadata":{"name":"x","managedFields":[{"manager":"m"}]},"spec":{"resourceAttributes":{}}}`, `metadata: Invalid value: {"name":"x","managedFields":[{"manager":"m"}]}: must be empty`},
		{self, `{"metadata":{"managedFields":[{"manager":"m"}]},"spec":{"resourceAttributes":{}}}`, `{"allowed":false}`},
		{self, `{"spec":{"resourceAttributes":{"fieldSelector":{}}}}`, `spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required`},
		{self, `{"spec":{"resourceAttributes":{"labelSelector":{"rawSelector":"a=b","requirements":[{"key":"a","operator":"Exists"}]}}}}`, `spec.resourceAttributes.labelSelector.rawSelector: Invalid value: "a=b": may not specified at the same time as requirements`},
		{self, `{"spec":{"resourceAttributes":{"fieldSelector":{"requirements":[{"key":"","operator":"In","values":[]}]}}}}`, `[spec.resourceAttributes.fieldSelector.requirements[0].key: Required value: must be specified, spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when ` + "`operator`" + ` is 'In' or 'NotIn']`},
		{self, `{"spec":{"resourceAttributes":{"fieldSelector":{"rawSelector":"a="},"labelSelector":{"rawSelector":"!!"}}}}`, `{"allowed":false,"evaluationError":"spec.resourceAttributes.labelSelector ignored due to parse error"}`},
		{self, `{"spec":{"resourceAttributes":{"fieldSelector":{"requirements":[{"key":"a","operator":"In","values":["b"]},{"key":"a","operator":"Exists"}]}}}}`, `{"allowed":false,"evaluationError":"spec.resourceAttributes.fieldSelector partially ignored due to parse error"}`},
		{self, `{"spec":{"resourceAttributes":{"verb":"break","fieldSelector":{"requirements":[{"key":"a","operator":"Bogus"}]},"labelSelector":{"requirements":[{"key":"a","operator":"Bogus"}]}}}}`, `{"allowed":false,"evaluationError":"broken; spec.resourceAttributes.fieldSelector ignored due to parse error; spec.resourceAttributes.labelSelector ignored due to parse error"}`},

		{subject, `{"spec":{"user":"jane","resourceAttributes":{"verb":"get"}}}`, `{"allowed":true,"reason":"because"}`},
		{subject, `{"spec":{"groups":["jane"],"resourceAttributes":{"verb":"get"}}}`, `{"allowed":false}`},
		{subject, `{"spec":{"resourceAttributes":{"verb":"get"}}}`, `spec.user: Invalid value: "": at least one of user or group must be specified`},
		{subject, `{"spec":{}}`, `[spec: Invalid value: null` + exactly + `, spec.user: Invalid value: "": at least one of user or group must be specified]`},
		{subject, `{"metadata":{"namespace":"x"},"spec":{"user":"jane","resourceAttributes":{}}}`, `metadata: Invalid value: {"namespace":"x"}: must be empty`},

		{local, `{"metadata":{"namespace":"ns"},"spec":{"user":"jane","resourceAttributes":{"verb":"get","namespace":"ns"}}}`, `{"allowed":true,"reason":"because"}`},
		{local, `{"metadata":{"namespace":"ns"},"spec":{"user":"jane","resourceAttributes":{"verb":"get","namespace":"other"}}}`, `spec.resourceAttributes.namespace: Invalid value: "other": must match metadata.namespace`},
		{local, `{"metadata":{"namespace":"ns"},"spec":{"user":"jane","resourceAttributes":{"verb":"get"}}}`, `spec.resourceAttributes.namespace: Invalid value: "": must match metadata.namespace`},
		{local, `{"metadata":{"namespace":"ns"},"spec":{"user":"jane","nonResourceAttributes":{"verb":"get","path":"/x"}}}`, `spec.nonResourceAttributes: Invalid value: {"Path":"/x","Verb":"get"}: disallowed on this kind of request`},
		{local, `{"metadata":{"namespace":"ns","name":"n"},"spec":{"user":"jane","resourceAttributes":{"namespace":"ns"}}}`, `metadata: Invalid value: {"name":"n","namespace":"ns"}: must be empty except for namespace`},
	} {
		if got := create(t, g, "jane", c.plural, c.body); got != c.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", c.plural, c.body, got, c.want)
		}
	}
}

func TestAttributes(t *testing.T) {
	a := &asked{}
	g := Group(Config{Authorizer: a})
	for body, want := range map[string]string{
		`{"user":"u","uid":"id","groups":["g"],"extra":{"k":["v"]},"resourceAttributes":{"namespace":"ns","verb":"v","group":"gr","version":"v1","resource":"r","subresource":"s","name":"n"}}`:              `{u id [g] map[k:[v]]} v true gr v1 ns r s n "" [] []`,
		`{"user":"u","resourceAttributes":{"fieldSelector":{"rawSelector":"a=b,c!=d"},"labelSelector":{"rawSelector":"x"}}}`:                                                                                 `{u  [] map[]}  true  *     "" [{= a b} {!= c d}] [x]`,
		`{"user":"u","resourceAttributes":{"fieldSelector":{"requirements":[{"key":"a","operator":"NotIn","values":["b"]}]},"labelSelector":{"requirements":[{"key":"x","operator":"In","values":["y"]}]}}}`: `{u  [] map[]}  true  *     "" [{!= a b}] [x in (y)]`,
		`{"user":"u","nonResourceAttributes":{"path":"/p","verb":"get"}}`:                                                                                                                                    `{u  [] map[]} get false       "/p" [] []`,
	} {
		create(t, g, "jane", "subjectaccessreviews", `{"spec":`+body+`}`)
		at := a.last
		var labels []string
		for _, r := range at.Labels {
			labels = append(labels, r.String())
		}
		got := fmt.Sprintf("%v %s %v %s %s %s %s %s %s %q %v %v", *at.User, at.Verb, at.IsResource, at.Group, at.Version, at.Namespace, at.Resource, at.Subresource, at.Name, at.Path, at.Fields, labels)
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, got, want)
		}
	}
}

func TestRules(t *testing.T) {
	g := Group(Config{Authorizer: &asked{}})
	const plural = "selfsubjectrulesreviews"
	for _, c := range []struct{ user, body, want string }{
		{"jane", `{"spec":{"namespace":"ns"}}`, `{"resourceRules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"],"resourceNames":["ns"]}],"nonResourceRules":[{"verbs":["get"],"nonResourceURLs":["/x"]}],"incomplete":false}`},
		{"nobody", `{"spec":{"namespace":"ns"}}`, `{"resourceRules":[],"nonResourceRules":[],"incomplete":true,"evaluationError":"cannot tell"}`},
		{"jane", `{"spec":{}}`, `no namespace on request`},
	} {
		if got := create(t, g, c.user, plural, c.body); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.body, got, c.want)
		}
	}
	// The answer does not repeat the question.
	d := SelfSubjectRulesReviews(Config{Authorizer: &asked{}, Rules: &asked{}})
	answer, err := d.Answer(t.Context(), &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "ns"}})
	if err != nil || answer.(*authorizationv1.SelfSubjectRulesReview).Spec.Namespace != "" {
		t.Error(answer, err)
	}
	silent := Group(Config{Authorizer: authz.Func(func(context.Context, *authz.Attributes) (authz.Decision, string, error) { return authz.Allow, "", nil })})
	if got := create(t, silent, "jane", plural, `{"spec":{"namespace":"ns"}}`); !strings.Contains(got, `"incomplete":true`) {
		t.Error(got)
	}
	if got := create(t, Group(Config{}), "jane", "selfsubjectaccessreviews", `{"spec":{"resourceAttributes":{}}}`); got != `{"allowed":true}` {
		t.Error(got)
	}
}
