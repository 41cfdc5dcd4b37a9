package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"log/slog"

	"github.com/apikeel/kelson/request"
)

// The errors are those of kube-apiserver for the same files.
func TestLoadPolicy(t *testing.T) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	tests := []struct{ name, content, want, logged string }{
		{name: "good", content: head + "rules: [{level: None}]"},
		{name: "json", content: `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}`},
		{name: "unknown field", content: head + "foo: bar\nrules: [{level: None}]", logged: `unknown field \"foo\"`},
		{name: "field twice", content: head + "kind: Policy\nrules: [{level: None}]", logged: "already set in map"},
		{name: "no version", content: "kind: Policy", want: "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy: from file FILE"},
		{name: "empty", content: "", want: "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy: from file FILE"},
		{name: "other version", content: "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]",
			want: `failed decoding: no kind "Policy" is registered for version "audit.k8s.io/v1beta1" in scheme "pkg/runtime/scheme.go:111": from file FILE`},
		{name: "other kind", content: "apiVersion: audit.k8s.io/v1\nkind: Event",
			want: "failed decoding: converting (v1.Event) to (audit.Policy): unknown conversion: from file FILE"},
		{name: "no rules", content: head, want: "loaded illegal policy with 0 rules: from file FILE"},
		{name: "not YAML", content: "a: [b", want: "failed decoding: yaml: line 1: did not find expected ',' or ']': from file FILE"},
		{name: "not rules", content: head + "rules: x", want: "failed decoding: json: cannot unmarshal string into Go struct field Policy.rules of type []audit.Rule: from file FILE"},
		{name: "everything", content: head + `
omitStages: [Bad]
rules:
- level: Nope
  nonResourceURLs: ["x", "/a*b", "*"]
  resources: [{group: "UPPER", resourceNames: [a]}]
- nonResourceURLs: ["/x"]
  namespaces: [a]
  level: None
- users: [a]
`, want: `[omitStages[0]: Invalid value: "Bad": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic, ` +
			`rules[0].level: Unsupported value: "Nope": supported values: "None", "Metadata", "Request", "RequestResponse", ` +
			`rules[0].nonResourceURLs[0]: Invalid value: "x": non-resource URL rules must begin with a '/' character, ` +
			`rules[0].nonResourceURLs[1]: Invalid value: "/a*b": non-resource URL wildcards '*' must be the final character of the rule, ` +
			`rules[0].resources.group: Invalid value: "UPPER": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), ` +
			`rules[0].resources.resourceNames: Invalid value: ["a"]: using resourceNames requires at least one resource, ` +
			`rules[0].nonResourceURLs: Invalid value: ["x","/a*b","*"]: rules cannot apply to both regular resources and non-resource URLs, ` +
			`rules[1].nonResourceURLs: Invalid value: ["/x"]: rules cannot apply to both regular resources and non-resource URLs, ` +
			`rules[2].level: Required value]: from file FILE`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "policy.yaml")
			if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
			var log strings.Builder
			_, err := LoadPolicy(file, slog.New(slog.NewTextHandler(&log, nil)))
			got := ""
			if err != nil {
				got = strings.ReplaceAll(err.Error(), file, "FILE")
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if !strings.Contains(log.String(), tt.logged) || (tt.logged == "") != (log.Len() == 0) {
				t.Errorf("logged %s", log.String())
			}
		})
	}
	if _, err := LoadPolicy(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "failed to read file path") {
		t.Errorf("got %v", err)
	}
}

func TestRuleMatches(t *testing.T) {
	pod := request.Request{
		Info: request.Info{IsResource: true, Path: "/api/v1/namespaces/default/pods/busybox", Verb: "get", Version: "v1",
			Namespace: "default", Resource: "pods", Name: "busybox"},
		User: request.User{Name: "tim", Groups: []string{"admins", "humans"}},
	}
	logs := pod
	logs.Subresource = "log"
	role := request.Request{Info: request.Info{IsResource: true, Verb: "get", Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles", Name: "edit"},
		User: pod.User}
	path := request.Request{Info: request.Info{Path: "/logs/kubelet.log", Verb: "get"}, User: pod.User}
	nobody := pod
	nobody.User = request.User{}

	core := func(resources ...string) Rule { return Rule{Resources: []GroupResources{{Resources: resources}}} }
	named := func(names ...string) Rule {
		return Rule{Resources: []GroupResources{{Resources: []string{"pods"}, ResourceNames: names}}}
	}
	tests := []struct {
		name string
		rule Rule
		// which of pod, logs, role, path, nobody match
		want string
	}{
		{"all", Rule{}, "plrun"},
		{"user", Rule{Users: []string{"tim"}}, "plru"},
		{"other user", Rule{Users: []string{"jane"}}, ""},
		{"group", Rule{UserGroups: []string{"x", "humans"}}, "plru"},
		{"other group", Rule{UserGroups: []string{"x"}}, ""},
		{"verb", Rule{Verbs: []string{"create", "get"}}, "plrun"},
		{"other verb", Rule{Verbs: []string{"create"}}, ""},
		{"namespace", Rule{Namespaces: []string{"default"}}, "pln"},
		{"no namespace", Rule{Namespaces: []string{""}}, "r"},
		{"resource", core("pods"), "pn"},
		{"subresource", core("pods/log"), "l"},
		{"all subresources", core("pods/*"), "pln"},
		{"one of all", core("*/log"), "l"},
		{"another of all", core("*/status"), ""},
		{"core group", core(), "pln"},
		{"all of core", core("*"), "pln"},
		{"no pattern", core("*/*"), ""},
		{"any group", Rule{Resources: []GroupResources{{Group: "*"}}}, "plrn"},
		{"group rbac", Rule{Resources: []GroupResources{{Group: "rbac.authorization.k8s.io", Resources: []string{"clusterroles"}}}}, "r"},
		{"name", named("busybox"), "pn"},
		{"other name", named("x"), ""},
		{"one of two", Rule{Resources: []GroupResources{{Group: "apps"}, {Resources: []string{"pods"}}}}, "pn"},
		{"url", Rule{NonResourceURLs: []string{"/logs/kubelet.log"}}, "u"},
		{"urls", Rule{NonResourceURLs: []string{"/logs*"}}, "u"},
		{"any url", Rule{NonResourceURLs: []string{"*"}}, "u"},
		{"other url", Rule{NonResourceURLs: []string{"/logs", "/x*"}}, ""},
		{"all at once", Rule{Users: []string{"tim"}, UserGroups: []string{"admins"}, Verbs: []string{"get"}, Namespaces: []string{"default"},
			Resources: []GroupResources{{Resources: []string{"pods"}}}}, "p"},
	}
	for _, tt := range tests {
		got := ""
		for _, c := range []struct {
			key string
			req *request.Request
		}{{"p", &pod}, {"l", &logs}, {"r", &role}, {"u", &path}, {"n", &nobody}} {
			if tt.rule.matches(c.req) {
				got += c.key
			}
		}
		if got != tt.want {
			t.Errorf("%s: matches %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestFirstRuleDecides(t *testing.T) {
	yes, no := true, false
	p := &Policy{OmitStages: []Stage{StagePanic}, OmitManagedFields: true, Rules: []Rule{
		{Level: LevelNone, Users: []string{"a"}},
		{Level: LevelRequest, Users: []string{"b"}, OmitStages: []Stage{StageRequestReceived}, OmitManagedFields: &no},
		{Level: LevelMetadata, Users: []string{"b", "c"}, OmitManagedFields: &yes},
		{Level: LevelMetadata, Users: []string{"d"}},
	}}
	for user, want := range map[string]int{"a": 0, "b": 1, "c": 2, "d": 3, "e": -1} {
		got := p.rule(&request.Request{User: request.User{Name: user}})
		if want < 0 && got != nil || want >= 0 && got != &p.Rules[want] {
			t.Errorf("%s: got %+v", user, got)
		}
	}
	if r := &p.Rules[1]; !p.omits(r, StagePanic) || !p.omits(r, StageRequestReceived) || p.omits(r, StageResponseComplete) || p.omitsManagedFields(r) {
		t.Error("a rule and its policy do not add up")
	}
	if !p.omitsManagedFields(&p.Rules[2]) || !p.omitsManagedFields(&p.Rules[3]) {
		t.Error("the policy's default does not count")
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, nonResourceURLs: ['']}]"))
	f.Fuzz(func(t *testing.T, content []byte) {
		p, _, err := parsePolicy(content)
		if (p == nil) == (err == nil) {
			t.Errorf("%v, %v", p, err)
		}
	})
}
