package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/why"
)

// policyObjects are a policy with a parameter, and users who may create config maps.
const policyObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {policed: "yes"}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: limit, namespace: default}
data: {most: "2", secret: do-not-tell}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: few-keys}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    namespaceSelector: {matchLabels: {policed: "yes"}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  variables: [{name: count, expression: "size(object.data)"}]
  validations:
  - {expression: "variables.count <= int(params.data.most) && object.metadata.name != 'bad'", message: too many keys}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: few-keys-here}
spec: {policyName: few-keys, validationActions: [Deny], paramRef: {name: limit, namespace: default, parameterNotFoundAction: Deny}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: writer}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create, update]}
- {nonResourceURLs: [/debug/kelson/admission], verbs: [post]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: writer}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: writer}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}, {apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: policy-reader}
rules: [{apiGroups: [admissionregistration.k8s.io], resources: [validatingadmissionpolicies], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: policy-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: policy-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: reader}]
`

const mapOf = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: shop}\ndata: {%s}\n"

// TestExplainAdmission: the command shows what each step changed and who refused, keeps
// nothing, and its users see only the policies that they may read.
func TestExplainAdmission(t *testing.T) {
	s := startAsking(t, policyObjects)
	good, bad := fmt.Sprintf(mapOf, "good", "a: b"), fmt.Sprintf(mapOf, "full", "a: b, c: d, e: f")
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {priorityClassName: system-node-critical, serviceAccountName: default, automountServiceAccountToken: false, containers: [{name: c, image: i}]}\n"

	file := filepath.Join(t.TempDir(), "object.yaml")
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := kubernetes.NewForConfigOrDie(s.Config())
	if _, err := admin.CoreV1().ServiceAccounts("shop").Create(t.Context(), newAccount(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, stdin string
		args        string
		code        int
		want        []string
	}{
		{"a file", "", "-f " + file, 0, []string{"ConfigMap shop/good is admitted.", "ValidatingAdmissionPolicy", "few-keys by few-keys-here", "admitted"}},
		{"refused", bad, "-f -", 1, []string{"is refused by ValidatingAdmissionPolicy", "too many keys",
			"expression: variables.count <= int(params.data.most)", "variables.count = 3", `params.data.most = "2"`, `object.metadata.name = "full"`}},
		{"several", good + "---\n" + bad, "-f -", 1, []string{"shop/good is admitted", "shop/full is refused"}},
		{"as JSON", bad, "-f - -o json", 1, []string{`"refusedBy": "ValidatingAdmissionPolicy"`}},
		{"as YAML", good, "-f - -o yaml", 0, []string{"allowed: true"}},
		{"changed", pod, "-f -", 0, []string{"Priority", "changed", ".spec.priority", "2000001000"}},
		{"not valid", fmt.Sprintf(mapOf, "UPPER", "a: b"), "-f -", 1, []string{"is refused: ", "Invalid value"}},
		{"update of nothing", good, "-f - --update", 1, []string{"not found"}},
		{"deletion", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: limit, namespace: default}\n", "-f - --delete", 0, []string{"ConfigMap default/limit is admitted."}},
		{"deletion that is refused", "apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system}\n", "-f - --delete", 1, []string{"Namespace kube-system is refused by NamespaceLifecycle", "forbidden"}},
		{"deletion of nothing", good, "-f - --delete", 1, []string{"not found"}},
		{"two writes", good, "-f - --delete --update", 2, nil},
		{"no file", "", "-f /nowhere", 3, nil},
		{"nothing", "", "-f -", 3, nil},
		{"unknown kind", "apiVersion: v1\nkind: Nonsense\nmetadata: {name: x}\n", "-f -", 3, nil},
		{"no flag", "", "", 2, nil},
	} {
		got := s.runWith(nil, c.stdin, append([]string{"explain-admission"}, strings.Fields(c.args)...)...)
		if got.code != c.code {
			t.Errorf("%s: got exit code %d, want %d: %s%s", c.name, got.code, c.code, got.out, got.err)
		}
		for _, want := range c.want {
			if !strings.Contains(got.out, want) {
				t.Errorf("%s: got\n%s%s\nwant in it %q", c.name, got.out, got.err, want)
			}
		}
	}
	if list, err := admin.CoreV1().ConfigMaps("shop").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) > 0 {
		t.Errorf("after dry runs there are %d config maps, %v", len(list.Items), err)
	}

	if _, err := admin.CoreV1().ConfigMaps("default").Get(t.Context(), "limit", metav1.GetOptions{}); err != nil {
		t.Errorf("after the dry run of its deletion the config map is gone: %v", err)
	}

	// Users with few rights.
	jane, reader, nobody := s.User("jane"), s.User("reader"), s.User("nobody")
	if got := s.runWith(nobody, good, "explain-admission", "-f", "-"); got.code != 3 || !strings.Contains(got.err, "cannot post path") {
		t.Errorf("nobody: got exit code %d, %s%s", got.code, got.out, got.err)
	}
	if got := s.runWith(jane, good, "explain-admission", "-f", "-", "-o", "json"); got.code != 0 || strings.Contains(got.out, "few-keys") || !strings.Contains(got.out, `"hidden": true`) {
		t.Errorf("jane, who may not read policies: got exit code %d, %s%s", got.code, got.out, got.err)
	}
	got := s.runWith(jane, bad, "explain-admission", "-f", "-", "-o", "json")
	if got.code != 1 || strings.Contains(got.out, "params.data") || strings.Contains(got.out, "variables.count") {
		t.Errorf("jane, who may not read policies: got exit code %d, %s%s", got.code, got.out, got.err)
	}
	got = s.runWith(reader, bad, "explain-admission", "-f", "-")
	if got.code != 1 || !strings.Contains(got.out, `object.metadata.name = "full"`) || strings.Contains(got.out, `params.data.most = `) || strings.Contains(got.out, "variables.count = ") {
		t.Errorf("the reader, who may not read parameters: got exit code %d, %s%s", got.code, got.out, got.err)
	}
	if got := s.runWith(jane, good, "explain-admission", "-f", "-", "--update"); got.code != 3 || !strings.Contains(got.err, `cannot get resource "configmaps"`) {
		t.Errorf("jane, who may not read what she updates: got exit code %d, %s%s", got.code, got.out, got.err)
	}
	if got := s.runWith(jane, strings.Replace(pod, "shop", "default", 1), "explain-admission", "-f", "-"); got.code != 1 || !strings.Contains(got.out, `cannot create resource "pods"`) {
		t.Errorf("jane, who may not create pods: got exit code %d, %s%s", got.code, got.out, got.err)
	}

	// The page takes nothing that is not a create, an update or a deletion of one object.
	client := admin.CoreV1().RESTClient()
	for _, c := range []struct{ path, method string }{
		{"/api/v1/namespaces/shop/pods", "DELETE"}, {"/api/v1/namespaces/shop/pods/web/status", "DELETE"}, {"/api/v1/namespaces/shop/pods/web", "PATCH"}, {"/api/v1/namespaces/shop/pods/web", "POST"}, {"/api/v1/namespaces/shop/pods", "PUT"},
		{"/api/v1/namespaces/shop/pods/web/exec", "POST"}, {"/api/v1/nodes/n/proxy/x", "POST"}, {"/metrics", "POST"}, {why.AdmissionPath, "POST"},
		{"/apis/example.com/v1/things", "POST"}, {"/api/v1/namespaces/shop/pods/../../../..", "POST"},
	} {
		err := client.Post().AbsPath(why.AdmissionPath).Param("path", c.path).Param("method", c.method).Body([]byte("{}")).Do(t.Context()).Error()
		if !apierrors.IsBadRequest(err) {
			t.Errorf("%s %s: got %v, want a bad request", c.method, c.path, err)
		}
	}
}

// TestExplainAdmissionWebhook: a webhook is named with what it changed.
func TestExplainAdmissionWebhook(t *testing.T) {
	s := startAsking(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	hooks, err := s.Webhooks()
	if err != nil {
		t.Fatal(err)
	}
	err = hooks.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &review)
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind, Patch: []byte(`[{"op":"add","path":"/data/hooked","value":"yes"}]`)}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&review)
	}))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "hook.yaml")
	text := fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: hooker}
webhooks:
- name: hook.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {url: %q, caBundle: %s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
`, hooks.URL("/x"), base64.StdEncoding.EncodeToString(hooks.CA))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	got := s.runWith(nil, fmt.Sprintf(mapOf, "one", "a: b"), "explain-admission", "-f", "-")
	for _, want := range []string{"is admitted", "MutatingAdmissionWebhook", "hooker/hook.example.com", "changed", ".data.hooked", `"yes"`} {
		if got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("got exit code %d and\n%s%s\nwant in it %q", got.code, got.out, got.err, want)
		}
	}
}

func newAccount() *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
}
