package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/console"
	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/pki"
)

// TestViewsWorkWithKubeAPIServer opens the console of a kube-apiserver, as an administrator
// and as a user with few rights. All that is Kelson's own has to be told in words there.
func TestViewsWorkWithKubeAPIServer(t *testing.T) {
	if os.Getenv("KELSON_PEERS") == "" {
		t.Skip("no kube-apiserver: KELSON_PEERS=FOLDER go test -run KubeAPIServer . runs it with the kube-apiserver and the etcd of that folder")
	}
	t.Parallel()
	needChromium(t)
	p := startPeer(t)
	p.fill(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *peer)
	}{
		{"lists are live, filtered and selected", peerLists},
		{"an object is edited and deleted", peerObject},
		{"an object has relations, events and rights", peerAboutObject},
		{"a conflict is merged", peerConflict},
		{"access is explained", peerAccess},
		{"APIs have groups, schemas, admission and health", peerAPIs},
		{"the explorer sends requests and gives commands", peerExplorer},
		{"a user with few rights edits what they may", peerFewObjects},
		{"a user with few rights sees their access", peerFewAccess},
		{"what needs Kelson is told in words", peerWords},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, p) })
	}
}

// peer is a kube-apiserver with objects in it.
type peer struct {
	admin, few *rest.Config // few is the user kim, who may read and update config maps in the namespace
	api        *kubernetes.Clientset
	ca         string // file
}

const peerNamespace = "shop"

func startPeer(t *testing.T) *peer {
	t.Helper()
	etcd, member := fmt.Sprintf("http://127.0.0.1:%d", peertest.FreePort(t)), fmt.Sprintf("http://127.0.0.1:%d", peertest.FreePort(t))
	peertest.Start(t, "etcd", "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", member, "--initial-advertise-peer-urls", member,
		"--initial-cluster", "default="+member)
	dir := t.TempDir()
	authority, err := pki.New()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.ServerPair(dir)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{ca: filepath.Join(dir, "ca.crt")}
	if err := os.WriteFile(p.ca, authority.CertificatePEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	p.admin = peertest.KubeAPIServer(t, []string{etcd}, "--client-ca-file="+p.ca, "--tls-cert-file="+pair.CertFile, "--tls-private-key-file="+pair.KeyFile)
	p.admin.TLSClientConfig = rest.TLSClientConfig{CAData: authority.CertificatePEM()}
	bundle, err := authority.IssueClient("kim")
	if err != nil {
		t.Fatal(err)
	}
	p.few = &rest.Config{Host: p.admin.Host, TLSClientConfig: rest.TLSClientConfig{CAData: authority.CertificatePEM(), CertData: bundle, KeyData: bundle}}
	p.api = client(t, p.admin)
	return p
}

// fill creates the objects that the views are to show.
func (p *peer) fill(t *testing.T) {
	t.Helper()
	ctx, api := t.Context(), p.api
	newNamespace(t, api, peerNamespace)
	for i := range 30 {
		newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("entry-%02d", i), Namespace: peerNamespace, Labels: map[string]string{"half": fmt.Sprint(i / 15)}}})
	}
	hostile := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("long.", 50) + "abc", Namespace: peerNamespace, Annotations: map[string]string{}}, Data: map[string]string{}}
	for i, text := range hostileTexts {
		hostile.Annotations[fmt.Sprintf("example.com/a%d", i)], hostile.Data[fmt.Sprintf("key-%d", i)] = text, text
	}
	newConfigMap(t, api, hostile)
	newSecret(t, api, peerNamespace, "mine")
	// A deployment, what it owns, and an event about it. No controller runs.
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "registry.example/web:1"}}}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	deployment, err := api.AppsV1().Deployments(peerNamespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	owned := func(name, kind string, owner metav1.Object) metav1.ObjectMeta {
		isController := true
		return metav1.ObjectMeta{Name: name, Labels: labels, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: &isController}}}
	}
	set, err := api.AppsV1().ReplicaSets(peerNamespace).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: owned("web-5d4f", "Deployment", deployment), Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.CoreV1().Pods(peerNamespace).Create(ctx, &corev1.Pod{ObjectMeta: owned("web-5d4f-x1", "ReplicaSet", set), Spec: template.Spec}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "web.1", Namespace: peerNamespace}, Reason: "Scaled", Type: "Warning", Message: "<script>alert(1)</script>", LastTimestamp: metav1.Now(),
		InvolvedObject: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Namespace: peerNamespace, UID: deployment.UID},
	}
	if _, err := api.CoreV1().Events(peerNamespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	grant(t, api, peerNamespace, "rights-of-mia", "mia", rule("configmaps", "", "get", "list"), rule("secrets", "mine", "get"))
	grant(t, api, peerNamespace, "rights-of-kim", "kim", rule("configmaps", "", "get", "list", "watch", "update"))
	grant(t, api, peerNamespace, "rights-of-hostile", "<script>alert(1)</script>\u202eresu", rule("secrets", "mine", "get"))

	post(t, api, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets)
	post(t, api, "/apis/apiregistration.k8s.io/v1/apiservices", `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.away.example.com"},"spec":{
		"group":"away.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"shop","name":"no-such-service"}}}`)
	newAdmission(t, api, nil)
}

// openAs opens the console in a page of its own.
func (p *peer) openAs(t *testing.T, config *rest.Config) *tab {
	t.Helper()
	tab := newTab(t)
	tab.logIn(open(t, config, nil))
	return tab
}

// newSettings creates a config map for one test.
func (p *peer) newSettings(t *testing.T, name string) string {
	t.Helper()
	newConfigMap(t, p.api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: peerNamespace}, Data: map[string]string{"colour": "red", "size": "small", "taste": "sweet"}})
	return "/object/core/v1/configmaps/" + peerNamespace + "/" + name
}

func (p *peer) data(t *testing.T, name string) map[string]string {
	t.Helper()
	got, err := p.api.CoreV1().ConfigMaps(peerNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Data
}

// retype selects a text in the editor of a part of the page, and types another instead.
func (tab *tab) retype(part, old, text string) {
	tab.t.Helper()
	view := "document.querySelector(" + quote(part+" .editor") + ")?.shadowRoot?.querySelector('.cm-content')?.cmTile.root.view"
	tab.until("an editor with "+old, view+"?.state.doc.toString().includes("+quote(old)+")")
	eval[any](tab, "((view) => { const at = view.state.doc.toString().indexOf("+quote(old)+"); view.focus(); view.dispatch({ selection: { anchor: at, head: at + "+fmt.Sprint(len(old))+" } }) })("+view+")")
	call(tab, input.InsertText, input.InsertTextParams{Text: text})
	tab.until("an editor with "+text, view+".state.doc.toString().includes("+quote(text)+")")
}

// noFailures checks that the page shows no error.
func (tab *tab) noFailures() {
	tab.t.Helper()
	if got := eval[string](tab, "[...document.querySelectorAll('.failure')].map((f) => f.innerText).join('; ')"); got != "" {
		tab.t.Errorf("%s shows the error %q, want none", eval[string](tab, "location.pathname + location.search"), got)
	}
}

func peerLists(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	ctx := t.Context()
	tab.view("/objects")
	tab.untilRole("link", "Widget") // of the definition
	tab.view("/objects/core/v1/configmaps?namespace=" + peerNamespace)
	tab.untilText("entry-07")
	tab.until("the state of the list", "document.querySelector('[aria-label=\"State of the list\"]')?.innerText.includes('Live')")
	newConfigMap(t, p.api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "aaa-new", Namespace: peerNamespace}, Data: map[string]string{"a": "b"}})
	tab.untilText("aaa-new")
	if err := p.api.CoreV1().ConfigMaps(peerNamespace).Delete(ctx, "aaa-new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tab.until("the row is gone", "!document.body.innerText.includes('aaa-new')")
	tab.harmless()
	tab.accessible()
	tab.set("searchbox", "Filter rows by text", "entry-13")
	tab.until("one row", "document.body.innerText.includes('entry-13') && !document.body.innerText.includes('entry-14')")
	tab.set("searchbox", "Filter rows by text", "")
	tab.set("textbox", "Label selector", "half=1")
	tab.until("the selected rows", "document.body.innerText.includes('entry-15') && !document.body.innerText.includes('entry-14')")
	tab.noFailures()

	// Columns are those of the server, of built-in kinds and of definitions.
	tab.view("/objects/apps/v1/deployments?namespace=" + peerNamespace)
	tab.untilText("0/1")
	tab.untilRole("columnheader", "Up-to-date")
	tab.view("/objects/shop.example.com/v1/widgets?namespace=" + peerNamespace)
	tab.untilText("There are no widgets in this namespace.")
	tab.click("button", "Create")
	tab.untilRole("dialog", "Create objects")
	tab.retype(".create-editor", "  name: ", "  name: small-one")
	tab.retype(".create-editor", "namespace: shop", "namespace: shop\nspec:\n  size: 12")
	tab.click("button", "Dry run")
	tab.untilPart("Results", "should be less than or equal to 9")
	if n := p.countWidgets(t); n != 0 {
		t.Errorf("after a dry run there are %d widgets, want none", n)
	}
	tab.retype(".create-editor", "size: 12", "size: 2")
	tab.click("button", "Dry run")
	tab.untilPart("Results", "would be created in "+peerNamespace)
	tab.on("dialog", "Create objects", "function() { [...this.querySelectorAll('button')].find((b) => b.innerText === 'Create').click() }")
	tab.untilPart("Results", "created: small-one")
	tab.click("button", "Close")
	tab.until("the row", "document.querySelector('[role=grid]')?.innerText.includes('small-one')")

	// Two objects are deleted at once, after a dry run of each.
	tab.view("/objects/core/v1/configmaps?namespace=" + peerNamespace)
	tab.untilText("entry-28")
	eval[any](tab, "[...document.querySelectorAll('[role=grid] [role=row]')].filter((r) => /entry-2[89]/.test(r.innerText)).forEach((r) => r.querySelector('input').click())")
	tab.click("button", "Delete…")
	tab.untilText("Dry run: 2 would be deleted of 2.")
	if got := p.data(t, "entry-28"); len(got) != 0 {
		t.Errorf("entry-28: got %v, want it there, without data", got)
	}
	tab.on("dialog", "Delete 2 ConfigMap objects", "function() { this.querySelector('button.danger').click() }")
	tab.untilText("Done: 2 deleted of 2.")
	if _, err := p.api.CoreV1().ConfigMaps(peerNamespace).Get(ctx, "entry-28", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("entry-28 after its deletion: got %v, want it not found", err)
	}
	tab.noFailures()
}

// countWidgets returns how many objects of the definition there are.
func (p *peer) countWidgets(t *testing.T) int {
	t.Helper()
	var list metav1.PartialObjectMetadataList
	raw, err := p.api.RESTClient().Get().AbsPath("/apis/shop.example.com/v1/widgets").DoRaw(t.Context())
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

func peerObject(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	tab.view(p.newSettings(t, "settings"))
	tab.retype(".yaml", "colour: red", "colour: blue")
	tab.click("button", "Review and save")
	tab.untilRole("dialog", "Save these changes?")
	tab.untilText("The server has tried it without saving")
	if got := p.data(t, "settings")["colour"]; got != "red" {
		t.Errorf("after the dry run: got colour %s, want red", got)
	}
	tab.accessible()
	tab.click("button", "Save")
	tab.untilText("Saved.")
	if got := p.data(t, "settings")["colour"]; got != "blue" {
		t.Errorf("after saving: got colour %s, want blue", got)
	}
	// What the server refuses is shown in its words, and nothing is lost.
	tab.retype(".yaml", "size: small", "size: [1]")
	tab.click("button", "Review and save")
	tab.until("the refusal", "document.querySelector('main .failure')")
	tab.retype(".yaml", "size: [1]", "size: large")
	tab.click("button", "Review and save")
	tab.untilRole("dialog", "Save these changes?")
	tab.click("button", "Cancel")
	tab.click("button", "Discard my changes")

	tab.click("button", "Delete…")
	tab.untilText("Dry run: the server would delete it.")
	p.data(t, "settings") // is there
	tab.click("button", "Delete")
	tab.untilText("This object was deleted. What you see is how it was.")
	if _, err := p.api.CoreV1().ConfigMaps(peerNamespace).Get(t.Context(), "settings", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: got %v, want it not found", err)
	}
	tab.noFailures()
	for _, phone := range []bool{false, true} {
		if phone {
			tab.size(390, 844, true)
		}
		tab.view("/object/core/v1/configmaps/" + peerNamespace + "/" + strings.Repeat("long.", 50) + "abc")
		tab.untilRole("tab", "YAML")
		tab.harmless()
	}
}

func peerConflict(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	tab.view(p.newSettings(t, "contested"))
	tab.retype(".yaml", "colour: red", "colour: blue")
	patch := []byte(`{"data":{"colour":"green","taste":"sour"}}`)
	if _, err := p.api.CoreV1().ConfigMaps(peerNamespace).Patch(t.Context(), "contested", "application/merge-patch+json", patch, metav1.PatchOptions{FieldManager: "the-other"}); err != nil {
		t.Fatal(err)
	}
	tab.until("a notice", "/Changed by the-other .*while you were editing/s.test(document.querySelector('.notice')?.innerText)")
	tab.click("button", "Review and save")
	tab.untilRole("dialog", "Two changes of one object")
	sides := eval[[]string](tab, "[...document.querySelectorAll('fieldset.conflict .side')].map((s) => s.innerText.trim().replace(/\\s+/g, ' '))")
	if want := []string{"Base colour: red", "Yours colour: blue", "Theirs colour: green"}; !slices.Equal(sides, want) {
		t.Errorf("the conflict: got %q, want %q", sides, want)
	}
	tab.accessible()
	tab.click("radio", "Yours")
	tab.click("button", "Take the merged text")
	tab.click("button", "Review and save")
	tab.untilRole("dialog", "Save these changes?")
	tab.click("button", "Save")
	tab.untilText("Saved.")
	if got := p.data(t, "contested"); got["colour"] != "blue" || got["taste"] != "sour" {
		t.Errorf("after merging: got %v, want the own colour and the other's taste", got)
	}
}

// heldPath is a transport that sends the requests for one path only after release is closed.
type heldPath struct {
	http.RoundTripper
	path    string
	release chan struct{}
}

func (h heldPath) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == h.path {
		select {
		case <-h.release:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return h.RoundTripper.RoundTrip(r)
}

func peerAboutObject(t *testing.T, p *peer) {
	tab := newTab(t)
	// The dependent is found after the first drawing.
	listPods := make(chan struct{})
	tab.logIn(open(t, p.admin, func(c *console.Config) {
		c.Transport = heldPath{c.Transport, "/api/v1/namespaces/" + peerNamespace + "/pods", listPods}
	}))
	isDrawn := func(object string) string {
		return "document.querySelector('.graph a[href='+CSS.escape(" + quote(object) + ")+']')"
	}
	const owner, dependent = "/object/apps/v1/deployments/shop/web", "/object/core/v1/pods/shop/web-5d4f-x1"
	tab.view("/object/apps/v1/replicasets/" + peerNamespace + "/web-5d4f?tab=relations")
	tab.until("a link to the owner", isDrawn(owner))
	tab.untilText("1 owner, 0 direct dependents.") // the search has begun
	if eval[bool](tab, isDrawn(dependent)+" !== null") {
		t.Error("the dependent is drawn before the list of pods is answered")
	}
	close(listPods)
	tab.untilText("1 owner, 1 direct dependent.")
	for _, object := range []string{owner, dependent} {
		tab.until("a link to "+object, isDrawn(object))
	}
	tab.untilText("owned by Deployment web")
	tab.view("/object/apps/v1/deployments/" + peerNamespace + "/web?tab=events")
	tab.eventually("the event", func() bool {
		rows := tab.rows("Events")
		return len(rows) > 0 && rows[0][2] == "Scaled" && rows[0][3] == "<script>alert(1)</script>"
	})
	tab.harmless()
	tab.view("/object/apps/v1/deployments/" + peerNamespace + "/web?tab=rights")
	tab.untilPart("What I may do", "✓ delete")
	tab.untilPart("What I may do", "/scale")
	tab.view("/object/core/v1/secrets/" + peerNamespace + "/mine")
	tab.untilText("7 bytes")
	if eval[bool](tab, "document.getElementById('app').innerHTML.includes('hunter2')") {
		t.Error("the value of the secret is in the page, want it hidden")
	}
	tab.click("button", "Decode password")
	tab.untilText("hunter2")
	tab.noFailures()
}

func peerAccess(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	tab.view("/access?user=mia&namespace=" + peerNamespace)
	tab.untilRole("grid", "Rights of mia")
	for _, want := range []string{"mia may get configmaps", "mia may not watch configmaps", "mia may for some names get secrets", "mia may not list secrets", "mia may not get deployments", "mia may create selfsubjectreviews"} {
		if len(tab.role("button", want)) != 1 {
			t.Errorf("the matrix has no cell %q", want)
		}
	}
	tab.click("button", "mia may not delete configmaps")
	tab.untilText("No: mia cannot delete configmaps in namespace " + peerNamespace)
	near := tab.rows("May they delete configmaps in namespace shop?")
	if len(near) == 0 || !strings.Contains(near[0][0], "rights-of-mia") || !strings.Contains(near[0][3], `verb "delete"`) {
		t.Errorf("closest: got %q, want rights-of-mia, which lacks the verb", near)
	}
	tab.untilText("Kubernetes does not tell why.")
	tab.accessible()
	// The suggestion allows exactly that.
	applyRBAC(t, p.api, peerNamespace, tab.code("This would allow exactly that"))
	tab.click("button", "Close")
	tab.eventually("the suggested role", func() bool {
		tab.view("/access")
		tab.view("/access?user=mia&namespace=" + peerNamespace)
		return len(tab.role("button", "mia may delete configmaps")) == 1
	})
	tab.click("button", "mia may for some names get secrets")
	tab.set("textbox", "Name of one object", "mine")
	tab.untilText("Yes: mia can get secrets mine in namespace " + peerNamespace)
	if rows := tab.rows("May they get secrets in namespace shop?"); len(rows) == 0 || !strings.Contains(rows[0][0], "rights-of-mia") || rows[0][3] != "get secrets named mine" {
		t.Errorf("allowed by: got %q, want rights-of-mia and its rule", rows)
	}
	tab.click("button", "Close")

	tab.view("/access?namespace=" + peerNamespace + "&can=get&resource=secrets&name=mine")
	tab.untilPart("Who can", "can get secrets mine in namespace "+peerNamespace)
	for who, by := range map[string]string{"mia": "rights-of-mia", "system:masters": "cluster-admin", `<script>alert(1)</script>\u202eresu`: "rights-of-hostile"} {
		if row := tab.row("Who can", who); len(row) != 4 || !strings.Contains(row[1], by) {
			t.Errorf("who can get the secret: got %q for %s, want it by %s", row, who, by)
		}
	}
	if row := tab.row("Who can", "kim"); row != nil {
		t.Errorf("who can get the secret: got %q, want not kim", row)
	}
	tab.harmless()
	tab.view("/access?user=" + url.QueryEscape("<script>alert(1)</script>\u202eresu") + "&namespace=" + peerNamespace)
	// The name fits into no header: the server is asked about each request.
	tab.until("the rights", "document.querySelector('button.cell.no[aria-label$=\" may not list secrets\"]')")
	tab.harmless()
	tab.noFailures()
}

func peerAPIs(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	n := 0
	tab.eventually("the policy refuses", func() bool {
		n++
		_, err := p.api.CoreV1().ConfigMaps(peerNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("evil-%d", n)}}, metav1.CreateOptions{})
		return err != nil
	})
	group := func(name string) string {
		return strings.Join(strings.Fields(eval[string](tab, "[...document.querySelectorAll('section[aria-label=Groups] details')].find((d) => d.querySelector('strong').innerText === "+quote(name)+")?.innerText || ''")), " ")
	}
	tab.view("/apis")
	tab.eventually("the group of the definition", func() bool {
		return strings.HasPrefix(group("shop.example.com"), "shop.example.com v1v1alpha1") || strings.HasPrefix(group("shop.example.com"), "shop.example.com v1 v1alpha1")
	})
	tab.eventually("the use of a group", func() bool { return strings.Contains(group("apps"), "requests") })
	tab.eventually("the API without a server", func() bool {
		return strings.Contains(group("away.example.com"), "not available") && strings.Contains(group("away.example.com"), "by shop/no-such-service")
	})
	if got := group("apps"); strings.Contains(got, "not available") {
		t.Errorf("apps: got %q, want nothing wrong with it", got)
	}
	eval[any](tab, "[...document.querySelectorAll('section[aria-label=Groups] details')].find((d) => d.querySelector('strong').innerText === 'away.example.com').querySelector('summary').click()")
	tab.eventually("why the API is not available", func() bool {
		return strings.Contains(group("away.example.com"), `service/no-such-service in "shop" is not present`)
	})
	tab.accessible()
	tab.noFailures()

	tab.view("/apis?tab=definitions")
	tab.untilPart("Definitions", "now as v1; objects may be stored as v1")
	script := "[...document.querySelectorAll('section[aria-label=Definitions] summary')].find((s) => s.querySelector('code')?.innerText === 'spec')"
	tab.until("the field spec", script)
	eval[any](tab, script+".click()")
	for _, text := range []string{"size integer required", "self.size != 7", "<script>alert(1)</script>", `\u202egpj.exe`, "<img src=x onerror=alert(1)> string"} {
		tab.untilPart("Definitions", text)
	}
	tab.harmless()
	tab.accessible()

	tab.view("/apis?tab=admission")
	tab.eventually("the webhook and the policies", func() bool {
		hook, policy, idle := tab.row("Admission", "lost.example.com"), tab.row("Admission", "no-evil"), tab.row("Admission", "idle")
		return len(hook) == 9 && len(policy) == 7 && len(idle) == 7 && hook[4] != "–" && policy[4] != "–"
	})
	if row := tab.row("Admission", "lost.example.com"); !strings.HasPrefix(row[3], "let through") || row[7] == "0" || row[8] == "0" || row[6] != "0" {
		t.Errorf("the webhook that nobody serves: got %q, want failures that let through, and no rejections", row)
	}
	if row := tab.row("Admission", "no-evil"); row[1] != "validating" || !strings.Contains(row[3], "no-evil-here Deny") || row[4] == "0" || row[5] == "–" || row[6] == "0" {
		t.Errorf("the policy that denies: got %q, want checks, a mean time and denials", row)
	}
	if row := tab.row("Admission", "idle"); !strings.Contains(row[3], "it does nothing") {
		t.Errorf("the policy that nobody binds: got %q, want that it does nothing", row)
	}
	tab.noFailures()
}

func peerExplorer(t *testing.T, p *peer) {
	tab := p.openAs(t, p.admin)
	p.newSettings(t, "explored")
	path := "/api/v1/namespaces/" + peerNamespace + "/configmaps/explored"
	tab.view("/explorer")
	send := func(button, want string) {
		t.Helper()
		tab.click("button", button)
		tab.until("the answer "+want, "document.querySelector('section[aria-label=Answer] strong')?.innerText.startsWith("+quote(want)+") && !document.querySelector('section[aria-label=Answer] button')")
	}
	tab.set("combobox", "Path", path)
	send("Send", "200")
	tab.untilPart("Body of the answer", `"colour": "red"`)
	kubectl, curl := tab.code("kubectl"), tab.code("curl")
	env := []string{"TOKEN=" + p.admin.BearerToken, "CA=" + p.ca, "KUBECONFIG=" + writeKubeconfig(t, p.admin, "test")}
	for program, command := range map[string]string{"kubectl": kubectl, "curl": curl} {
		if strings.Contains(command, p.admin.BearerToken) {
			t.Errorf("the command of %s has the token in it:\n%s", program, command)
		}
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is not installed: its command is not run", program)
			continue
		}
		if out, err := sh(t, "sh", command, env...); err != nil || !strings.Contains(out, `"sweet"`) {
			t.Errorf("%s: got %q (%v), want the config map, of:\n%s", program, out, err, command)
		}
	}
	tab.set("combobox", "Method", "DELETE")
	send("Try", "200")
	p.data(t, "explored") // is there
	tab.set("combobox", "Path", path+"-not")
	send("Try", "404")
	tab.accessible()
}

func peerFewObjects(t *testing.T, p *peer) {
	tab := p.openAs(t, p.few)
	object := p.newSettings(t, "of-kim")
	tab.view("/objects/core/v1/configmaps?namespace=" + peerNamespace)
	tab.untilText("of-kim")
	newConfigMap(t, p.api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "aaa-by-another", Namespace: peerNamespace}})
	tab.untilText("aaa-by-another")
	tab.view("/objects/core/v1/configmaps")
	tab.untilText(`User "kim" cannot list resource "configmaps"`)
	tab.untilText("You may still be allowed to list one namespace: type its name above.")
	tab.view("/objects/core/v1/secrets?namespace=" + peerNamespace)
	tab.untilText(`User "kim" cannot list resource "secrets"`)

	tab.view(object)
	tab.retype(".yaml", "colour: red", "colour: blue")
	tab.click("button", "Review and save")
	tab.untilRole("dialog", "Save these changes?")
	tab.click("button", "Save")
	tab.untilText("Saved.")
	if got := p.data(t, "of-kim")["colour"]; got != "blue" {
		t.Errorf("after saving: got colour %s, want blue", got)
	}
	tab.click("button", "Delete…")
	tab.untilText(`User "kim" cannot delete resource "configmaps"`)
	if !eval[bool](tab, "document.querySelector('dialog button.danger').disabled") {
		t.Error("the button that deletes can be pressed after the dry run was refused")
	}
	tab.click("button", "Cancel")
	tab.view(object + "?tab=rights")
	tab.untilPart("What I may do", "✓ update")
	tab.untilPart("What I may do", "✕ delete")
	tab.view(object + "?tab=events")
	tab.untilText(`User "kim" cannot list resource "events"`)
	tab.view(object + "?tab=relations")
	tab.untilText("kinds that you may not list were left out.")
}

func peerFewAccess(t *testing.T, p *peer) {
	tab := p.openAs(t, p.few)
	hidden := []string{"rights-of-mia", "hunter2", "system:masters", "cluster-admin"}
	tab.view("/access?namespace=" + peerNamespace)
	tab.untilRole("button", "kim may update configmaps")
	tab.untilRole("button", "kim may not get secrets")
	tab.noFailures()
	tab.click("button", "kim may not get secrets")
	tab.untilText("No: kim cannot get secrets in namespace " + peerNamespace)
	tab.untilText("Kubernetes does not tell why.")
	tab.untilText(`Not read: clusterroles.rbac.authorization.k8s.io is forbidden: User "kim" cannot list resource "clusterroles"`)
	tab.noFailures()
	tab.checkHidden("why", hidden)
	tab.click("button", "Close")
	tab.view("/access?namespace=" + peerNamespace + "&can=get&resource=secrets&name=mine")
	tab.untilPart("Who can", `User "kim" cannot list resource "rolebindings"`)
	tab.checkHidden("who can", hidden)
	tab.view("/access?namespace=" + peerNamespace + "&user=mia")
	tab.until("the refusal", "document.querySelector('section[aria-label=\"What is allowed\"] .failure')?.innerText.includes('User \"kim\" cannot create resource \"subjectaccessreviews\"')")
	if got := tab.role("grid", "Rights of mia"); len(got) != 0 {
		t.Error("the rights of another user are shown, want them refused")
	}
	tab.checkHidden("rights of another", hidden)

	tab.view("/apis")
	tab.untilPart("Groups", "How much they are used is in the metrics, which you cannot read")
	tab.untilPart("Groups", "Their health is in APIServices, which you cannot read")
	tab.untilPart("Groups", "shop.example.com")
	tab.noFailures()
	tab.view("/explorer?path=/api/v1/namespaces/" + peerNamespace + "/secrets")
	tab.click("button", "Send")
	tab.untilPart("Answer", "403")
}

// peerWords visits what is Kelson's own: it is not there, and the page says so.
func peerWords(t *testing.T, p *peer) {
	object := p.newSettings(t, "without-history")
	for user, config := range map[string]*rest.Config{"admin": p.admin, "kim": p.few} {
		t.Run(user, func(t *testing.T) {
			tab := p.openAs(t, config)
			for _, test := range []struct{ address, text string }{
				{"/", "This server is not Kelson"},
				{"/time", "This server keeps no history that could be read."},
				{"/time?tab=undo", "This server keeps no history that could be read."},
				{object + "?tab=history", "This server keeps no history that could be read."},
				{"/apis?tab=findings", "This server keeps no findings."},
				{"/access?namespace=" + peerNamespace, "This server does not keep what it has denied."},
			} {
				tab.view(test.address)
				tab.untilText(test.text)
				tab.noFailures()
				tab.accessible()
			}
			if got := tab.role("link", "Time"); len(got) != 0 {
				t.Error("the views have Time among them, want it left out")
			}
			// Who has set a field is known without a history, by its managers.
			tab.view(object)
			tab.until("who set it", "[...document.querySelector('.editor-box .editor')?.shadowRoot?.querySelectorAll('.cm-gutter') || []].some((g) => g.innerText.includes('browser.test'))")
			tab.noFailures()
			tab.view("/")
			if user == "admin" {
				tab.untilRole("heading", "Flow control")
			} else {
				tab.untilText("which you may not read")
			}
		})
	}
}
