package kelsontest_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/polltest"
	"github.com/apikeel/kelson/kelsontest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

func snapshot(t testing.TB, s *kelsontest.Server) *kelsontest.Snapshot {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// informer follows the config maps in the namespace default.
func informer(t testing.TB, c kubernetes.Interface) cache.SharedIndexInformer {
	t.Helper()
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("default"))
	i := factory.Core().V1().ConfigMaps().Informer()
	factory.Start(stop)
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	polltest.Until(t, "the informer has all", i.HasSynced)
	return i
}

func TestRestore(t *testing.T) {
	s := kelsontest.Start(t)
	c := client(t, s.Config())
	maps := c.CoreV1().ConfigMaps("default")
	namespaces := c.CoreV1().Namespaces()
	create(t, c, "kept")
	create(t, c, "changed")
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	polltest.Until(t, "there is a service account", func() bool {
		_, err := c.CoreV1().ServiceAccounts("team").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	kept, err := maps.Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	snap := snapshot(t, s)
	seen := informer(t, c)
	for round := range 3 {
		if err := maps.Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Patch(t.Context(), "changed", "application/merge-patch+json", []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		create(t, c, "new")
		if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := namespaces.Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := s.Restore(snap); err != nil {
			t.Fatal(err)
		}
		if got := names(t, c); got != "changed kept" {
			t.Errorf("round %d: config maps are %q", round, got)
		}
		back, err := maps.Get(t.Context(), "kept", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if back.UID != kept.UID || back.ResourceVersion == kept.ResourceVersion {
			t.Errorf("round %d: back with uid %s at %s, it was %s at %s", round, back.UID, back.ResourceVersion, kept.UID, kept.ResourceVersion)
		}
		if cm, err := maps.Get(t.Context(), "changed", metav1.GetOptions{}); err != nil || len(cm.Data) > 0 {
			t.Errorf("round %d: changed is %v, %v", round, cm.Data, err)
		}
		polltest.Until(t, "the namespaces are as before", func() bool {
			_, err := namespaces.Get(t.Context(), "other", metav1.GetOptions{})
			ns, errTeam := namespaces.Get(t.Context(), "team", metav1.GetOptions{})
			return apierrors.IsNotFound(err) && errTeam == nil && ns.Status.Phase == corev1.NamespaceActive
		})
		polltest.Until(t, "the informer sees it", func() bool {
			keys := slices.Sorted(slices.Values(seen.GetStore().ListKeys()))
			return slices.Equal(keys, []string{"default/changed", "default/kept", "default/kube-root-ca.crt"})
		})
	}
}

func TestCompactHistory(t *testing.T) {
	s := kelsontest.Start(t)
	c := client(t, s.Config())
	create(t, c, "a")
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, c, "b")
	lists := s.Record(kelsontest.Rule{Resource: "configmaps", UserAgent: "kelsontest"})
	config := s.Config()
	config.UserAgent = "kelsontest-informer"
	seen := informer(t, client(t, config))
	w, err := c.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Type != "ADDED" {
		t.Fatalf("%v", e)
	}
	before := len(lists.Requests())
	if err := s.CompactHistory(); err != nil {
		t.Fatal(err)
	}
	if e, ok := <-w.ResultChan(); !ok || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
		t.Errorf("the watch gets %v", e)
	}
	old, err := c.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err == nil {
		e := <-old.ResultChan()
		old.Stop()
		err = apierrors.FromObject(e.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before gets %v", err)
	}
	_, err = c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, ResourceVersionMatch: "Exact"})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a list from before gets %v", err)
	}
	polltest.Until(t, "the informer begins anew", func() bool { return len(lists.Requests()) > before })
	create(t, c, "c")
	polltest.Until(t, "the informer sees it", func() bool {
		_, ok, _ := seen.GetStore().GetByKey("default/c")
		return ok
	})
}

func TestEndWatches(t *testing.T) {
	s := kelsontest.Start(t)
	c := client(t, s.Config())
	begun := s.Record(kelsontest.Rule{Verb: "watch", Resource: "configmaps", User: "kubernetes-admin"})
	var watches atomic.Int32
	seen := informer(t, c)
	if _, err := seen.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { watches.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	rule := kelsontest.Rule{Resource: "configmaps"}
	polltest.Until(t, "there is a watch", func() bool { return s.EndWatches(rule) == 1 })
	if n := s.EndWatches(kelsontest.Rule{Resource: "secrets"}); n != 0 {
		t.Errorf("%d watches of secrets", n)
	}
	polltest.Until(t, "there is another", func() bool { return len(begun.Requests()) > 1 })
	create(t, c, "a")
	polltest.Until(t, "the informer sees it", func() bool {
		_, ok, _ := seen.GetStore().GetByKey("default/a")
		return ok
	})
}

func BenchmarkRestore(b *testing.B) {
	s := kelsontest.Start(b)
	c := client(b, s.Config())
	snap := snapshot(b, s)
	before := cpu(b)
	for b.Loop() {
		for _, name := range []string{"a", "b", "c"} {
			create(b, c, name)
		}
		if err := s.Restore(snap); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "CPU-ms/op")
}

// Clients that finish namespaces themselves have time to do so.
func TestNamespaceDelay(t *testing.T) {
	s := kelsontest.Start(t, kelsontest.Configure(func(c *controlplane.Config) { c.NamespaceDelay = time.Hour }))
	c := client(t, s.Config())
	namespaces := c.CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ns, err := namespaces.Get(t.Context(), "team", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ns.Spec.Finalizers = nil
	if _, err := namespaces.Finalize(t.Context(), ns, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(t.Context(), "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("it is still there: %v", err)
	}
}
