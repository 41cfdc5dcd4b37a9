package kubectl

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// testdata are the folders of the test kit's own tests.
const testdata = "../../kelsontest/testdata"

func widget(name string) *unstructured.Unstructured {
	w := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"size": int64(1)}}}
	w.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
	w.SetNamespace("default")
	w.SetName(name)
	return w
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it takes too long until %s", what)
		}
	}
}

// A manager with a reconciler and a webhook, on the test kit: the manager serves
// the webhook where the kit says, and survives what the kit does to it.
func TestKit(t *testing.T) {
	server := kelsontest.Start(t, kelsontest.CRDs(testdata+"/crds"), kelsontest.WebhookConfigurations(testdata+"/webhooks"))
	hooks, err := server.Webhooks()
	if err != nil {
		t.Fatal(err)
	}
	ctrl.SetLogger(logr.Discard())
	mgr, err := ctrl.NewManager(server.User("widget-controller", "system:masters"), ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.Host, Port: hooks.Port, CertDir: hooks.CertDir}),
	})
	if err != nil {
		t.Fatal(err)
	}
	mgr.GetWebhookServer().Register("/validate-widget", &webhook.Admission{Handler: admission.HandlerFunc(func(_ context.Context, req admission.Request) admission.Response {
		if req.Name == "bad" {
			return admission.Denied("bad is a bad name")
		}
		return admission.Allowed("")
	})})
	err = ctrl.NewControllerManagedBy(mgr).For(widget("")).Named("widgets").Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		w := widget("")
		if err := mgr.GetClient().Get(ctx, req.NamespacedName, w); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if ready, _, _ := unstructured.NestedBool(w.Object, "status", "ready"); ready {
			return reconcile.Result{}, nil
		}
		if err := unstructured.SetNestedField(w.Object, true, "status", "ready"); err != nil {
			return reconcile.Result{}, err
		}
		return reconcile.Result{}, mgr.GetClient().Status().Update(ctx, w)
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}()
	admin, err := client.New(server.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	created := func(name string) func() bool {
		return func() bool {
			err := admin.Create(ctx, widget(name))
			return err == nil || apierrors.IsAlreadyExists(err)
		}
	}
	ready := func(name string) func() bool {
		return func() bool {
			w := widget("")
			err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, w)
			ready, _, _ := unstructured.NestedBool(w.Object, "status", "ready")
			return err == nil && ready
		}
	}
	eventually(t, "the webhook is there", created("one"))
	eventually(t, "a widget is reconciled", ready("one"))
	if err := admin.Create(ctx, widget("bad")); !apierrors.IsForbidden(err) {
		t.Errorf("the webhook has not refused it: %v", err)
	}

	// The controller's first try gets lost, then the history does.
	fault := server.On(kelsontest.Rule{Resource: "widgets.example.com/status", User: "widget-controller"}, kelsontest.First(1, kelsontest.Drop()))
	eventually(t, "there is another", created("two"))
	eventually(t, "it is reconciled", ready("two"))
	if fault.Hits() < 2 {
		t.Errorf("it was written %d times", fault.Hits())
	}
	if err := server.CompactHistory(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is a third", created("three"))
	eventually(t, "it is reconciled", ready("three"))
}

// An envtest suite changes one variable, and its namespaces end.
func TestEnvtest(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "kelson")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "github.com/apikeel/kelson/cmd/kelson")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	assets := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), bin, "envtest-assets", assets).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("KUBEBUILDER_ASSETS", assets)
	ctrl.SetLogger(logr.Discard())
	env := &envtest.Environment{
		CRDDirectoryPaths: []string{testdata + "/crds"}, ErrorIfCRDPathMissing: true,
		WebhookInstallOptions:    envtest.WebhookInstallOptions{Paths: []string{testdata + "/webhooks"}},
		ControlPlaneStartTimeout: patience, ControlPlaneStopTimeout: patience,
	}
	config, err := env.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}()
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	user, err := env.AddUser(envtest.User{Name: "jane", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	jane, err := client.New(user.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}
	if err := jane.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", Namespace: "team"}}
	if err := c.Create(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	owned := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "owned", Namespace: "team", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID},
	}}}
	if err := c.Create(t.Context(), owned); err != nil {
		t.Fatal(err)
	}
	gone := func(obj client.Object) func() bool {
		return func() bool {
			return apierrors.IsNotFound(c.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
		}
	}
	if err := c.Delete(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dependent follows its owner", gone(owned))
	if err := c.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace ends", gone(ns))
	// The webhook is nowhere: it is asked, though.
	if err := c.Create(t.Context(), widget("any")); !apierrors.IsInternalError(err) {
		t.Errorf("the webhook was not asked: %v", err)
	}
	if _, err := os.Stat(filepath.Join(assets, "kubectl")); err != nil {
		t.Error(err)
	}
	http.DefaultClient.CloseIdleConnections()
}
