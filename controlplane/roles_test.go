package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/authz"
	"github.com/apikeel/kelson/authz/chain"
	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// gated is a backend whose events can be held back.
type gated struct {
	storage.Backend
	mu   sync.Mutex
	open chan struct{} // closed when events may pass
}

func (g *gated) gate() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// hold holds events back until the function that it returns is called.
func (g *gated) hold() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	open := make(chan struct{})
	g.open = open
	return func() { close(open) }
}

func (g *gated) Watch(ctx context.Context, prefix string, after int64) (storage.Watcher, error) {
	w, err := g.Backend.Watch(ctx, prefix, after)
	return &gatedWatcher{w, g}, err
}

type gatedWatcher struct {
	storage.Watcher
	g *gated
}

func (w *gatedWatcher) Next(ctx context.Context) (storage.Batch, error) {
	batch, err := w.Watcher.Next(ctx)
	select {
	case <-w.g.gate():
	case <-ctx.Done():
	}
	return batch, err
}

// cluster is a store of built-in kinds with authorization by it.
type cluster struct {
	t          testing.TB
	gated      *gated
	objects    *store.Store
	catalog    *resource.Catalog
	resources  *rest.Handler
	authorizer *chain.Chain
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	e := memory.New(memory.Options{})
	var err error
	open := make(chan struct{})
	close(open)
	c := &cluster{t: t, gated: &gated{Backend: e, open: open}}
	if c.objects, err = store.Open(t.Context(), c.gated, store.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.objects.Close(); e.Close() })
	c.resources = &rest.Handler{Catalog: func() *resource.Catalog { return c.catalog }, Store: c.objects}
	if c.authorizer, _, err = authorizers(chain.Config{Logger: slog.New(slog.DiscardHandler)}, c.resources, features.Gates{}); err != nil {
		t.Fatal(err)
	}
	if c.catalog, err = resource.NewCatalog(builtin.Groups(builtin.Config{})...); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *cluster) resource(group, name string) *store.Resource {
	r, ok := c.resources.Stored(group, name)
	if !ok {
		c.t.Fatalf("there are no %s", name)
	}
	return r
}

func (c *cluster) create(group, name string, obj resource.Object) {
	c.t.Helper()
	r := c.resource(group, name)
	if _, err := r.Create(c.t.Context(), r.Key(obj.GetNamespace(), obj.GetName()), obj, 0); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) delete(group, name, namespace, object string) {
	c.t.Helper()
	r := c.resource(group, name)
	if _, err := r.Delete(c.t.Context(), r.Key(namespace, object), func(*store.Record) error { return nil }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) may(ctx context.Context, user, verb, resource, name string) (bool, error) {
	u := &request.User{Name: user}
	if user == "system:node:n1" {
		u.Groups = []string{authz.Nodes}
	}
	d, _, err := c.authorizer.Authorize(ctx, &authz.Attributes{User: u, Verb: verb, IsResource: true, Namespace: "ns", Resource: resource, Name: name})
	return d == authz.Allow, err
}

func (c *cluster) want(user, verb, resource, name string, want bool) {
	c.t.Helper()
	if got, err := c.may(c.t.Context(), user, verb, resource, name); got != want || err != nil {
		c.t.Fatalf("%s %s %s: %v %v", user, verb, resource, got, err)
	}
}

func aRole(name string) *rbacv1.Role {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
}

func aBinding(name, user, role string) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role}, Subjects: []rbacv1.Subject{{Kind: "User", Name: user}}}
}

// TestNextDecision wants every acknowledged write to count at once, in spite
// of others that go on meanwhile.
func TestNextDecision(t *testing.T) {
	c := newCluster(t)
	c.create(rbacv1.GroupName, "roles", aRole("r"))
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			for i := range 100 {
				user := fmt.Sprintf("u-%d-%d", worker, i)
				r := c.resource(rbacv1.GroupName, "rolebindings")
				key := r.Key("ns", user)
				if _, err := r.Create(t.Context(), key, aBinding(user, user, "r"), 0); err != nil {
					t.Error(err)
				}
				if ok, err := c.may(t.Context(), user, "get", "pods", "p"); !ok || err != nil {
					t.Errorf("%s: not allowed after its binding was made: %v", user, err)
				}
				if _, err := r.Delete(t.Context(), key, func(*store.Record) error { return nil }); err != nil {
					t.Error(err)
				}
				if ok, err := c.may(t.Context(), user, "get", "pods", "p"); ok || err != nil {
					t.Errorf("%s: allowed after its binding is gone: %v", user, err)
				}
			}
		})
	}
	wait.Wait()
}

// TestDecisionWaits holds the events back: a decision must not be made without
// what has been acknowledged.
func TestDecisionWaits(t *testing.T) {
	c := newCluster(t)
	c.want("jane", "get", "pods", "p", false)
	release := c.gated.hold()
	c.create(rbacv1.GroupName, "roles", aRole("r"))
	c.create(rbacv1.GroupName, "rolebindings", aBinding("b", "jane", "r"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if ok, err := c.may(ctx, "jane", "get", "pods", "p"); ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("decided on less than was known: %v %v", ok, err)
	}
	// What the node graph is about has not changed, so it need not wait.
	if ok, err := c.may(t.Context(), "system:node:n1", "get", "nodes", "n1"); !ok || err != nil {
		t.Error(ok, err)
	}
	release()
	c.want("jane", "get", "pods", "p", true)
}

func TestNodeGraph(t *testing.T) {
	c := newCluster(t)
	const node = "system:node:n1"
	c.want(node, "get", "secrets", "s", false)
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PodSpec{NodeName: node,
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}}}}
	}
	c.create("", "pods", pod("other", "n2"))
	c.want(node, "get", "secrets", "s", false)
	c.create("", "pods", pod("p", "n1"))
	c.want(node, "get", "secrets", "s", true)
	c.delete("", "pods", "ns", "p")
	c.want(node, "get", "secrets", "s", false)
}

// TestLostPlace lets more happen than a log keeps.
func TestLostPlace(t *testing.T) {
	if testing.Short() {
		t.Skip("writes thousands of objects")
	}
	c := newCluster(t)
	c.create(rbacv1.GroupName, "roles", aRole("r"))
	c.create(rbacv1.GroupName, "rolebindings", aBinding("old", "old", "r"))
	c.want("old", "get", "pods", "p", true)
	c.delete(rbacv1.GroupName, "rolebindings", "ns", "old")
	r := c.resource(rbacv1.GroupName, "rolebindings")
	var wait sync.WaitGroup
	for worker := range 8 {
		wait.Go(func() {
			key := r.Key("ns", fmt.Sprint("b-", worker))
			for range 1100 {
				if _, err := r.Create(t.Context(), key, aBinding(fmt.Sprint("b-", worker), "new", "r"), 0); err != nil {
					t.Error(err)
				}
				if _, err := r.Delete(t.Context(), key, func(*store.Record) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	c.create(rbacv1.GroupName, "rolebindings", aBinding("new", "new", "r"))
	c.want("old", "get", "pods", "p", false)
	c.want("new", "get", "pods", "p", true)
}

func TestStoreEnds(t *testing.T) {
	c := newCluster(t)
	c.create(rbacv1.GroupName, "roles", aRole("r"))
	c.want("jane", "get", "pods", "p", false)
	c.objects.Close()
	if ok, err := c.may(t.Context(), "jane", "get", "pods", "p"); ok || err == nil {
		t.Errorf("decided by a store that is closed: %v %v", ok, err)
	}
}

// BenchmarkCurrent is what every decision pays to know that nothing changed.
func BenchmarkCurrent(b *testing.B) {
	c := newCluster(b)
	c.want("jane", "get", "pods", "p", false)
	b.ReportAllocs()
	for b.Loop() {
		if ok, _ := c.may(b.Context(), "jane", "get", "pods", "p"); ok {
			b.Fatal("allowed")
		}
	}
}
