package browser

import (
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"
)

// grant gives a user rules in a namespace, by a role and a binding with a name.
func grant(t *testing.T, api *kubernetes.Clientset, namespace, name, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Rules: rules}
	if _, err := api.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: user}}}
	if _, err := api.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func rule(resource, name string, verbs ...string) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs}
	if name != "" {
		r.ResourceNames = []string{name}
	}
	return r
}

// applyRBAC creates the role and the binding of a text.
func applyRBAC(t *testing.T, api *kubernetes.Clientset, namespace, text string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
		request := api.RbacV1().RESTClient().Post().Namespace(namespace).Resource(strings.ToLower(object.Kind)+"s").SetHeader("Content-Type", "application/yaml").Body([]byte(document))
		if err := request.Do(t.Context()).Error(); err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}
	}
}

func newSecret(t *testing.T, api *kubernetes.Clientset, namespace, name string) {
	t.Helper()
	if _, err := api.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"password": "hunter2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestAccessShowsRightsAndWhy(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "rights")
	newSecret(t, api, namespace, "mine")
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: namespace}})
	grant(t, api, namespace, "rights-of-mia", "mia", rule("configmaps", "", "get", "list"), rule("secrets", "mine", "get"))
	mia := client(t, s.User("mia"))
	remove := func() error {
		return mia.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "old", metav1.DeleteOptions{})
	}
	if err := remove(); !apierrors.IsForbidden(err) {
		t.Fatalf("mia deletes a config map: got %v, want it forbidden", err)
	}

	tab := newTab(t)
	tab.logIn(open(t, s.Config(), nil))
	tab.view("/access")
	tab.set("textbox", "User", "mia")
	eval[any](tab, "document.querySelector('form[aria-label=\"Whose rights\"] [name=namespace]').value = "+quote(namespace))
	tab.click("button", "Show")
	tab.untilRole("grid", "Rights of mia")
	for _, want := range []string{"mia may get configmaps", "mia may list configmaps", "mia may not watch configmaps", "mia may for some names get secrets", "mia may not list secrets", "mia may not get pods", "mia may create selfsubjectreviews"} {
		if len(tab.role("button", want)) != 1 {
			t.Errorf("the matrix has no cell %q", want)
		}
	}
	// What was denied is there, and why it would be now.
	tab.untilPart("Last denials", "delete configmaps old in namespace "+namespace)

	tab.click("button", "mia may not delete configmaps")
	tab.untilText("No: mia cannot delete configmaps in namespace " + namespace)
	const dialog = "May they delete configmaps in namespace rights?"
	near := tab.rows(dialog)
	if len(near) == 0 || !strings.Contains(near[0][0], "rights-of-mia") || !strings.Contains(near[0][3], `verb "delete"`) {
		t.Errorf("closest: got %q, want rights-of-mia, which lacks the verb", near)
	}
	tab.click("DisclosureTriangle", "What each authorizer says")
	tab.eventually("what RBAC says", func() bool {
		row := tab.row(dialog, "rbac")
		return len(row) == 3 && row[1] == "no opinion"
	})
	tab.accessible()
	// The suggestion allows exactly that.
	applyRBAC(t, api, namespace, tab.code("This would allow exactly that"))
	if err := remove(); err != nil {
		t.Errorf("mia deletes a config map by the suggested role: %v", err)
	}
	if err := mia.CoreV1().ConfigMaps(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("mia deletes all config maps by the suggested role: got %v, want it forbidden", err)
	}
	tab.click("button", "Close")
	tab.click("button", "Show")
	tab.visit(eval[string](tab, "location.href"))
	tab.untilRole("button", "mia may delete configmaps")

	// A name makes a difference.
	tab.click("button", "mia may for some names get secrets")
	tab.untilText("No: mia cannot get secrets in namespace " + namespace)
	tab.set("textbox", "Name of one object", "mine")
	tab.untilText("Yes: mia can get secrets mine in namespace " + namespace)
	if rows := tab.rows("May they get secrets in namespace rights?"); len(rows) == 0 || !strings.Contains(rows[0][0], "rights-of-mia") || rows[0][3] != "get secrets named mine" {
		t.Errorf("allowed by: got %q, want rights-of-mia and its rule", rows)
	}
	tab.click("button", "Close")

	// Who can read this secret.
	tab.set("combobox", "Resource", "secret")
	eval[any](tab, "document.querySelector('form[aria-label=\"Who can\"] [name=name]').value = 'mine'")
	tab.click("button", "Who can?")
	tab.untilPart("Who can", "can get secrets mine in namespace "+namespace)
	if row := tab.row("Who can", "mia"); len(row) != 4 || !strings.Contains(row[1], "rights-of-mia") || row[3] != "get secrets named mine" {
		t.Errorf("who can get the secret: got %q, want mia by rights-of-mia", tab.rows("Who can"))
	}
	if row := tab.row("Who can", "system:masters"); row == nil {
		t.Errorf("who can get the secret: got %q, want the group system:masters as well", tab.rows("Who can"))
	}
	eval[any](tab, "document.querySelector('form[aria-label=\"Who can\"] [name=name]').value = 'other'")
	tab.click("button", "Who can?")
	tab.untilPart("Who can", "can get secrets other in namespace "+namespace)
	if row := tab.row("Who can", "mia"); row != nil {
		t.Errorf("who can get another secret: got %q, want not mia", row)
	}
}

// checkHidden checks that texts which the user may not read are nowhere in the page.
func (tab *tab) checkHidden(what string, texts []string) {
	tab.t.Helper()
	for _, text := range texts {
		if eval[bool](tab, "document.getElementById('app').innerHTML.includes("+quote(text)+")") {
			tab.t.Errorf("%s: the page has %s, which the user may not read", what, text)
		}
	}
}

// TestAccessHidesWhatAUserMayNotSee opens the page as a user who may read config maps of one
// namespace, and nothing about the rights of others.
func TestAccessHidesWhatAUserMayNotSee(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "few-rights")
	newSecret(t, api, namespace, "hidden-secret")
	grant(t, api, namespace, "rights-of-noa", "noa", rule("configmaps", "", "get", "list"))
	grant(t, api, namespace, "hidden-binding", "hidden-user", rule("secrets", "hidden-secret", "get"))
	tab := newTab(t)
	tab.logIn(open(t, s.User("noa"), nil))
	hidden := []string{"hidden-binding", "hunter2", "system:masters", "cluster-admin"}
	tab.view("/access?namespace=" + namespace)
	tab.untilRole("button", "noa may list configmaps")
	tab.untilRole("button", "noa may not get secrets")
	// What was denied is on a page of the server, for which a user needs a right as well.
	tab.untilPart("Last denials", `User "noa" cannot get path "/debug/kelson/denials"`)
	readers := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "denials-for-noa"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/debug/kelson/denials"}, Verbs: []string{"get"}}}}
	if _, err := api.RbacV1().ClusterRoles().Create(t.Context(), readers, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allow(t, api, readers.Name, "noa")
	for _, user := range []string{"hidden-user", "noa"} { // both are denied something
		_, err := client(t, s.User(user)).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "of=" + user})
		if !apierrors.IsForbidden(err) {
			t.Fatalf("%s lists pods: got %v, want it forbidden", user, err)
		}
	}
	tab.click("button", "Look again")
	tab.untilPart("Last denials", "list pods in namespace "+namespace)
	if got := tab.part("Last denials"); strings.Contains(got, "hidden-user") {
		t.Errorf("the last denials have %q, want those of the user alone", got)
	}
	tab.checkHidden("own rights", hidden)
	tab.click("button", "noa may not get secrets")
	tab.untilText("No: noa cannot get secrets in namespace " + namespace)
	tab.checkHidden("why", hidden)
	tab.accessible()
	tab.click("button", "Close")
	// Others are not to be asked about.
	tab.view("/access?namespace=" + namespace + "&user=hidden-user")
	tab.until("the refusal", "document.querySelector('section[aria-label=\"What is allowed\"] .failure')?.innerText.includes('Not allowed')")
	if got := tab.role("grid", "Rights of hidden-user"); len(got) != 0 {
		t.Error("the rights of another user are shown, want them refused")
	}
	tab.checkHidden("rights of another", hidden)
	tab.view("/access?namespace=" + namespace + "&can=get&resource=secrets&name=hidden-secret")
	tab.until("an answer", "document.querySelector('section[aria-label=\"Who can\"] :is(.failure, p[role=status]:not(.loading))')")
	if got := tab.part("Who can"); strings.Contains(got, "hidden-user") {
		t.Errorf("who can: got %q, want nothing of others", got)
	}
	tab.checkHidden("who can", hidden)
}

// TestAccessShowsHostileTextAsText has roles, bindings and users whose texts mean harm.
func TestAccessShowsHostileTextAsText(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "hostile-rights")
	const user, turned = "<script>alert(1)</script>\u202eresu", "\u202esdrow"
	grant(t, api, namespace, strings.Repeat("r", 63), user,
		rbacv1.PolicyRule{APIGroups: []string{"", turned}, Resources: []string{"configmaps", "<img src=x onerror=alert(1)>"}, Verbs: []string{"get", turned}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{turned, strings.Repeat("n", 253)}, Verbs: []string{"get"}})
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "hostile-paths"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/<script>alert(1)</script>" + turned}, Verbs: []string{"get", turned}}}}
	if _, err := api.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allow(t, api, role.Name, "visitor")
	tab := newTab(t)
	tab.logIn(open(t, s.Config(), nil))
	for _, wide := range []bool{true, false} {
		if !wide {
			tab.size(390, 844, true)
		}
		tab.view("/access?user=" + url.QueryEscape(user) + "&namespace=" + namespace + "&can=get&resource=secrets&name=" + url.QueryEscape(turned))
		// Such a name fits into no header, so the server is asked about each request.
		tab.until("the rights", "document.querySelector('button.cell.yes[aria-label$=\" may get configmaps\"]')")
		tab.untilPart("Who can", `<script>alert(1)</script>\u202eresu`)
		tab.untilPart("Who can", `get secrets named \u202esdrow`)
		tab.harmless()
		eval[any](tab, "document.querySelector('button.cell.yes[aria-label$=\" may get configmaps\"]').click()")
		tab.untilText(`get, \u202esdrow configmaps, <img src=x onerror=alert(1)>`)
		tab.harmless()
		tab.click("button", "Close")
		eval[any](tab, "document.querySelector('button.cell.no[aria-label$=\" may not list configmaps\"]').click()")
		tab.untilText("This would allow exactly that")
		tab.harmless()
		tab.click("button", "Close")
		tab.view("/access?user=visitor&namespace=" + namespace)
		tab.until("the paths", "document.querySelector('main details summary')?.innerText.startsWith('Paths')")
		eval[any](tab, "document.querySelector('main details summary').click()")
		tab.untilText(`/<script>alert(1)</script>\u202esdrow`)
		tab.harmless()
	}
}
