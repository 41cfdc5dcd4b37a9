package replicas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/internal/testsize"
)

// maxPropagation is the median time after which a change that one server has acknowledged
// counts on another, on a machine that has nothing else to do.
const maxPropagation = 20 * time.Millisecond

// maxDefinition is that of a definition, until its first object is created: the other
// server compiles it and writes its conditions meanwhile.
const maxDefinition = 60 * time.Millisecond

// rawClient sends JSON to one server.
type rawClient struct {
	t testing.TB
	rest.Interface
}

func (f *fleet) raw(i int, user string) rawClient {
	f.t.Helper()
	config := f.configOf(i)
	config.Impersonate.UserName = user
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		f.t.Fatal(err)
	}
	return rawClient{f.t, client.RESTClient()}
}

func (c rawClient) do(ctx context.Context, verb, path, body string) error {
	path, query, _ := strings.Cut(path, "?")
	req := c.Verb(verb).AbsPath(path).MaxRetries(0)
	if name, value, ok := strings.Cut(query, "="); ok {
		req = req.Param(name, value)
	}
	if body != "" {
		req = req.SetHeader("Content-Type", "application/json").Body([]byte(body))
	}
	return req.Do(ctx).Error()
}

func (c rawClient) must(ctx context.Context, verb, path, body string) {
	c.t.Helper()
	if err := c.do(ctx, verb, path, body); err != nil {
		c.t.Fatalf("%s %s: %v", verb, path, err)
	}
}

// checkPropagation measures how long a change at one server takes to count at another. A right
// that is granted, and the first object of a new definition, are never refused.
func (f *fleet) checkPropagation(t *testing.T) {
	one, other, jane := f.raw(0, ""), f.raw(1, ""), f.raw(1, "jane")
	ctx := t.Context()
	const binding = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
	one.must(ctx, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
		`{"metadata":{"name":"reader"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list"]}]}`)
	const maps = "/api/v1/namespaces/default/configmaps"
	const grant = `{"metadata":{"name":"jane"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}]}`

	cases := []struct {
		name   string
		change func(n int) // at one server
		counts func(n int) bool
		atOnce bool
	}{
		{"granted right", func(int) { one.must(ctx, "POST", binding, grant) }, func(int) bool { return jane.do(ctx, "GET", maps, "") == nil }, true},
		{"revoked right", func(int) { one.must(ctx, "DELETE", binding+"/jane", "") }, func(int) bool { return apierrors.IsForbidden(jane.do(ctx, "GET", maps, "")) }, false},
		{"definition", func(n int) {
			one.must(ctx, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(`{"metadata":{"name":"things.g%[1]d.example.com"},
				"spec":{"group":"g%[1]d.example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing"},
				"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, n))
		}, func(n int) bool {
			return other.do(ctx, "POST", fmt.Sprintf("/apis/g%d.example.com/v1/namespaces/default/things", n),
				fmt.Sprintf(`{"apiVersion":"g%d.example.com/v1","kind":"Thing","metadata":{"name":"first"}}`, n)) == nil
		}, true},
		{"policy", func(n int) {
			one.must(ctx, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", fmt.Sprintf(`{"metadata":{"name":"p%[1]d"},"spec":{
				"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"],"operations":["CREATE"]}]},
				"validations":[{"expression":"object.metadata.name != 'policy-%[1]d'"}]}}`, n))
			one.must(ctx, "POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
				fmt.Sprintf(`{"metadata":{"name":"p%[1]d"},"spec":{"policyName":"p%[1]d","validationActions":["Deny"]}}`, n))
		}, func(n int) bool {
			return other.do(ctx, "POST", maps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"policy-%d"}}`, n)) != nil
		}, false},
		{"webhook", func(n int) {
			one.must(ctx, "POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", fmt.Sprintf(`{"metadata":{"name":"w%[1]d"},"webhooks":[{
				"name":"w%[1]d.example.com","clientConfig":{"url":"https://127.0.0.1:1/"},"sideEffects":"None","admissionReviewVersions":["v1"],"timeoutSeconds":1,
				"matchConditions":[{"name":"n","expression":"object.metadata.name == 'webhook-%[1]d'"}],
				"rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"],"operations":["CREATE"]}]}]}`, n))
		}, func(n int) bool {
			return other.do(ctx, "POST", maps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"webhook-%d"}}`, n)) != nil
		}, false},
		{"APIService", func(n int) {
			one.must(ctx, "POST", "/apis/apiregistration.k8s.io/v1/apiservices", fmt.Sprintf(`{"metadata":{"name":"v1.a%[1]d.example.com"},"spec":{
				"group":"a%[1]d.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":100,"insecureSkipTLSVerify":true,
				"service":{"namespace":"default","name":"nowhere","port":443}}}`, n))
		}, func(n int) bool {
			return apierrors.IsServiceUnavailable(other.do(ctx, "GET", fmt.Sprintf("/apis/a%d.example.com/v1/things", n), ""))
		}, false},
	}
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			var took []time.Duration
			for n := range testsize.Pick(3, 5, 21) {
				switch c.name {
				case "granted right":
					_ = one.do(ctx, "DELETE", binding+"/jane", "")
					for !apierrors.IsForbidden(jane.do(ctx, "GET", maps, "")) {
						pause(time.Millisecond)
					}
				case "revoked right":
					_ = one.do(ctx, "POST", binding, grant)
				}
				c.change(n)
				began := time.Now()
				for tries := 0; ; tries++ {
					if c.counts(n) {
						break
					}
					if c.atOnce {
						t.Fatalf("change %d does not count at the other server at once", n)
					}
					if time.Since(began) > startTimeout {
						t.Fatalf("change %d does not count at the other server after %v", n, startTimeout)
					}
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			median := took[len(took)/2]
			limit := maxPropagation
			if c.name == "definition" {
				limit = maxDefinition
			}
			if testsize.Long() && !testsize.Race() && median > limit {
				t.Errorf("median %v of %d changes, want at most %v", median, len(took), limit)
			}
			t.Logf("median %v, longest %v of %d changes, the request that shows it included", median, took[len(took)-1], len(took))
		})
	}
}
