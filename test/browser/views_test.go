package browser

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/kelsontest"
)

// newNamespace creates a namespace for a test.
func newNamespace(t *testing.T, c *kubernetes.Clientset, name string) string {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return name
}

func newConfigMap(t *testing.T, c *kubernetes.Clientset, m *corev1.ConfigMap) {
	t.Helper()
	if _, err := c.CoreV1().ConfigMaps(m.Namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// fill creates n config maps, several at a time.
func fill(t *testing.T, c *kubernetes.Clientset, namespace string, n int) {
	t.Helper()
	var group sync.WaitGroup
	errs := make(chan error, 16)
	for worker := range 16 {
		group.Go(func() {
			for i := worker; i < n; i += 16 {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("entry-%06d", i)}, Data: map[string]string{"n": fmt.Sprint(i)}}
				if _, err := c.CoreV1().ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

func TestObjectsByKeyboard(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "keyboard")
	fill(t, api, namespace, 30)
	c := open(t, s.Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	tab.view("/objects/core/v1/configmaps?namespace=" + namespace)
	tab.untilText("entry-000007")
	tab.accessible()
	// What others do is seen without asking.
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "aaa-new", Namespace: namespace}})
	tab.untilText("aaa-new")
	if err := api.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "aaa-new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	tab.until("the row is gone", "!document.body.innerText.includes('aaa-new')")

	tab.shortcut("/")
	if role, name := tab.focused(); role != "searchbox" && role != "textbox" || !strings.Contains(name, "Filter rows") {
		t.Errorf("after /, %s %q has the focus, want the filter of rows", role, name)
	}
	tab.press("entry-000013")
	tab.until("one row", "document.querySelectorAll('[role=grid] [role=row]:not([hidden])').length && !document.body.innerText.includes('entry-000014')")
	for range 40 { // to the grid
		tab.press("\t")
		if role, _ := tab.focused(); role == "grid" {
			break
		}
	}
	tab.press(kb.ArrowDown, kb.Enter)
	tab.until("the object", "location.pathname === '/object/core/v1/configmaps/"+namespace+"/entry-000013'")
	tab.untilRole("heading", "entry-000013")
	tab.untilRole("tab", "YAML")
	tab.accessible()
	tab.tabTo("tab", "YAML")
	for range 4 { // every tab has something to show
		tab.press(kb.ArrowRight)
		tab.until("a panel", "document.querySelector('[role=tabpanel]')?.innerText.trim() && !document.querySelector('main .loading')")
		tab.accessible()
	}
}

// hostileTexts are what objects may have in them.
var hostileTexts = []string{
	`<script>alert(1)</script>`, `<img src=x onerror=alert(1)>`, `javascript:alert(1)`, `</textarea><script>alert(1)</script>`, "\u202egpj.exe", `${alert(1)}`, `{{constructor.constructor('alert(1)')()}}`,
	strings.Repeat("long", 2000), "line\nline", "\x1b[31mred", "🧨\u200d", "שלום עולם",
}

func TestHostileContent(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "hostile-"+strings.Repeat("n", 55))
	name := strings.Repeat("long.", 50) + "abc"
	annotations, data := map[string]string{}, map[string]string{}
	for i, text := range hostileTexts {
		annotations[fmt.Sprintf("example.com/a%d", i)] = text
		data[fmt.Sprintf("key-%d", i)] = text
	}
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: annotations, Labels: map[string]string{"l": strings.Repeat("x", 63)}}, Data: data})
	for i, text := range hostileTexts {
		event := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("event-%d", i), Namespace: namespace}, Message: text[:min(len(text), 1000)], Reason: "Hostile", Type: "Warning",
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, Namespace: namespace}, LastTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "<script>alert(1)</script>"},
		}
		if _, err := api.CoreV1().Events(namespace).Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// Users have names as well.
	_, _ = client(t, s.User(`<script>alert(1)</script>`, "\u202eadmins")).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})

	c := open(t, s.Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	object := "/object/core/v1/configmaps/" + namespace + "/" + name
	for _, phone := range []bool{false, true} {
		if phone {
			tab.size(390, 844, true)
		}
		for _, address := range []string{
			"/", "/objects/core/v1/configmaps?namespace=" + namespace, "/objects/core/v1/events?namespace=" + namespace, object, object + "?tab=events", object + "?tab=history", object + "?tab=access",
			"/access?user=" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "/apis", "/explorer?path=%3Cscript%3E", "/time?namespace=" + namespace,
		} {
			tab.view(address)
			if got := eval[int](tab, "document.querySelectorAll('main script, main img[src=x], main [onerror], main a[href^=javascript]').length"); got != 0 {
				t.Errorf("%s: %d elements came from the content of objects, want none", address, got)
			}
			if got := eval[int](tab, "document.scrollingElement.scrollWidth"); phone && got > 390 {
				t.Errorf("%s on a phone: the page is %d wide, want 390", address, got)
			}
		}
	}
}

func TestTwoUsers(t *testing.T) {
	t.Parallel()
	s := server(t)
	api := client(t, s.Config())
	namespace := newNamespace(t, api, "two-users")
	newConfigMap(t, api, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-the-shop", Namespace: namespace}})
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: namespace}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"get", "list", "watch"}}}}
	if _, err := api.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader", Namespace: namespace}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}}}
	if _, err := api.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	admin, jane := newTab(t), newTab(t)
	admin.logIn(open(t, s.Config(), nil))
	jane.logIn(open(t, s.User("jane"), nil))
	for _, tab := range []*tab{admin, jane} {
		tab.view("/objects/core/v1/configmaps?namespace=" + namespace)
		tab.untilText("of-the-shop")
	}
	admin.view("/objects/core/v1/secrets?namespace=" + namespace)
	if got := admin.role("alert", ""); len(got) != 0 {
		t.Error("the administrator sees an alert, want a list")
	}
	jane.view("/objects/core/v1/secrets?namespace=" + namespace)
	jane.untilText(`secrets is forbidden: User "jane" cannot list resource "secrets"`)
	for _, address := range addresses { // no view is empty, or breaks
		jane.view(address)
		jane.accessible()
	}
}

func TestViewsShowWhatIsThere(t *testing.T) {
	t.Parallel()
	s := server(t)
	c := open(t, s.Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	for _, test := range []struct{ address, text string }{
		{"/", "Who uses the server"},
		{"/access", "What "},
		{"/apis", "apps"},
		{"/time", "Time"},
		{"/objects", "Objects"},
	} {
		tab.view(test.address)
		tab.untilText(test.text)
	}
	tab.view("/explorer")
	tab.on("combobox", "Path", "function() { this.focus(); this.select() }")
	tab.press("/version", kb.Enter)
	tab.untilText("gitVersion")
	tab.accessible()
}

func TestFirstViewIsSmall(t *testing.T) {
	t.Parallel()
	c := open(t, server(t).Config(), nil)
	tab := newTab(t)
	tab.logIn(c)
	tab.view("/")
	got := tab.wire.Load()
	t.Logf("the first view took %d KB", got>>10)
	if got == 0 || got > 300<<10 {
		t.Errorf("the first view took %d KB, want 300 at most", got>>10)
	}
}

// load lets clients with several names work until the test ends.
func load(t *testing.T, s *kelsontest.Server, namespace string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	for i, name := range []string{"system:kube-scheduler", "argocd", "prometheus", "system:serviceaccount:shop:web"} {
		api := client(t, s.User(name, "system:masters"))
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				switch {
				case n%20 == 0 && i < 2:
					scale := int32(n % 7)
					_, _ = api.AppsV1().Deployments(namespace).Patch(ctx, fmt.Sprintf("web-%d", n%5), "application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, scale), metav1.PatchOptions{})
				case n%3 == 0:
					_, _ = api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
				default:
					_, _ = api.AppsV1().Deployments(namespace).Get(ctx, fmt.Sprintf("web-%d", n%5), metav1.GetOptions{})
				}
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(20+30*i) * time.Millisecond):
				}
			}
		})
	}
}

// shop creates what a small shop has: deployments, pods, config maps and a secret.
func shop(t *testing.T, api *kubernetes.Clientset, namespace string) {
	t.Helper()
	ctx := t.Context()
	for i := range 5 {
		labels := map[string]string{"app": fmt.Sprintf("web-%d", i), "team": []string{"cart", "pay"}[i%2]}
		replicas := int32(3)
		pod := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: fmt.Sprintf("registry.example/web:1.%d", i)}}}}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Labels: labels}, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: pod}}
		if _, err := api.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for k := range 8 {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d-%c%d", i, 'a'+k, 3*k+i), Labels: labels}, Spec: pod.Spec}
			made, err := api.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending}[k%4]
			if _, err := api.CoreV1().Pods(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(t, api, namespace, 12)
}
