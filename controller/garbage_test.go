package controller_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/internal/testsize"
	"github.com/apikeel/kelson/kelsontest"
)

// deadline is when a test gives up, on a machine that is busy.
const deadline = 60 * time.Second

const ns = "default"

func TestBackground(t *testing.T) {
	c := start(t)
	root := c.configMap(ns, "root")
	child := c.configMap(ns, "child", ownedBy(root, false))
	c.configMap(ns, "grandchild", ownedBy(child, true))
	c.configMap(ns, "bystander")
	c.delete(ns, "root", metav1.DeletePropagationBackground)
	c.exactly(ns, "bystander")
}

// An owner that is deleted in the foreground goes last, after those that block
// it.
func TestForeground(t *testing.T) {
	c := start(t)
	root := c.configMap(ns, "root")
	child := c.configMap(ns, "child", ownedBy(root, true))
	c.configMap(ns, "grandchild", ownedBy(child, true))
	c.configMap(ns, "loose", ownedBy(root, false))
	c.finalizers(ns, "grandchild", "example.com/hold")
	c.finalizers(ns, "loose", "example.com/hold")
	c.delete(ns, "root", metav1.DeletePropagationForeground)
	c.until(configMaps, ns, func(objs map[string]*unstructured.Unstructured) bool {
		return objs[ns+"/grandchild"].GetDeletionTimestamp() != nil && objs[ns+"/loose"].GetDeletionTimestamp() != nil
	})
	c.exactly(ns, "root", "child", "grandchild", "loose")
	c.finalizers(ns, "grandchild")
	c.exactly(ns, "loose")
	c.finalizers(ns, "loose")
	c.exactly(ns)
}

// A dependent that stops blocking, or is taken away, lets its owner go.
func TestUnblock(t *testing.T) {
	for name, patch := range map[string]string{
		"no owner":     `{"metadata":{"ownerReferences":null}}`,
		"not blocking": `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"root","uid":"%s","blockOwnerDeletion":false}]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			root := c.configMap(ns, "root")
			c.configMap(ns, "child", ownedBy(root, true))
			c.finalizers(ns, "child", "example.com/hold")
			c.delete(ns, "root", metav1.DeletePropagationForeground)
			c.until(configMaps, ns, func(objs map[string]*unstructured.Unstructured) bool {
				return objs[ns+"/child"].GetDeletionTimestamp() != nil
			})
			if strings.Contains(patch, "%s") {
				patch = fmt.Sprintf(patch, root.UID)
			}
			must(c.CoreV1().ConfigMaps(ns).Patch(t.Context(), "child", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			c.exactly(ns, "child")
		})
	}
}

func TestOrphan(t *testing.T) {
	c := start(t)
	root, other := c.configMap(ns, "root"), c.configMap(ns, "other")
	c.configMap(ns, "child", ownedBy(root, true))
	c.configMap(ns, "shared", ownedBy(root, true), ownedBy(other, true))
	c.delete(ns, "root", metav1.DeletePropagationOrphan)
	c.exactly(ns, "other", "child", "shared")
	child := must(c.CoreV1().ConfigMaps(ns).Get(t.Context(), "child", metav1.GetOptions{}))(t)
	shared := must(c.CoreV1().ConfigMaps(ns).Get(t.Context(), "shared", metav1.GetOptions{}))(t)
	if len(child.OwnerReferences) != 0 || len(shared.OwnerReferences) != 1 || shared.OwnerReferences[0].UID != other.UID {
		t.Errorf("references left: %v, %v", child.OwnerReferences, shared.OwnerReferences)
	}
}

// One owner of several keeps an object, and the reference to the other goes.
func TestSeveralOwners(t *testing.T) {
	c := start(t)
	a, b := c.configMap(ns, "a"), c.configMap(ns, "b")
	c.configMap(ns, "child", ownedBy(a, false), ownedBy(b, true))
	c.delete(ns, "a", metav1.DeletePropagationBackground)
	c.until(configMaps, ns, func(objs map[string]*unstructured.Unstructured) bool {
		refs := objs[ns+"/child"].GetOwnerReferences()
		return len(refs) == 1 && refs[0].UID == b.UID
	})
	c.delete(ns, "b", metav1.DeletePropagationForeground)
	c.exactly(ns)
}

// What refers to an owner that was never there goes; what refers to a kind that
// nobody knows, or in a way that cannot be, stays.
func TestAbsentOwner(t *testing.T) {
	c := start(t)
	c.configMap(ns, "absent", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "nobody", UID: "none"})
	real := c.configMap(ns, "real")
	impostor := ownedBy(real, false)
	impostor.UID = "another"
	c.configMap(ns, "impostor", impostor)
	c.configMap(ns, "unknown", metav1.OwnerReference{APIVersion: "example.org/v1", Kind: "Nothing", Name: "x", UID: "x"})
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "impossible", OwnerReferences: []metav1.OwnerReference{ownedBy(real, false)}}}
	must(c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}))(t)
	c.exactly(ns, "real", "unknown")
	c.delete(ns, "real", metav1.DeletePropagationBackground)
	c.exactly(ns, "unknown")
	must(c.RbacV1().ClusterRoles().Get(t.Context(), "impossible", metav1.GetOptions{}))(t)
}

// An owner that somebody has made up keeps its dependents if that is wanted, and
// one that is gone does not, whether it went before or after.
func TestInventedOwner(t *testing.T) {
	c := start(t, kelsontest.Configure(func(config *controlplane.Config) { config.InventedOwners = true }))
	invented := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never", UID: "never"}
	early, late := c.configMap(ns, "early"), c.configMap(ns, "late")
	c.delete(ns, "early", metav1.DeletePropagationBackground)
	c.configMap(ns, "kept", invented)
	c.configMap(ns, "of-early", ownedBy(early, false))
	c.configMap(ns, "of-late", ownedBy(late, false))
	c.exactly(ns, "late", "kept", "of-late")
	c.delete(ns, "late", metav1.DeletePropagationBackground)
	c.exactly(ns, "kept")
}

// An owner in another namespace is none, which an event tells.
func TestOtherNamespace(t *testing.T) {
	c := start(t)
	c.namespace("other")
	owner := c.configMap("other", "owner")
	child := c.configMap(ns, "child", ownedBy(owner, false))
	c.exactly(ns)
	c.exactly("other", "owner")
	c.until(events, ns, func(objs map[string]*unstructured.Unstructured) bool {
		for _, e := range objs {
			want := fmt.Sprintf("ownerRef [v1/ConfigMap, namespace: default, name: owner, uid: %s] does not exist in namespace \"default\"", owner.UID)
			if uid, _, _ := unstructured.NestedString(e.Object, "involvedObject", "uid"); uid == string(child.UID) {
				if e.Object["reason"] != "OwnerRefInvalidNamespace" || e.Object["message"] != want {
					t.Errorf("event: %v", e.Object)
				}
				return true
			}
		}
		return false
	})
}

// Kinds come and go, and own and are owned like others.
func TestCustomOwners(t *testing.T) {
	c := start(t)
	c.define(apiextensions.NamespaceScoped)
	root := c.configMap(ns, "root")
	w := c.widget(ns, "widget", ownedBy(root, true))
	block := true
	c.configMap(ns, "leaf", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: w.GetName(), UID: w.GetUID(), BlockOwnerDeletion: &block})
	c.delete(ns, "root", metav1.DeletePropagationForeground)
	c.exactly(ns)
}

// The objects that custom resources own go with the definition, and so do those of the next
// definition of the same name.
func TestOwnersGoWithTheirDefinition(t *testing.T) {
	c := start(t)
	for range 2 {
		c.define(apiextensions.NamespaceScoped)
		w := c.widget(ns, "widget")
		c.configMap(ns, "leaf", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: w.GetName(), UID: w.GetUID()})
		if err := c.dynamic.Resource(crds).Delete(c.Context(), "widgets.example.com", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.exactly(ns)
		c.until(crds, "", func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 0 })
	}
}

// What was deleted while no controller ran is found when one does.
func TestCatchUp(t *testing.T) {
	dir := t.TempDir()
	t.Run("before", func(t *testing.T) {
		c := start(t, folder(dir)...)
		root := c.configMap(ns, "root")
		for i := range 10 {
			c.configMap(ns, fmt.Sprint("child-", i), ownedBy(root, true))
		}
		c.delete(ns, "root", metav1.DeletePropagationBackground)
		kept := c.configMap(ns, "kept")
		c.configMap(ns, "of-kept", ownedBy(kept, true))
		front := c.configMap(ns, "front")
		c.configMap(ns, "of-front", ownedBy(front, true))
		c.delete(ns, "front", metav1.DeletePropagationForeground)
		c.namespace("ends")
		c.configMap("ends", "content")
		if err := c.CoreV1().Namespaces().Delete(t.Context(), "ends", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	c := start(t, folder(dir)[:1]...)
	c.exactly(ns, "kept", "of-kept")
	c.gone("ends")
}

// A tree of a thousand dependents.
func TestTree(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			leaves := testsize.Part(99, 4)
			c := start(t)
			root := c.configMap(ns, "root")
			var names []string
			var all sync.WaitGroup
			for i := range 10 {
				child := c.configMap(ns, fmt.Sprint("child-", i), ownedBy(root, true))
				names = append(names, child.Name)
				for j := range leaves {
					names = append(names, fmt.Sprintf("leaf-%d-%d", i, j))
				}
				all.Go(func() {
					for j := range leaves {
						c.configMap(ns, fmt.Sprintf("leaf-%d-%d", i, j), ownedBy(child, true))
					}
				})
			}
			all.Wait()
			began, used := time.Now(), cpu(t)
			c.delete(ns, "root", policy)
			if policy != metav1.DeletePropagationOrphan {
				names = nil
			}
			c.exactly(ns, names...)
			t.Logf("%v, %v of CPU", time.Since(began), cpu(t)-used)
		})
	}
}
