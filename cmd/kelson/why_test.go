package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/why"
)

// whyObjects are roles and bindings of a shop.
const whyObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader-role, namespace: shop}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader-binding, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader-role}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}, {kind: ServiceAccount, name: web}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: asker-role}
rules: [{nonResourceURLs: [/debug/kelson/*], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: asker-binding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: asker-role}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: jane}, {kind: User, apiGroup: rbac.authorization.k8s.io, name: auditor}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: auditor-role}
rules: [{apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: auditor-binding}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: auditor-role}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: auditor}]
`

// asking is a server, and kubeconfig files of its users.
type asking struct {
	*kelsontest.Server
	t *testing.T
}

func startAsking(t *testing.T, objects string, opts ...kelsontest.Option) *asking {
	t.Helper()
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	return &asking{kelsontest.Start(t, append(opts, kelsontest.Manifests(file), kelsontest.NoControllers())...), t}
}

// run runs a command as a user; nil is the administrator.
func (a *asking) run(user *rest.Config, args ...string) result {
	a.t.Helper()
	return a.runWith(user, "", args...)
}

func (a *asking) runWith(user *rest.Config, stdin string, args ...string) result {
	a.t.Helper()
	if user == nil {
		user = a.Config()
	}
	file, err := a.KubeconfigFile(user)
	if err != nil {
		a.t.Fatal(err)
	}
	var out, errs bytes.Buffer
	code := run(a.t.Context(), append(args, "--kubeconfig", file), streams{in: strings.NewReader(stdin), out: &out, err: &errs})
	return result{out.String(), errs.String(), code}
}

// TestWhy: the command says why over TLS, with its exit codes.
func TestWhy(t *testing.T) {
	s := startAsking(t, whyObjects)
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"why jane get pods web-0 -n shop", 0, []string{"Yes: jane can get pods web-0 in namespace shop.", "rbac", "allow",
			"RoleBinding shop/reader-binding", "Role shop/reader-role", "User jane", "get,list pods"}},
		{"why system:serviceaccount:shop:web list po -n shop", 0, []string{"ServiceAccount shop/web"}},
		{"why jane delete pods web-0 -n shop", 1, []string{"No: jane cannot delete pods web-0 in namespace shop.", "no opinion", `verb "delete"`,
			"kind: Role\n", "kind: RoleBinding\n", "- delete\n", "- web-0\n", "namespace: shop\n"}},
		{"why jane get pods/log web-0 -n shop", 1, []string{`resource "pods/log"`, "- pods/log\n"}},
		{"why jane list deployments.apps -A", 1, []string{"cannot list deployments.apps in the whole cluster", "kind: ClusterRoleBinding", "- apps\n"}},
		{"why jane get /metrics", 1, []string{"cannot get /metrics", "nonResourceURLs:\n  - /metrics"}},
		{"why jane get /debug/kelson/why", 0, []string{"ClusterRoleBinding asker-binding"}},
		{"why @me delete nodes", 0, []string{"kubernetes.io/system-privileged-group", "Group system:masters", "not asked"}},
		{"why jane frob gadgets.example.com -n shop", 1, []string{"cannot frob gadgets.example.com in namespace shop"}},
		{"why system:node:n1 get secrets db -n shop", 1, []string{`Missing: a pod on node "n1" that uses secret "shop/db".`, "no relationship found"}},
		{"why jane list pods -n shop --field-selector spec.nodeName=n1 -l a=b", 0, []string{"with spec.nodeName=n1 and a=b"}},
		{"why jane list pods -n shop --field-selector a", 3, nil},
		{"why jane get pods -n shop -o json", 0, []string{`"allowed": true`, `"name": "reader-binding"`}},
		{"why jane get pods -n shop -o yaml", 0, []string{"allowed: true"}},
		{"why jane get pods -o xml", 3, nil},
		{"why jane get", 2, nil},
		{"why --last", 2, nil},
		{"who-can", 2, nil},
		{"who-can list pods -n shop", 0, []string{"User jane", "ServiceAccount shop/web", "RoleBinding shop/reader-binding", "Group system:masters"}},
		{"who-can create subjectaccessreviews.authorization.k8s.io", 0, []string{"User auditor", "ClusterRoleBinding auditor-binding", "Group system:nodes"}},
		{"who-can get /debug/kelson/x -o json", 0, []string{`"name": "auditor"`}},
	} {
		got := s.run(nil, strings.Fields(c.args)...)
		if got.code != c.code {
			t.Errorf("%s: got exit code %d, want %d: %s%s", c.args, got.code, c.code, got.out, got.err)
		}
		for _, want := range c.want {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: got\n%s%s\nwant in it %q", c.args, got.out, got.err, want)
			}
		}
	}
	if got := s.run(nil, strings.Fields("who-can list nodes")...); strings.Contains(got.out, "jane") {
		t.Errorf("who-can list nodes names jane:\n%s", got.out)
	}
}

// TestWhySuggestionCanBeApplied: what is suggested, applied as it is printed, makes the
// request pass.
func TestWhySuggestionCanBeApplied(t *testing.T) {
	s := startAsking(t, whyObjects)
	for _, question := range []string{
		"jane delete pods web-0 -n shop", "jane get pods/log web-0 -n shop", "joe list deployments.apps -A", "joe get /metrics",
		"joe create configmaps -n shop", "system:serviceaccount:shop:web watch secrets -n default", "Mallory\x1b[31m get nodes n1", "joe impersonate users x",
	} {
		args := append([]string{"why"}, strings.Fields(question)...)
		got := s.run(nil, append(args, "-o", "json")...)
		var answer why.Answer
		if err := json.Unmarshal([]byte(got.out), &answer); err != nil || got.code != 1 || answer.Suggestion == nil {
			t.Fatalf("%s: exit code %d, %v: %s%s", question, got.code, err, got.out, got.err)
		}
		file := filepath.Join(t.TempDir(), "suggestion.yaml")
		if err := os.WriteFile(file, []byte(answer.Suggestion.YAML), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), file); err != nil {
			t.Fatalf("%s: the suggestion cannot be applied: %v\n%s", question, err, answer.Suggestion.YAML)
		}
		if got := s.run(nil, args...); got.code != 0 {
			t.Errorf("%s: after the suggestion, exit code %d: %s", question, got.code, got.out)
		}
	}
}

// TestWhyShowsOnlyWhatAskersMayRead: users with few rights learn no names of roles and
// bindings, and cannot ask about others; each right shows what it is for, and no more.
func TestWhyShowsOnlyWhatAskersMayRead(t *testing.T) {
	s := startAsking(t, whyObjects)
	admin := kubernetes.NewForConfigOrDie(s.Config())
	jane, auditor, nobody := s.User("jane"), s.User("auditor"), s.User("nobody")
	secrets := []string{"reader-binding", "reader-role", "asker-binding", "asker-role", "auditor-binding", "auditor-role"}
	seen := func(user *rest.Config, args string) string {
		got := s.run(user, append(strings.Fields(args), "-o", "json")...)
		var names []string
		for _, name := range secrets {
			if strings.Contains(got.out+got.err, name) {
				names = append(names, name)
			}
		}
		return fmt.Sprintf("%d %s", got.code, strings.Join(names, " "))
	}
	check := func(who string, user *rest.Config, args, want string) {
		t.Helper()
		if got := seen(user, args); strings.TrimSpace(got) != want {
			t.Errorf("%s, %s: got exit code and names %q, want %q\n%+v", who, args, got, want, s.run(user, append(strings.Fields(args), "-o", "json")...))
		}
	}
	questions := []string{"get pods -n shop", "delete pods -n shop", "get nodes", "get /debug/kelson/why", "create subjectaccessreviews.authorization.k8s.io"}
	for _, q := range questions {
		check("nobody", nobody, "why @me "+q, "3")
		check("nobody", nobody, "why jane "+q, "3")
		check("nobody", nobody, "who-can "+q, "3")
		check("jane", jane, "why joe "+q, "3")
		check("jane", jane, "why jane "+q, "3") // with groups that she may not have
		check("jane", jane, "who-can "+q, "3")
		check("auditor", auditor, "who-can "+q, "0")
	}
	check("nobody", nobody, "why --last @me", "3")
	check("jane", jane, "why --last joe", "3")
	check("jane", jane, "why @me get pods -n shop", "0")
	check("jane", jane, "why @me delete pods -n shop", "1")
	check("jane", jane, "why @me get pods -n default", "1")
	check("auditor", auditor, "why jane get pods -n shop", "0")
	check("auditor", auditor, "why jane delete pods -n shop", "1")
	check("auditor", auditor, "why joe get pods -n shop", "1")
	if got := s.run(jane, strings.Fields("why @me get pods -n shop")...); !strings.Contains(got.out, "which you may not see") {
		t.Errorf("jane is not told that there is more:\n%s", got.out)
	}
	if got := s.run(auditor, strings.Fields("who-can get pods -n shop")...); !strings.Contains(got.out, "that you may not read") {
		t.Errorf("the auditor is not told that there is more:\n%s", got.out)
	}
	// That somebody else has a binding is not even hinted at.
	if got := s.run(auditor, strings.Fields("why joe get pods -n shop -o json")...); strings.Contains(got.out, "hidden") {
		t.Errorf("a hint at bindings of others: %s", got.out)
	}

	allow := func(name, namespace, resource string, verbs ...string) {
		t.Helper()
		rules := []rbacv1.PolicyRule{{APIGroups: []string{"rbac.authorization.k8s.io"}, Resources: []string{resource}, Verbs: verbs, ResourceNames: nil}}
		meta := metav1.ObjectMeta{Name: name}
		_, err := admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "auditor"}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	allow("sees-other", "default", "rolebindings", "get", "list")
	check("auditor", auditor, "why jane get pods -n shop", "0")
	allow("sees-bindings", "shop", "rolebindings", "get")
	check("auditor", auditor, "who-can get pods -n shop", "0 reader-binding reader-role") // the binding names its role
	if got := s.run(auditor, strings.Fields("why jane get pods -n shop -o json")...); strings.Contains(got.out, `"rule"`) {
		t.Errorf("the auditor may not read the role, and sees its rule: %s", got.out)
	}
	check("auditor", auditor, "why jane delete pods -n shop", "1") // how near it is would tell of the rule
	allow("sees-roles", "shop", "roles", "list")
	check("auditor", auditor, "why jane delete pods -n shop", "1 reader-binding reader-role")
	if got := s.run(auditor, strings.Fields("why jane get pods -n shop -o json")...); !strings.Contains(got.out, `"rule"`) {
		t.Errorf("the auditor may read the role, and does not see its rule: %s", got.out)
	}
}

// TestWhyLast: the server keeps what it has denied, with hostile names made harmless.
func TestWhyLast(t *testing.T) {
	s := startAsking(t, whyObjects)
	joe := kubernetes.NewForConfigOrDie(s.User("joe"))
	for range 3 {
		if _, err := joe.CoreV1().Secrets("shop").Get(t.Context(), "db", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Fatalf("got %v, want forbidden", err)
		}
	}
	if err := joe.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Error(); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v, want forbidden", err)
	}
	got := s.run(nil, "why", "--last", "joe")
	for _, want := range []string{"3", "get secrets db in namespace shop", "get /metrics", "denied"} {
		if !strings.Contains(got.out, want) || got.code != 0 {
			t.Errorf("got exit code %d and\n%s%s\nwant in it %q", got.code, got.out, got.err, want)
		}
	}
	if strings.Index(got.out, "/metrics") > strings.Index(got.out, "secrets") {
		t.Errorf("the last denial is not the first line:\n%s", got.out)
	}
	if got := s.run(nil, "why", "--last", "jill"); got.code != 0 || !strings.Contains(got.out, "denied jill nothing") {
		t.Errorf("got exit code %d and %s", got.code, got.out)
	}
	// Names that would move the cursor, ring, or turn the text around.
	evil := "eve\x1b[2J\u009b31m\u202e\ttab\nline\a"
	mallory := kubernetes.NewForConfigOrDie(s.Token(evil))
	if _, err := mallory.CoreV1().Secrets("shop").Get(t.Context(), "db", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v, want forbidden", err)
	}
	for _, args := range [][]string{
		{"why", "--last", evil}, {"why", "--last", evil, "-o", "json"}, {"why", "--last", evil, "-o", "yaml"},
		{"why", evil, "get", "nodes"}, {"why", evil, evil, evil, evil}, {"why", evil, "get", "nodes", "-o", "json"},
		{"who-can", evil, evil}, {"why", evil, "get", "nodes", "--as", "jane"},
	} {
		got := s.run(nil, args...)
		answered := strings.Contains(got.out, "eve") || args[len(args)-1] == "jane"
		if strings.ContainsAny(got.out+got.err, "\x1b\u009b\u202e\a") || !answered {
			t.Errorf("%q prints %q %q", args, got.out, got.err)
		}
		if strings.Contains(got.out, "\nline") {
			t.Errorf("%q: a name begins a line: %q", args, got.out)
		}
	}
}

// TestWhyWebhook: what a webhook says is shown, and that it cannot list its subjects; its
// denial is final.
func TestWhyWebhook(t *testing.T) {
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Spec struct{ User string } `json:"spec"`
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"authorization.k8s.io/v1beta1","kind":"SubjectAccessReview","status":{"allowed":%v,"denied":%v,"reason":"the hook knows %s"}}`,
			review.Spec.User == "friend", review.Spec.User == "foe", review.Spec.User)
	}))
	t.Cleanup(hook.Close)
	file := filepath.Join(t.TempDir(), "hook")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %s}}]\nusers: [{name: u}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", hook.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startAsking(t, whyObjects, kelsontest.Configure(func(c *controlplane.Config) {
		c.Authorization.Modes, c.Authorization.WebhookConfigFile = []string{"Node", "Webhook", "RBAC"}, file
	}))
	for _, c := range []struct {
		args string
		code int
		want []string
	}{
		{"why friend delete nodes", 0, []string{"the hook knows friend", "not asked"}},
		{"why foe delete nodes", 1, []string{"the hook knows foe", "deny", "no role can allow it"}},
		{"why joe delete nodes", 1, []string{"the hook knows joe", "no opinion", "kind: ClusterRole"}},
		{"who-can delete nodes", 0, []string{"a webhook cannot list"}},
	} {
		got := s.run(nil, strings.Fields(c.args)...)
		for _, want := range c.want {
			if got.code != c.code || !strings.Contains(got.out, want) {
				t.Errorf("%s: got exit code %d and\n%s%s\nwant %d and %q", c.args, got.code, got.out, got.err, c.code, want)
			}
		}
	}
}

// TestWhyIsNotSeen: a client that does not ask sees nothing of the pages.
func TestWhyIsNotSeen(t *testing.T) {
	s := startAsking(t, whyObjects)
	client := kubernetes.NewForConfigOrDie(s.Config()).CoreV1().RESTClient()
	for _, path := range []string{"/", "/api", "/apis", "/openapi/v2", "/openapi/v3"} {
		text, err := client.Get().AbsPath(path).DoRaw(context.Background())
		if err != nil || strings.Contains(string(text), "debug/kelson") {
			t.Errorf("%s: %v, names the pages: %v", path, err, strings.Contains(string(text), "debug/kelson"))
		}
	}
	for _, path := range []string{why.Path, why.WhoCanPath, why.DenialsPath} {
		if err := client.Post().AbsPath(path).Do(t.Context()).Error(); !apierrors.IsMethodNotSupported(err) {
			t.Errorf("POST %s: got %v, want method not allowed", path, err)
		}
	}
}
