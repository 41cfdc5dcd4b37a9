package kubectl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/go-logr/logr"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// An operator as people write them: a kind of its own in two versions, with
// webhooks that convert, fill in and judge, and a reconciler that writes the
// status.
func TestOperator(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"crd.yaml": gadgetDefinition, "hooks.yaml": gadgetWebhooks} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := kelsontest.Start(t, kelsontest.CRDs(dir), kelsontest.Convert("gadgets.gadgets.example.com"), kelsontest.WebhookConfigurations(dir))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	o := &operator{T: t, ctx: ctx}
	ended := o.start(server)
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}()

	o.admits()
	o.converts()
	o.migrates()
}

type operator struct {
	*testing.T
	ctx context.Context
	// Client does not read from a cache.
	client.Client
}

func (o *operator) start(server *kelsontest.Server) (ended chan error) {
	ctrl.SetLogger(logr.Discard())
	hooks, err := server.Webhooks()
	if err != nil {
		o.Fatal(err)
	}
	scheme := gadgetScheme()
	if err := apiextensions.AddToScheme(scheme); err != nil {
		o.Fatal(err)
	}
	mgr, err := ctrl.NewManager(server.Config(), ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: hooks.Host, Port: hooks.Port, CertDir: hooks.CertDir}),
	})
	if err != nil {
		o.Fatal(err)
	}
	if err := ctrl.NewWebhookManagedBy(mgr, &gadget{}).WithDefaulter(judge{}).WithValidator(judge{}).Complete(); err != nil {
		o.Fatal(err)
	}
	cached := mgr.GetClient()
	err = ctrl.NewControllerManagedBy(mgr).For(&gadget{}).Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		var g gadget
		if err := cached.Get(ctx, req.NamespacedName, &g); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if area := g.Spec.Width * g.Spec.Height; g.Status.Area != area {
			g.Status.Area = area
			return reconcile.Result{}, cached.Status().Update(ctx, &g)
		}
		return reconcile.Result{}, nil
	}))
	if err != nil {
		o.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() { ended <- mgr.Start(o.ctx) }()
	if o.Client, err = client.New(server.Config(), client.Options{Scheme: scheme}); err != nil {
		o.Fatal(err)
	}
	o.until("the webhooks are served", func() bool { return mgr.GetWebhookServer().StartedChecker()(nil) == nil })
	return ended
}

// until waits for something.
func (o *operator) until(what string, done func() bool) {
	o.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-o.ctx.Done():
			o.Fatalf("%s: not in time", what)
		case <-tick.C:
		}
	}
}

func (o *operator) must(err error) {
	o.Helper()
	if err != nil {
		o.Fatal(err)
	}
}

func (o *operator) refused(err error, want string) {
	o.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		o.Errorf("%v, want %q", err, want)
	}
}

func newGadget(name string, width, height int64) *gadget {
	g := &gadget{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	g.Spec.Width, g.Spec.Height = width, height
	return g
}

func newOldGadget(name, size string) *oldGadget {
	g := &oldGadget{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	g.Spec.Size = size
	return g
}

// admits checks what the webhooks and the schema let pass.
func (o *operator) admits() {
	g := newGadget("one", 3, 0)
	o.must(o.Create(o.ctx, g))
	if g.Spec.Height != 1 {
		o.Errorf("height %d", g.Spec.Height)
	}
	o.refused(o.Create(o.ctx, newGadget("wide", 101, 1)), `admission webhook "judge.gadgets.example.com" denied the request: too wide: 101`)
	// Whichever version is used, the webhooks see the one that they want.
	o.refused(o.Create(o.ctx, newOldGadget("wide", "102x1")), "too wide: 102")
	o.refused(o.Create(o.ctx, newGadget("high", 1, 1000)), "spec.height: Forbidden: too high")
	o.until("the status of one is written", func() bool {
		o.must(o.Get(o.ctx, client.ObjectKeyFromObject(g), g))
		return g.Status.Area == 3
	})
	if g.Generation != 1 {
		o.Errorf("generation %d", g.Generation)
	}
}

// converts checks that both versions show the same objects.
func (o *operator) converts() {
	old := newOldGadget("two", "4x5")
	o.must(o.Create(o.ctx, old))
	if old.Spec.Size != "4x5" {
		o.Errorf("%+v", old.Spec)
	}
	g := newGadget("two", 0, 0)
	o.must(o.Get(o.ctx, client.ObjectKeyFromObject(g), g))
	if g.Spec.Width != 4 || g.Spec.Height != 5 {
		o.Errorf("%+v", g.Spec)
	}
	before := g.DeepCopyObject().(*gadget)
	g.Spec.Height = 6
	o.must(o.Patch(o.ctx, g, client.MergeFrom(before)))
	o.until("the status of two is written, and seen in the other version", func() bool {
		o.must(o.Get(o.ctx, client.ObjectKeyFromObject(old), old))
		return old.Status.Area == 24
	})
	if old.Spec.Size != "4x6" || old.Generation != 2 {
		o.Errorf("%+v, generation %d", old.Spec, old.Generation)
	}
	// The status has a path of its own in every version.
	old.Spec.Size, old.Status.Area = "9x9", 99
	o.must(o.Update(o.ctx, old))
	if old.Status.Area == 99 {
		o.Error("a write of the object has changed its status")
	}
	var list oldGadgetList
	o.must(o.List(o.ctx, &list))
	if len(list.Items) != 2 || list.Items[1].Spec.Size != "9x9" {
		o.Errorf("%+v", list.Items)
	}
}

// migrates makes the newer version the one that is stored, and takes the other
// away.
func (o *operator) migrates() {
	crd := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.gadgets.example.com"}}
	change := func(change func()) error {
		for {
			o.must(o.Get(o.ctx, client.ObjectKeyFromObject(crd), crd))
			change()
			if err := o.Update(o.ctx, crd); !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	o.must(change(func() { crd.Spec.Versions[0].Storage, crd.Spec.Versions[1].Storage = false, true }))
	if stored := fmt.Sprint(crd.Status.StoredVersions); stored != "[v1 v2]" {
		o.Errorf("stored versions %v", stored)
	}
	drop := func() { crd.Spec.Versions = crd.Spec.Versions[1:] }
	o.refused(change(drop), `status.storedVersions[0]: Invalid value: "v1"`)

	var list gadgetList
	o.must(o.List(o.ctx, &list))
	if len(list.Items) != 2 {
		o.Fatalf("%+v", list.Items)
	}
	for i := range list.Items {
		g := &list.Items[i]
		o.until(g.Name+" is stored anew", func() bool {
			o.must(o.Get(o.ctx, client.ObjectKeyFromObject(g), g))
			err := o.Update(o.ctx, g)
			if err != nil && !apierrors.IsConflict(err) {
				o.Fatal(err)
			}
			return err == nil
		})
	}
	o.until("nothing is said to be stored in the old version", func() bool {
		o.must(o.Get(o.ctx, client.ObjectKeyFromObject(crd), crd))
		crd.Status.StoredVersions = []string{"v2"}
		err := o.Status().Update(o.ctx, crd)
		if err != nil && !apierrors.IsConflict(err) {
			o.Fatal(err)
		}
		return err == nil
	})
	o.must(change(drop))
	o.refused(o.Get(o.ctx, client.ObjectKey{Namespace: "default", Name: "two"}, &oldGadget{}), "the server could not find the requested resource")
	g := newGadget("two", 0, 0)
	o.until("two has its area", func() bool {
		o.must(o.Get(o.ctx, client.ObjectKeyFromObject(g), g))
		return g.Status.Area == 81
	})
}
