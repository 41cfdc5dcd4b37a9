package main

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/internal/peertest"
	"github.com/apikeel/kelson/kelsontest"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/serverflags"
	"github.com/apikeel/kelson/serverflags/stores"
	"github.com/apikeel/kelson/storage/etcd/etcdtest"
)

const patience = 30 * time.Second

func resourceOf(version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

func object(version, kind, name string, fields map[string]any) *unstructured.Unstructured {
	obj := map[string]any{"apiVersion": group + "/" + version, "kind": kind, "metadata": map[string]any{"name": name}}
	for k, v := range fields {
		obj[k] = v
	}
	return &unstructured.Unstructured{Object: obj}
}

// start runs a server with flags until the test ends, or stop is called.
func start(t *testing.T, server *kelson.Server, args ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	options := serverflags.New(server)
	options.Logs, options.Stores = t.Output(), stores.All("")
	flags := pflag.NewFlagSet("wardle", pflag.ContinueOnError)
	options.Bind(flags)
	if err := flags.Parse(append([]string{"--secure-port=0"}, args...)); err != nil {
		t.Fatal(err)
	}
	closeAll, err := options.Apply(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- errors.Join(server.Run(ctx), closeAll()) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestAlone uses the server as its administrator.
func TestAlone(t *testing.T) {
	server := newServer()
	start(t, server, "--data-dir", t.TempDir())
	admin, err := server.PKI.IssueClient("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(&rest.Config{Host: server.URL(), TLSClientConfig: rest.TLSClientConfig{
		CAData: server.PKI.CertificatePEM(), CertData: admin, KeyData: admin,
	}})
	if err != nil {
		t.Fatal(err)
	}
	exercise(t, client)
}

// exercise does what the sample API server is there to show.
func exercise(t *testing.T, client dynamic.Interface) {
	t.Helper()
	ctx := t.Context()
	oldFlunders := client.Resource(resourceOf("v1alpha1", "flunders")).Namespace("default")
	flunders := client.Resource(resourceOf("v1beta1", "flunders")).Namespace("default")
	fischers := client.Resource(resourceOf("v1alpha1", "fischers"))

	watch, err := flunders.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	// The default of v1alpha1, and the conversion between the two.
	if _, err := oldFlunders.Create(ctx, object("v1alpha1", "Flunder", "first", map[string]any{"spec": map[string]any{"reference": "x"}}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := flunders.Get(ctx, "first", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(got.Object, "spec", "flunderReference")
	kind, _, _ := unstructured.NestedString(got.Object, "spec", "referenceType")
	if name != "x" || kind != "Flunder" {
		t.Errorf("v1beta1 has %q, %q", name, kind)
	}
	select {
	case event := <-watch.ResultChan():
		if event.Type != "ADDED" || event.Object.(*unstructured.Unstructured).GetName() != "first" {
			t.Errorf("event %+v", event)
		}
	case <-time.After(patience):
		t.Error("no event")
	}

	_, err = flunders.Create(ctx, object("v1beta1", "Flunder", "bad", map[string]any{"spec": map[string]any{"flunderReference": "x", "fischerReference": "y"}}), metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("two references: %v", err)
	}

	if _, err := fischers.Create(ctx, object("v1alpha1", "Fischer", "fritz", map[string]any{"disallowedFlunders": []any{"bad"}}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = flunders.Create(ctx, object("v1beta1", "Flunder", "bad", nil), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a banned name: %v", err)
	}

	applied := object("v1beta1", "Flunder", "first", map[string]any{"spec": map[string]any{"flunderReference": "z"}})
	if _, err := flunders.Apply(ctx, "first", applied, metav1.ApplyOptions{FieldManager: "someone"}); !apierrors.IsConflict(err) {
		t.Errorf("applying a field of another: %v", err)
	}
	if got, err = flunders.Apply(ctx, "first", applied, metav1.ApplyOptions{FieldManager: "someone", Force: true}); err != nil {
		t.Fatal(err)
	}
	if name, _, _ := unstructured.NestedString(got.Object, "spec", "flunderReference"); name != "z" {
		t.Errorf("applied: %q", name)
	}
	if err := flunders.Delete(ctx, "first", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// TestBehind puts the server behind another one.
func TestBehind(t *testing.T) { behind(t, kelsontest.Start(t).Config()) }

// TestBehindKubeAPIServer puts it behind kube-apiserver, which KELSON_PEERS has.
func TestBehindKubeAPIServer(t *testing.T) {
	peertest.Binary(t, "kube-apiserver")
	behind(t, peertest.KubeAPIServer(t, etcdtest.Start(t).Endpoints()))
}

func behind(t *testing.T, parent *rest.Config) {
	kubeconfig := writeKubeconfig(t, parent)
	server := newServer()
	authority, err := pki.New("api.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	server.PKI = authority
	dir := t.TempDir()
	stop := start(t, server, "--kubeconfig", kubeconfig, "--data-dir", dir)
	register(t, parent, server.URL(), authority.CertificatePEM())

	client, err := dynamic.NewForConfig(parent)
	if err != nil {
		t.Fatal(err)
	}
	exercise(t, client)
	roles(t, parent)

	// Without the server its group is gone, and nothing else.
	stop()
	waitFor(t, client, "v1beta1", "False")
	if _, err := client.Resource(resourceOf("v1beta1", "flunders")).List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("listing without the server: %v", err)
	}
	all, err := kubernetes.NewForConfig(parent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := all.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}

	// With it, it is there again, and so is what was stored.
	again := newServer()
	again.PKI = authority
	u, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	start(t, again, "--kubeconfig", kubeconfig, "--data-dir", dir, "--secure-port", u.Port())
	waitFor(t, client, "v1beta1", "True")
	waitFor(t, client, "v1alpha1", "True")
	if _, err := client.Resource(resourceOf("v1alpha1", "fischers")).Get(t.Context(), "fritz", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// writeKubeconfig makes a file of a configuration.
func writeKubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData, InsecureSkipTLSVerify: config.Insecure}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: config.BearerToken, ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// register makes the service and the APIServices, and waits for them.
func register(t *testing.T, parent *rest.Config, address string, ca []byte) {
	t.Helper()
	ctx := t.Context()
	clients, err := kubernetes.NewForConfig(parent)
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(parent)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "api"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}
	if _, err := clients.CoreV1().Services("default").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	services := client.Resource(apiServices())
	for _, version := range []string{"v1alpha1", "v1beta1"} {
		_, err := services.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": version + "." + group},
			"spec": map[string]any{
				"group": group, "version": version, "groupPriorityMinimum": int64(1000), "versionPriority": int64(15), "caBundle": encode(ca),
				"service": map[string]any{"namespace": "default", "name": "api", "port": int64(port)},
			},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, client, "v1alpha1", "True")
	waitFor(t, client, "v1beta1", "True")
}

// roles checks that the roles of the parent count.
func roles(t *testing.T, parent *rest.Config) {
	t.Helper()
	ctx := t.Context()
	clients, err := kubernetes.NewForConfig(parent)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "reader"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := clients.CoreV1().ServiceAccounts("default").CreateToken(ctx, "reader", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(parent)
	cfg.BearerToken = token.Status.Token
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	flunders := client.Resource(resourceOf("v1beta1", "flunders")).Namespace("default")
	if _, err := flunders.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "flunders"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{group}, Resources: []string{"flunders"}}},
	}
	if _, err := clients.RbacV1().Roles("default").Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "flunders"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "flunders"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
	}
	if _, err := clients.RbacV1().RoleBindings("default").Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, func() (bool, any) {
		_, err := flunders.Get(ctx, "nobody", metav1.GetOptions{})
		return apierrors.IsNotFound(err), err
	})
}

func apiServices() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
}

// encode is how []byte is in JSON.
func encode(data []byte) string { return base64.StdEncoding.EncodeToString(data) }

// waitFor waits until an APIService is available, and its server can be reached, or
// until it is not.
func waitFor(t *testing.T, client dynamic.Interface, version, status string) {
	t.Helper()
	until(t, func() (bool, any) {
		service, err := client.Resource(apiServices()).Get(t.Context(), version+"."+group, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		conditions, _, _ := unstructured.NestedSlice(service.Object, "status", "conditions")
		return len(conditions) == 1 && conditions[0].(map[string]any)["status"] == status, conditions
	})
	until(t, func() (bool, any) {
		_, err := client.Resource(resourceOf(version, "flunders")).List(t.Context(), metav1.ListOptions{})
		return apierrors.IsServiceUnavailable(err) == (status == "False"), err
	})
}

// until tries until something is done.
func until(t *testing.T, try func() (done bool, last any)) {
	t.Helper()
	var last any
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true, func(context.Context) (done bool, _ error) {
		done, last = try()
		return done, nil
	})
	if err != nil {
		t.Fatalf("%v, last %v", err, last)
	}
}
