package controller_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/kelsontest"
)

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// another starts a server that keeps widgets behind c, and returns it with a
// switch that makes it dead.
func (c *cluster) another(t *testing.T) (*cluster, *atomic.Bool) {
	t.Helper()
	behind := start(t, kelsontest.NoControllers())
	behind.define(apiextensions.NamespaceScoped)
	address := must(url.Parse(behind.URL()))(t)
	proxy := httputil.NewSingleHostReverseProxy(address)
	proxy.Transport = must(rest.TransportFor(behind.Config()))(t)
	proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0)
	dead := &atomic.Bool{}
	door := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	door.StartTLS()
	t.Cleanup(door.Close)
	t.Cleanup(func() { c.Stop() }) // who watches goes first
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	must(c.CoreV1().Services(ns).Create(t.Context(), service, metav1.CreateOptions{}))(t)
	port := must(strconv.Atoi(must(url.Parse(door.URL))(t).Port()))(t)
	must(c.dynamic.Resource(apiServices).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.example.com"},
		"spec": map[string]any{
			"group": "example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(15),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": ns, "name": "api", "port": int64(port)},
		},
	}}, metav1.CreateOptions{}))(t)
	c.until(apiServices, "", func(objs map[string]*unstructured.Unstructured) bool {
		return availability(objs["/v1.example.com"]) == "True"
	})
	return behind, dead
}

// availability is what an APIService says of its server.
func availability(service *unstructured.Unstructured) any {
	conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
	if len(conditions) == 0 {
		return nil
	}
	return conditions[0].(map[string]any)["status"]
}

func ofWidget(w *unstructured.Unstructured) metav1.OwnerReference {
	block := true
	return metav1.OwnerReference{APIVersion: w.GetAPIVersion(), Kind: w.GetKind(), Name: w.GetName(), UID: w.GetUID(), BlockOwnerDeletion: &block}
}

// Objects of another server own and are owned like others.
func TestRemoteOwners(t *testing.T) {
	c := start(t)
	c.another(t)
	root := c.configMap(ns, "root")
	w := c.widget(ns, "widget", ownedBy(root, true))
	c.configMap(ns, "leaf", ofWidget(w))
	kept := c.configMap(ns, "kept")
	c.widget(ns, "released", ownedBy(kept, true))
	c.delete(ns, "root", metav1.DeletePropagationForeground)
	c.exactly(ns, "kept")
	c.until(widgets, ns, func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 1 })
	c.delete(ns, "kept", metav1.DeletePropagationOrphan)
	c.exactly(ns)
	c.until(widgets, ns, func(objs map[string]*unstructured.Unstructured) bool {
		return len(objs) == 1 && len(objs[ns+"/released"].GetOwnerReferences()) == 0
	})
}

// A namespace ends with what other servers keep in it. One that does not answer
// is in the way, and the namespace says so, until it answers or is taken away.
func TestRemoteContent(t *testing.T) {
	c := start(t)
	behind, dead := c.another(t)
	for _, name := range []string{"first", "second", "third"} {
		behind.namespace(name)
		c.namespace(name)
		c.widget(name, "widget")
		c.configMap(name, "settings")
	}
	c.end("first")
	c.gone("first")
	behind.until(widgets, "", func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 2 })

	die := func() {
		t.Helper()
		dead.Store(true)
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, deadline, true, func(ctx context.Context) (bool, error) {
			// It is found out when somebody asks.
			_, _ = c.dynamic.Resource(widgets).List(ctx, metav1.ListOptions{})
			s, err := c.dynamic.Resource(apiServices).Get(ctx, "v1.example.com", metav1.GetOptions{})
			return err == nil && availability(s) == "False", err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	die()
	blocked := func(name string) {
		t.Helper()
		c.end(name)
		want := "NamespaceDeletionDiscoveryFailure True DiscoveryFailed: Discovery failed for some groups, 1 failing: " +
			"unable to retrieve the complete list of server APIs: example.com/v1: stale GroupVersion discovery: example.com/v1"
		c.until(namespaces, "", func(objs map[string]*unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(objs["/"+name].Object, "status", "conditions")
			if len(conditions) == 0 {
				return false
			}
			x := conditions[0].(map[string]any)
			return fmt.Sprintf("%v %v %v: %v", x["type"], x["status"], x["reason"], x["message"]) == want
		})
		c.exactly(name) // what can go, goes
	}
	blocked("second")
	dead.Store(false)
	c.gone("second")
	behind.until(widgets, "", func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 1 })

	die()
	blocked("third")
	if err := c.dynamic.Resource(apiServices).Delete(t.Context(), "v1.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.gone("third")
}
