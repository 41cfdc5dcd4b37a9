package controller_test

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
)

// folder is a server on a folder, without controllers.
func folder(dir string) []kelsontest.Option {
	return []kelsontest.Option{kelsontest.Folder(dir), kelsontest.NoControllers()}
}

func (c *cluster) end(namespace string) {
	c.Helper()
	if err := c.CoreV1().Namespaces().Delete(c.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

func TestNamespace(t *testing.T) {
	c := start(t)
	c.define(apiextensions.NamespaceScoped)
	c.namespace("ends")
	c.namespace("stays")
	for _, where := range []string{"ends", "stays"} {
		c.configMap(where, "settings")
		c.widget(where, "widget")
		must(c.CoreV1().Secrets(where).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{}))(t)
	}
	c.end("ends")
	c.gone("ends")
	c.exactly("stays", "settings")
	for _, r := range []string{"configmaps", "secrets", "serviceaccounts"} {
		list := must(c.dynamic.Resource(corev1.SchemeGroupVersion.WithResource(r)).Namespace("ends").List(t.Context(), metav1.ListOptions{}))(t)
		if len(list.Items) > 0 {
			t.Errorf("%d %s are left", len(list.Items), r)
		}
	}
	if list := must(c.dynamic.Resource(widgets).List(t.Context(), metav1.ListOptions{}))(t); len(list.Items) != 1 {
		t.Errorf("%d widgets", len(list.Items))
	}
	// The name can be used again.
	c.namespace("ends")
}

// Finalizers hold up the end of a namespace, which says so.
func TestNamespaceHeld(t *testing.T) {
	c := start(t)
	c.namespace("held")
	c.configMap("held", "a")
	c.configMap("held", "b")
	c.finalizers("held", "a", "example.com/x")
	c.finalizers("held", "b", "example.com/x", "example.com/y")
	c.end("held")
	says := func(want ...string) {
		t.Helper()
		c.until(namespaces, "", func(objs map[string]*unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(objs["/held"].Object, "status", "conditions")
			var all []string
			for _, x := range conditions {
				x := x.(map[string]any)
				all = append(all, fmt.Sprintf("%v %v %v: %v", x["type"], x["status"], x["reason"], x["message"]))
			}
			return strings.Join(all, "\n") == strings.Join(append([]string{
				"NamespaceDeletionDiscoveryFailure False ResourcesDiscovered: All resources successfully discovered",
				"NamespaceDeletionGroupVersionParsingFailure False ParsedGroupVersions: All legacy kube types successfully parsed",
				"NamespaceDeletionContentFailure False ContentDeleted: All content successfully deleted, may be waiting on finalization",
			}, want...), "\n")
		})
	}
	says("NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: configmaps. has 2 resource instances",
		"NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/x in 2 resource instances, example.com/y in 1 resource instances")
	c.finalizers("held", "b")
	says("NamespaceContentRemaining True SomeResourcesRemain: Some resources are remaining: configmaps. has 1 resource instances",
		"NamespaceFinalizersRemaining True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: example.com/x in 1 resource instances")
	c.finalizers("held", "a")
	c.gone("held")
}

// A namespace is no quicker than its pods.
func TestNamespacePods(t *testing.T) {
	c := start(t)
	c.namespace("pods")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	must(c.CoreV1().Pods("pods").Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	c.configMap("pods", "settings")
	c.end("pods")
	c.until(corev1.SchemeGroupVersion.WithResource("pods"), "pods", func(objs map[string]*unstructured.Unstructured) bool {
		return objs["pods/web"].GetDeletionTimestamp() != nil
	})
	c.until(namespaces, "", func(objs map[string]*unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(objs["/pods"].Object, "status", "conditions")
		return len(conditions) > 0
	})
	must(c.CoreV1().ConfigMaps("pods").Get(t.Context(), "settings", metav1.GetOptions{}))(t)
	now := int64(0) // as the kubelet does when containers have ended
	if err := c.CoreV1().Pods("pods").Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.gone("pods")
}

func TestNamespaceQuick(t *testing.T) {
	c := start(t)
	c.namespace("warm")
	c.end("warm")
	c.gone("warm")
	c.namespace("empty")
	c.until(configMaps, "empty", func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 1 })
	w := must(c.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{FieldSelector: selectName("empty")}))(t)
	defer w.Stop()
	began := time.Now()
	c.end("empty")
	for e := range w.ResultChan() {
		if e.Type == "DELETED" {
			break
		}
	}
	t.Logf("gone after %v", time.Since(began))
}

func TestNamespaceMany(t *testing.T) {
	objects := testsize.Pick(2_000, 10_000, 10_000)
	c := start(t)
	c.namespace("many")
	var all sync.WaitGroup
	for w := range 16 {
		all.Go(func() {
			for i := w; i < objects; i += 16 {
				c.configMap("many", fmt.Sprint("c-", i))
			}
		})
	}
	all.Wait()
	began, used := time.Now(), cpu(t)
	c.end("many")
	c.gone("many")
	t.Logf("gone after %v, %v of CPU", time.Since(began), cpu(t)-used)
}

func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A server that is stopped while controllers work stops, and another goes on
// where it ended.
func TestStopBusy(t *testing.T) {
	dir := t.TempDir()
	t.Run("before", func(t *testing.T) {
		c := start(t, kelsontest.Folder(dir))
		c.namespace("busy")
		root := c.configMap(ns, "root")
		for i := range 100 {
			c.configMap("busy", fmt.Sprint("c-", i))
			c.configMap(ns, fmt.Sprint("d-", i), ownedBy(root, true))
		}
		c.end("busy")
		c.delete(ns, "root", metav1.DeletePropagationForeground)
		c.Stop()
	})
	c := start(t, kelsontest.Folder(dir))
	c.gone("busy")
	c.exactly(ns)
}
