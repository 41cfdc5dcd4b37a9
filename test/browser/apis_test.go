package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/apikeel/kelson/console"
	"github.com/apikeel/kelson/kelsontest"
)

// post creates an object from JSON.
func post(t *testing.T, api *kubernetes.Clientset, path, object string) {
	t.Helper()
	if err := api.RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(object)).Do(t.Context()).Error(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// widgets is a definition with two versions, of which one is deprecated, and texts that mean
// harm. A description may be long and have any characters.
var widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.shop.example.com"},"spec":{
	"group":"shop.example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"versions":[
	{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{
		"spec":{"type":"object","required":["size"],"description":"<script>alert(1)</script> ` + "\u202e" + `gpj.exe","properties":{
			"size":{"type":"integer","minimum":1,"maximum":9,"default":3},
			"<img src=x onerror=alert(1)>":{"type":"string","enum":["` + "\u202e" + `a","b"]},
			"` + strings.Repeat("f", 253) + `":{"type":"string","description":"` + strings.Repeat("long", 500) + `"}},
			"x-kubernetes-validations":[{"rule":"self.size != 7","message":"seven is ` + "\u2066" + `taken"}]},
		"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}},
	{"name":"v1alpha1","served":true,"storage":false,"deprecated":true,"deprecationWarning":"use shop.example.com/v1","schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"oldSize":{"type":"string"}}}}}}}]}}`

// hook serves a webhook that refuses config maps whose name begins with bad, and counts.
func hook(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: !strings.HasPrefix(review.Request.Name, "bad")}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// newAdmission creates a webhook lost.example.com for config maps, which nobody serves and whose
// failures are ignored, and good.example.com if it is served; a policy no-evil, which denies
// config maps whose name begins with evil; and a policy idle without a binding.
func newAdmission(t *testing.T, api *kubernetes.Clientset, good *registrationv1.WebhookClientConfig) {
	t.Helper()
	nowhere, none, ignore := "https://127.0.0.1:1/nobody", registrationv1.SideEffectClassNone, registrationv1.Ignore
	rules := []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create}, Rule: registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}}
	hook := registrationv1.ValidatingWebhook{Name: "lost.example.com", ClientConfig: registrationv1.WebhookClientConfig{URL: &nowhere}, Rules: rules, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &ignore}
	hooks := []registrationv1.ValidatingWebhook{hook}
	if good != nil {
		hook.Name, hook.ClientConfig, hook.FailurePolicy = "good.example.com", *good, nil
		hooks = append(hooks, hook)
	}
	admission, ctx := api.AdmissionregistrationV1(), t.Context()
	if _, err := admission.ValidatingWebhookConfigurations().Create(ctx, &registrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "checks"}, Webhooks: hooks}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	policy := registrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: rules[0]}}},
		Validations:      []registrationv1.Validation{{Expression: "!object.metadata.name.startsWith('evil')"}},
	}
	for _, name := range []string{"no-evil", "idle"} {
		if _, err := admission.ValidatingAdmissionPolicies().Create(ctx, &registrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policy}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	binding := &registrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "no-evil-here"}, Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "no-evil", ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny}}}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAPIsShowUseAndTrouble(t *testing.T) {
	t.Parallel()
	needChromium(t)
	s := kelsontest.Start(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "apis")
	ctx := t.Context()

	post(t, api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets)
	tab := newTab(t)
	tab.logIn(open(t, s.Config(), nil))
	tab.eventually("the definition is served", func() bool {
		return api.RESTClient().Get().AbsPath("/apis/shop.example.com/v1/widgets").Do(ctx).Error() == nil
	})
	// A user with an old client, of what is deprecated.
	old := s.User("old-user", "system:masters")
	old.UserAgent = "old-agent/0.1 <script>alert(1)</script>"
	for range 3 {
		for _, path := range []string{"/apis/shop.example.com/v1alpha1/widgets", "/api/v1/namespaces/apis/endpoints"} {
			if err := client(t, old).RESTClient().Get().AbsPath(path).Do(ctx).Error(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// An API whose server is not there.
	post(t, api, "/apis/apiregistration.k8s.io/v1/apiservices", `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.away.example.com"},"spec":{
		"group":"away.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"apis","name":"no-such-service"}}}`)

	hooks, err := s.Webhooks()
	if err != nil {
		t.Fatal(err)
	}
	if err := hooks.Serve(http.HandlerFunc(hook)); err != nil {
		t.Fatal(err)
	}
	address := hooks.URL("/hook")
	newAdmission(t, api, &registrationv1.WebhookClientConfig{URL: &address, CABundle: hooks.CA})
	create := func(name string) error {
		_, err := api.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"bad", "evil"} {
		tab.eventually(name+" is refused", func() bool { return create(name+"-"+fmt.Sprint(tab.wire.Load())) != nil })
	}

	tab.view("/apis")
	group := func(name string) string {
		return eval[string](tab, "[...document.querySelectorAll('section[aria-label=Groups] details')].find((d) => d.querySelector('strong').innerText === "+quote(name)+")?.innerText || ''")
	}
	tab.eventually("the group of the definition", func() bool {
		g := group("shop.example.com")
		return strings.Contains(g, "deprecated in use") && strings.Contains(g, "requests")
	})
	if got := group("shop.example.com"); !strings.Contains(got, "v1\nv1alpha1") && !strings.Contains(got, "v1v1alpha1") && !strings.Contains(got, "v1 v1alpha1") {
		t.Errorf("shop.example.com: got %q, want both versions", got)
	}
	if got := group("apps"); strings.Contains(got, "deprecated") || strings.Contains(got, "not available") {
		t.Errorf("apps: got %q, want nothing wrong with it", got)
	}
	tab.eventually("the API without a server", func() bool {
		g := group("away.example.com")
		return strings.Contains(g, "not available") && strings.Contains(g, "by apis/no-such-service")
	})
	for _, name := range []string{"shop.example.com", "away.example.com"} { // open them
		eval[any](tab, "[...document.querySelectorAll('section[aria-label=Groups] details')].find((d) => d.querySelector('strong').innerText === "+quote(name)+").querySelector('summary').click()")
	}
	tab.eventually("who uses the deprecated version", func() bool {
		g := group("shop.example.com")
		return strings.Contains(g, "old-user with old-agent/0.1 <script>alert(1)</script> has used widgets.v1alpha1.shop.example.com 3 times") && strings.Contains(g, "use shop.example.com/v1")
	})
	tab.eventually("requests by version", func() bool { return strings.Contains(group("shop.example.com"), "v1alpha1 deprecated") })
	tab.eventually("why the API is not available", func() bool {
		return strings.Contains(group("away.example.com"), "v1.away.example.com: ") && strings.Contains(group("away.example.com"), "no-such-service")
	})
	tab.harmless()
	tab.accessible()
	tab.set("searchbox", "Filter", "endpoints")
	tab.untilPart("Groups", "v1 Endpoints is deprecated in v1.33+")
	if got := group("shop.example.com"); got != "" {
		t.Errorf("with the filter endpoints, shop.example.com is there: %q", got)
	}

	// The definition: its versions and the tree of its schema.
	tab.view("/apis?tab=definitions")
	tab.untilPart("Definitions", "widgets.shop.example.com")
	tab.untilPart("Definitions", "now as v1; objects may be stored as v1")
	expand := func(field string) {
		t.Helper()
		script := "[...document.querySelectorAll('section[aria-label=Definitions] summary')].find((s) => s.querySelector('code')?.innerText === " + quote(field) + ")"
		tab.until("the field "+field, script)
		eval[any](tab, script+".click()")
	}
	expand("spec")
	tab.untilPart("Definitions", "size integer required")
	tab.untilPart("Definitions", "self.size != 7")
	expand("size")
	for _, text := range []string{"minimum: 1", "maximum: 9", "default 3", "<img src=x onerror=alert(1)> string", "<script>alert(1)</script>", `seven is \u2066taken`, `\u202egpj.exe`} {
		tab.untilPart("Definitions", text)
	}
	eval[any](tab, "document.querySelectorAll('section[aria-label=Definitions] details:not([open]) > summary').forEach((s) => s.click())")
	tab.untilPart("Definitions", `\u202ea`)
	tab.harmless()
	tab.set("combobox", "of version", "v1alpha1")
	tab.untilPart("Definitions", "use shop.example.com/v1")
	expand("spec")
	tab.untilPart("Definitions", "oldSize string")
	tab.accessible()
	tab.size(390, 844, true)
	tab.harmless()
	tab.size(1200, 750, false)

	// Admission: calls, times and failures.
	tab.view("/apis?tab=admission")
	tab.eventually("the webhooks", func() bool {
		return tab.row("Admission", "good.example.com") != nil && tab.row("Admission", "no-evil") != nil
	})
	numbers := func(row []string) string { return strings.Join(row[3:], " | ") }
	if row := tab.row("Admission", "good.example.com"); !strings.HasPrefix(row[3], "refused") || row[4] == "0" || row[5] == "–" || row[6] == "0" || row[7] != "0" {
		t.Errorf("the webhook that refuses: got %s, want calls, a mean time and rejections, and no failures", numbers(row))
	}
	if row := tab.row("Admission", "lost.example.com"); !strings.HasPrefix(row[3], "let through") || row[7] == "0" || row[8] == "0" || row[6] != "0" {
		t.Errorf("the webhook that nobody serves: got %s, want failures that let through, and no rejections", numbers(row))
	}
	if row := tab.row("Admission", "no-evil"); row[1] != "validating" || !strings.Contains(row[3], "no-evil-here Deny") || row[4] == "0" || row[5] == "–" || row[6] == "0" {
		t.Errorf("the policy that denies: got %s, want checks, a mean time and denials", numbers(row))
	}
	if row := tab.row("Admission", "idle"); row == nil || !strings.Contains(row[3], "it does nothing") {
		t.Errorf("the policy that nobody binds: got %q, want that it does nothing", row)
	}
	tab.accessible()

	tab.view("/apis?tab=findings")
	tab.eventually("the finding", func() bool {
		row := tab.row("Deprecated versions", "old-user")
		return len(row) == 8 && strings.Contains(row[1], "old-agent") && row[4] == "3"
	})
	tab.harmless()
}

// sh runs a command of the page in a shell, with a folder of its own.
func sh(t *testing.T, shell, command string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell, "-c", command)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return string(out), err
}

// TestExplorerCommandsDoWhatThePageDoes sends requests, and runs the commands that the page
// shows for them.
func TestExplorerCommandsDoWhatThePageDoes(t *testing.T) {
	t.Parallel()
	s := server(t)
	for _, program := range []string{"bash", "curl", "kubectl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "explorer")
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: namespace}, Data: map[string]string{"k": "v"}})
	admin := s.Token("explorer-admin", "system:masters")
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, admin.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	contextName := `it's "here" $(touch owned)`
	env := []string{"TOKEN=" + admin.BearerToken, "CA=" + ca, "KUBECONFIG=" + writeKubeconfig(t, admin, contextName)}

	tab := newTab(t)
	tab.logIn(open(t, admin, func(c *console.Config) { c.Info.Context = contextName }))
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	send := func(button, want string) {
		t.Helper()
		tab.click("button", button)
		tab.until("the answer "+want, "document.querySelector('section[aria-label=Answer] strong')?.innerText.startsWith("+quote(want)+") && !document.querySelector('section[aria-label=Answer] button')")
	}
	run := func(label string) string {
		t.Helper()
		command := tab.code(label)
		if strings.Contains(command, admin.BearerToken) {
			t.Errorf("%s has the token in it:\n%s", label, command)
		}
		out, err := sh(t, "bash", command, env...)
		if err != nil {
			t.Errorf("%v, of:\n%s", err, command)
		}
		return out
	}
	tab.view("/explorer")
	tab.set("combobox", "Path", path+"/one")
	send("Send", "200")
	var shown, got corev1.ConfigMap
	if err := json.Unmarshal([]byte(eval[string](tab, "document.querySelector('pre.content').textContent")), &shown); err != nil {
		t.Fatal(err)
	}
	if shown.Data["k"] != "v" {
		t.Errorf("the page shows %v, want the config map", shown)
	}
	for _, label := range []string{"kubectl", "curl"} {
		got = corev1.ConfigMap{}
		if err := json.Unmarshal([]byte(run(label)), &got); err != nil || got.UID != shown.UID {
			t.Errorf("%s: got %v %v, want what the page shows", label, got, err)
		}
	}

	// A body and a query with all that shells and patterns treat as their own.
	hostile := "it's $(touch owned) `touch owned` \"$HOME\" {a,b} [1-2] \\n \u202e ; touch owned; # \t!!"
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"generateName": "made-"}, "data": map[string]string{"hostile": hostile}})
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.ReplaceAll(string(body), `\u202e`, "\u202e")
	tab.set("combobox", "Method", "POST")
	tab.set("combobox", "Path", path)
	tab.set("textbox", "Query", "fieldManager=it's+{a,b}[1-2]$(touch owned)")
	tab.set("textbox", "Body", raw)
	send("Try", "201")
	made := func() (all []corev1.ConfigMap) {
		t.Helper()
		list, err := api.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list.Items {
			if strings.HasPrefix(m.Name, "made-") {
				all = append(all, m)
			}
		}
		return all
	}
	if got := made(); len(got) != 0 {
		t.Fatalf("after a dry run there are %d new config maps, want none", len(got))
	}
	tab.harmless()
	tab.click("checkbox", "dry run")
	for i, label := range []string{"kubectl", "curl"} {
		run(label)
		all := made()
		if len(all) != i+1 {
			t.Fatalf("after %s there are %d new config maps, want %d", label, len(all), i+1)
		}
		for _, m := range all {
			if m.Data["hostile"] != hostile {
				t.Errorf("%s has written %q, want %q", label, m.Data["hostile"], hostile)
			}
			if manager := m.ManagedFields[0].Manager; manager != "it's {a,b}[1-2]$(touch owned)" {
				t.Errorf("%s has the manager %q, want that of the query", label, manager)
			}
		}
	}

	// A patch, and one as another user.
	tab.set("combobox", "Method", "PATCH")
	tab.set("combobox", "Path", path+"/one")
	tab.set("textbox", "Query", "")
	tab.set("textbox", "Body", `{"data":{"k":"it's patched"}}`)
	for _, label := range []string{"kubectl", "curl"} {
		if _, err := api.CoreV1().ConfigMaps(namespace).Patch(t.Context(), "one", "application/merge-patch+json", []byte(`{"data":{"k":"v"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		run(label)
		if m, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), "one", metav1.GetOptions{}); err != nil || m.Data["k"] != "it's patched" {
			t.Errorf("%s has made it %v (%v), want it patched", label, m.Data, err)
		}
	}
	tab.set("combobox", "Add a header", "Impersonate-User")
	tab.set("textbox", "Impersonate-User", "o'neill")
	send("Send PATCH", "403")
	for _, label := range []string{"kubectl", "curl"} {
		out, err := sh(t, "bash", tab.code(label), env...)
		if said := strings.ReplaceAll(out, `\"`, `"`) + fmt.Sprint(err); !strings.Contains(said, `"o'neill" cannot `) {
			t.Errorf("%s as another user: got %s, want it forbidden for o'neill", label, said)
		}
	}
	tab.click("button", "Remove the header Impersonate-User")

	// YAML, which kubectl cannot send as it is.
	tab.set("combobox", "Method", "POST")
	tab.set("combobox", "Path", path)
	tab.set("combobox", "Body as", "application/yaml")
	tab.set("textbox", "Body", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  generateName: made-\n")
	before := len(made())
	run("curl")
	if got := len(made()) - before; got != 1 {
		t.Errorf("curl has made %d config maps of YAML, want one", got)
	}
	if len(tab.role("figure", "kubectl")) != 0 {
		run("kubectl")
		if got := len(made()) - before; got != 2 {
			t.Errorf("kubectl has made %d config maps of YAML, want one, or no such command", got-1)
		}
	}

	// Only the head.
	tab.set("combobox", "Method", "HEAD")
	tab.set("combobox", "Path", "/livez")
	if got := run("curl"); !strings.Contains(got, "200") {
		t.Errorf("curl of HEAD: got %q, want the head of an answer", got)
	}

	// To delete asks first.
	tab.set("combobox", "Method", "DELETE")
	tab.set("combobox", "Path", path+"/one")
	tab.set("textbox", "Body", "")
	tab.click("button", "Send DELETE")
	tab.untilRole("dialog", "Delete?")
	if _, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
		t.Errorf("before the answer to the question: %v, want the object there", err)
	}
	tab.click("button", "Delete")
	tab.eventually("the deletion", func() bool {
		_, err := api.CoreV1().ConfigMaps(namespace).Get(t.Context(), "one", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// writeKubeconfig writes a kubeconfig whose context has a name.
func writeKubeconfig(t *testing.T, config *rest.Config, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: name,
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestExplorerCommandsAreOneWordEach gives names that mean to be more than a name, and looks
// at what a shell makes of the commands: the words of kubectl, and no other command.
func TestExplorerCommandsAreOneWordEach(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	// kubectl and curl are programs that print their arguments.
	bin := t.TempDir()
	for _, name := range []string{"kubectl", "curl"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\nprintf '[%s]\\n' \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "TOKEN=t", "CA=c"}
	tab.view("/explorer?method=PATCH&path=" + "/api/v1/namespaces/default/configmaps/--kubeconfig=evil")
	tab.set("textbox", "Body", `{"a":"b'; echo OWNED; '`+"\x01"+`"}`)
	for _, shell := range []string{"bash", "sh"} {
		for _, label := range []string{"kubectl", "curl"} {
			command := tab.code(label)
			out, err := sh(t, shell, command, env...)
			if err != nil || strings.HasPrefix(out, "OWNED") || strings.Contains(out, "\nOWNED") {
				t.Errorf("%s in %s: got %q (%v), want the words of one command, of:\n%s", label, shell, out, err, command)
			}
			if shell == "bash" && !strings.Contains(out, `{"a":"b'; echo OWNED; '`+"\x01"+`"}]`) {
				t.Errorf("%s in %s: got %q, want the body as one word", label, shell, out)
			}
			before, _, _ := strings.Cut(out, "[--]")
			if label == "kubectl" && strings.Contains(before, "[--kubeconfig=evil]") {
				t.Errorf("%s takes the name of the object for an option:\n%s", label, command)
			}
		}
	}
}
