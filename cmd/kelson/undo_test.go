package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apikeel/kelson/internal/polltest"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/randomtest"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

const widgetDefinition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// parallel calls f with the numbers below n, several at a time.
func parallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var group sync.WaitGroup
	slots, errs := make(chan struct{}, 16), make([]error, n)
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// objects returns the objects of a namespace by resource and name, without what differs
// between an object and the one that has come back. Owners are named, not numbered.
func (p *pastServer) objects(t *testing.T, namespace string, resources ...schema.GroupVersionResource) map[string]map[string]any {
	t.Helper()
	client := dynamic.NewForConfigOrDie(p.Config())
	all, names := map[string]map[string]any{}, map[string]string{}
	var items []unstructured.Unstructured
	for _, r := range resources {
		list, err := client.Resource(r).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range list.Items {
			all[r.Resource+"/"+item.GetName()] = item.Object
			names[string(item.GetUID())] = r.Resource + "/" + item.GetName()
			items = append(items, item)
		}
	}
	for _, item := range items {
		for i, owner := range item.GetOwnerReferences() {
			name, ok := names[string(owner.UID)]
			if !ok {
				t.Errorf("%s is owned by %s %s, whose UID nobody has", item.GetName(), owner.Kind, owner.Name)
			}
			item.Object["owner"+fmt.Sprint(i)] = name
		}
		meta := item.Object["metadata"].(map[string]any)
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "ownerReferences", "generation"} {
			delete(meta, field)
		}
		delete(item.Object, "status")
	}
	return all
}

// A deleted namespace comes back with its objects, and so does a definition with its own.
func TestUndoOfANamespace(t *testing.T) {
	t.Parallel()
	// Of the 14 addresses 12 are used: what gets another would often get that of a service that comes
	// back, if it did not come last.
	ctx, p := t.Context(), startPast(t, kelsontest.Configure(func(c *controlplane.Config) {
		c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}
	}))
	var definition unstructured.Unstructured
	if err := definition.UnmarshalJSON([]byte(widgetDefinition)); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(p.Config())
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(definitions).Create(ctx, &definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const ns = "shop"
	if _, err := p.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"team": "a"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n := testsize.Pick(110, 1100, 1100)
	polltest.Until(t, "widgets", func() bool {
		_, err := client.Resource(widgets).Namespace(ns).List(ctx, metav1.ListOptions{})
		return err == nil
	})
	parallel(t, n/10, func(i int) error {
		name := fmt.Sprintf("w%d", i)
		labels := map[string]string{"app": name}
		set, err := p.client.AppsV1().ReplicaSets(ns).Create(ctx, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		owner := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: set.UID}}
		for j := range 7 {
			m := configMap(fmt.Sprintf("a%d-%s", j, name), "k", strings.Repeat("x", j*100))
			m.OwnerReferences = owner
			if _, err := p.client.CoreV1().ConfigMaps(ns).Create(ctx, m, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		w := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": map[string]any{"size": int64(i), "big": int64(1) << 60}}}
		w.SetOwnerReferences(owner)
		if _, err := client.Resource(widgets).Namespace(ns).Create(ctx, w, metav1.CreateOptions{}); err != nil {
			return err
		}
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}}}
		if i < 10 {
			if _, err := p.client.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Annotations: map[string]string{"kubernetes.io/service-account.name": "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	polltest.Until(t, "a token", func() bool {
		_, err := p.client.CoreV1().Secrets(ns).Create(ctx, token, metav1.CreateOptions{})
		return err == nil
	})
	kinds := []schema.GroupVersionResource{{Group: "apps", Version: "v1", Resource: "replicasets"}, {Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "serviceaccounts"}, widgets}
	before := p.objects(t, ns, kinds...)
	if want := n * 10 / 11; len(before) < want {
		t.Fatalf("%d objects, want %d", len(before), want)
	}
	service, err := p.client.CoreV1().Services(ns).Get(ctx, "w3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nextMillisecond()
	moment := time.Now().Format(time.RFC3339Nano)
	nextMillisecond()
	if err := p.client.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the end of the namespace", func() bool {
		_, err := p.client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	// Somebody takes an address meanwhile.
	thief := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: corev1.ServiceSpec{ClusterIP: service.Spec.ClusterIP, Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := p.client.CoreV1().Services("default").Create(ctx, thief, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out, stderr, code := runKelson(t, p.admin, "undo", "-n", ns, "--to", moment, "--yes")
	t.Logf("%d objects came back in %v", len(before), time.Since(began))
	if code != 0 {
		t.Fatalf("exit code %d, want 0\n%s%s", code, out, stderr)
	}
	if !strings.Contains(stderr, "services/w3 -n shop: an address or a port that it had is taken") {
		t.Errorf("the address that is taken is not named:\n%s", stderr)
	}
	if !strings.Contains(out, "skip") || !strings.Contains(out, "secrets/token -n shop") {
		t.Errorf("the token is not named:\n%s", out)
	}
	after := p.objects(t, ns, kinds...)
	spec := after["services/w3"]["spec"].(map[string]any)
	if spec["clusterIP"] == service.Spec.ClusterIP {
		t.Errorf("the service has an address twice")
	}
	delete(before, "services/w3")
	delete(after, "services/w3")
	compareObjects(t, after, before)
	// Nothing of it is taken for an orphan.
	if got := p.must(t, "diff", "widgets", "-n", ns, "--from", moment); strings.Contains(got, "- widgets") {
		t.Errorf("widgets are gone again:\n%s", got)
	}

	// The definition goes too, with the widgets, and comes back with them.
	moment = time.Now().Format(time.RFC3339Nano)
	nextMillisecond()
	if err := client.Resource(definitions).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "the end of the definition", func() bool {
		_, err := client.Resource(definitions).Get(ctx, "widgets.example.com", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	out, stderr, code = runKelson(t, p.admin, "undo", "crd", "widgets.example.com", "--to", moment, "--yes")
	if code != 0 {
		t.Fatalf("undo of the definition: exit code %d, want 0\n%s%s", code, out, stderr)
	}
	out, stderr, code = runKelson(t, p.admin, "undo", "-n", ns, "--to", moment, "--yes")
	if code != 0 {
		t.Fatalf("undo of the widgets: exit code %d, want 0\n%s%s", code, out, stderr)
	}
	after = p.objects(t, ns, kinds...)
	delete(after, "services/w3")
	compareObjects(t, after, before)
}

func compareObjects(t *testing.T, got, want map[string]map[string]any) {
	t.Helper()
	wrong := 0
	for name, object := range want {
		if reflect.DeepEqual(got[name], object) {
			continue
		}
		if wrong++; wrong < 5 {
			a, _ := json.Marshal(got[name])
			b, _ := json.Marshal(object)
			t.Errorf("%s:\n got %s\nwant %s", name, a, b)
		}
	}
	for name := range got {
		if want[name] == nil {
			wrong++
			t.Errorf("%s is there, and was not", name)
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d objects are not what they were", wrong, len(want))
	}
}

// Random histories are undone at random moments, and compared with what was.
func TestUndoAtRandomMoments(t *testing.T) {
	t.Parallel()
	ctx, p, r := t.Context(), startPast(t), randomtest.New(t)
	api := p.client.CoreV1().ConfigMaps("default")
	read := func() map[string]string {
		list, err := api.List(ctx, metav1.ListOptions{LabelSelector: "random"})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, m := range list.Items {
			all[m.Name] = fmt.Sprint(m.Data)
		}
		return all
	}
	model := map[int64]map[string]string{}
	state := map[string]string{}
	var revisions []int64
	newest := int64(0)
	note := func(at int64, state map[string]string) {
		model[at] = maps.Clone(state)
		revisions = append(revisions, at)
	}
	for range testsize.Pick(3, 12, 40) {
		for range 15 {
			name, data := fmt.Sprintf("m%d", r.IntN(6)), map[string]string{"k": fmt.Sprint(r.IntN(1000))}
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"random": "yes"}}, Data: data}
			var err error
			if _, exists := state[name]; !exists {
				m, err = api.Create(ctx, m, metav1.CreateOptions{})
			} else if r.IntN(3) == 0 {
				err = api.Delete(ctx, name, metav1.DeleteOptions{})
				m = nil
			} else {
				m, err = api.Update(ctx, m, metav1.UpdateOptions{FieldManager: fmt.Sprintf("user%d", r.IntN(3))})
			}
			if err != nil {
				t.Fatal(err)
			}
			if delete(state, name); m != nil {
				state[name] = fmt.Sprint(m.Data)
				if at := revision(t, m.ResourceVersion); at > newest { // else nothing was written
					newest = at
					note(at, state)
				}
			}
		}
		if len(revisions) == 0 {
			continue
		}
		at := revisions[r.IntN(len(revisions))]
		out := p.must(t, "undo", "configmaps", "-n", "default", "-l", "random", "--to", fmt.Sprint(at), "--yes")
		if state = read(); !maps.Equal(state, model[at]) {
			t.Fatalf("undone to %d:\n got %v\nwant %v\n%s", at, state, model[at], out)
		}
		if again := p.must(t, "undo", "configmaps", "-n", "default", "-l", "random", "--to", fmt.Sprint(at), "--yes"); again != "" {
			t.Errorf("undo of what is undone: %s", again)
		}
	}
}

// Undo of what cannot come back says so, asks nothing, and fails.
func TestUndoOfNothingPossibleFails(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	api := p.client.CoreV1().ConfigMaps("default")
	m := configMap("held", "k", "v")
	m.Finalizers = []string{"example.com/held"}
	if _, err := api.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, "held", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	going, err := api.Get(ctx, "held", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ended := going.DeepCopy()
	ended.Finalizers = nil
	if _, err := api.Update(ctx, ended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{{"--yes"}, {"--dry-run"}, {}, {"--yes", "-o", "json"}} {
		out, stderr, code := runKelson(t, p.admin, append([]string{"undo", "configmap", "held", "--to", going.ResourceVersion}, more...)...)
		if code != 1 || !strings.Contains(stderr, "none of 1 objects can come back") || !strings.Contains(out, "skip") || strings.Contains(stderr, "[y/N]") {
			t.Errorf("undo %v: got exit code %d, %q, %q; want 1, the skipped object, and no question", more, code, out, stderr)
		}
	}
	if out, stderr, code := runKelson(t, p.admin, "undo", "configmap", "never", "--to", going.ResourceVersion, "--yes"); code != 0 {
		t.Errorf("nothing to undo: got exit code %d, want 0: %s%s", code, out, stderr)
	}
}

// create creates a role or a binding.
func (p *pastServer) create(ctx context.Context, obj any) (err error) {
	switch obj := obj.(type) {
	case *rbacv1.ClusterRole:
		_, err = p.client.RbacV1().ClusterRoles().Create(ctx, obj, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = p.client.RbacV1().ClusterRoleBindings().Create(ctx, obj, metav1.CreateOptions{})
	}
	return err
}

// Undo has the rights of the user, and nobody else's.
func TestUndoHeedsRights(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	api := p.client.CoreV1().ConfigMaps("default")
	first, err := api.Create(ctx, configMap("web", "a", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := first.DeepCopy()
	second.Data["a"] = "2"
	if _, err := api.Update(ctx, second, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The reader of everything may not write.
	reader := p.kubeconfig(t, p.User("reader", "readers"))
	for _, err := range []error{
		p.create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get", "list"}, APIGroups: []string{"*"}, Resources: []string{"*"}}, {Verbs: []string{"get"}, NonResourceURLs: []string{"*"}},
		}}),
		p.create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "reader", APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, stderr, code := runKelson(t, reader, "undo", "cm", "web", "-n", "default", "--to", first.ResourceVersion, "--yes")
	if code != 1 || !strings.Contains(stderr, "forbidden") || !strings.Contains(stderr, "0 done, 1 failed") {
		t.Errorf("undo as a reader: exit code %d, %q", code, stderr)
	}
	if now, err := api.Get(ctx, "web", metav1.GetOptions{}); err != nil || now.Data["a"] != "2" {
		t.Errorf("after it: %v %v, want it unchanged", now, err)
	}
}

// The pages are in no document that clients read.
func TestHistoryIsNotInDiscovery(t *testing.T) {
	t.Parallel()
	p := startPast(t)
	for _, path := range []string{"/", "/api", "/apis", "/openapi/v2", "/openapi/v3"} {
		body, err := p.client.RESTClient().Verb(http.MethodGet).AbsPath(path).DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"debug/kelson/history", "debug/kelson/at", "debug/kelson/diff"} {
			if strings.Contains(string(body), word) {
				t.Errorf("%s has %s", path, word)
			}
		}
	}
}

// TestUndoKeepsWhatOthersCreate has somebody create an object between the plan and the
// writes: it stays as it is.
func TestUndoKeepsWhatOthersCreate(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	api := p.client.CoreV1().ConfigMaps("default")
	first, err := api.Create(ctx, configMap("web", "a", "old"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	answer, other := io.Pipe() // asked when the plan is made
	var stdout, stderr bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"undo", "cm", "web", "-n", "default", "--to", first.ResourceVersion, "--kubeconfig", p.admin}, streams{in: answer, out: &stdout, err: &stderr})
	}()
	if _, err := other.Write([]byte("y")); err != nil { // returns when it is read
		t.Fatal(err)
	}
	if _, err := api.Create(ctx, configMap("web", "a", "theirs"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != exitError || !strings.Contains(stderr.String()+stdout.String(), "somebody has created it") {
		t.Errorf("got exit code %d, %s%s, want that somebody has created it", got, &stdout, &stderr)
	}
	if now, err := api.Get(ctx, "web", metav1.GetOptions{}); err != nil || now.Data["a"] != "theirs" {
		t.Errorf("got %v %v, want theirs", now, err)
	}
}

// TestUndoOfStatusThatIsData undoes a change of status where it is a field like others.
func TestUndoOfStatusThatIsData(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	var definition unstructured.Unstructured
	if err := definition.UnmarshalJSON([]byte(strings.ReplaceAll(widgetDefinition, `"properties":{"spec"`, `"properties":{"status"`))); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(p.Config())
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(definitions).Create(ctx, &definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "status": map[string]any{"v": "old"}}}
	api := client.Resource(widgets).Namespace("default")
	var first *unstructured.Unstructured
	polltest.Until(t, "the definition is served", func() (ok bool) {
		var err error
		first, err = api.Create(ctx, widget, metav1.CreateOptions{})
		return err == nil
	})
	next := first.DeepCopy()
	next.Object["status"] = map[string]any{"v": "new"}
	if _, err := api.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.must(t, "undo", "widget", "w", "-n", "default", "--to", first.GetResourceVersion(), "--yes")
	now, err := api.Get(ctx, "w", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedString(now.Object, "status", "v"); got != "old" {
		t.Errorf("got status %q, want old", got)
	}
}

// TestHistoryOfAFormerNamespace has who has rights in a namespace see nothing of one that
// had the same name before.
func TestHistoryOfAFormerNamespace(t *testing.T) {
	t.Parallel()
	ctx, p := t.Context(), startPast(t)
	namespaces := p.client.CoreV1().Namespaces()
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ten"}}
	makeSpace := func() {
		polltest.Until(t, "the namespace is made", func() bool {
			_, err := namespaces.Create(ctx, space, metav1.CreateOptions{})
			return err == nil
		})
	}
	makeSpace()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pw", Namespace: "ten"}, StringData: map[string]string{"p": "former"}}
	made, err := p.client.CoreV1().Secrets("ten").Create(ctx, secret, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(ctx, "ten", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	makeSpace()
	for _, err := range []error{
		p.create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "pages"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"*"}}}}),
		p.create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "pages"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "eve", APIGroup: rbacv1.GroupName}},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pages"}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.client.RbacV1().RoleBindings("ten").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "eve"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "eve", APIGroup: rbacv1.GroupName}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eve := p.kubeconfig(t, p.User("eve"))
	for _, args := range [][]string{
		{"history", "secret", "pw", "-n", "ten", "-o", "json"}, {"history", "-n", "ten", "--since", "1h"},
		{"get", "secrets", "-n", "ten", "--at", made.ResourceVersion, "-o", "json"}, {"diff", "-n", "ten", "--from", made.ResourceVersion, "--to", "now", "-o", "json"},
	} {
		if out, _, _ := runKelson(t, eve, args...); strings.Contains(out, "pw\"") || strings.Contains(out, "secrets/pw") || strings.Contains(out, "Zm9ybWVy") {
			t.Errorf("%v: got %s, want nothing of the former namespace", args, out)
		}
	}
	if out := p.must(t, "get", "secrets", "-n", "ten", "--at", made.ResourceVersion, "-o", "json"); !strings.Contains(out, "Zm9ybWVy") {
		t.Errorf("the administrator got %s, want the secret", out)
	}
}
