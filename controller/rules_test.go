package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/kelsontest"
)

// as returns a client for another user.
func (c *cluster) as(user string, groups ...string) kubernetes.Interface {
	c.Helper()
	config := c.Config()
	config.Impersonate.UserName, config.Impersonate.Groups = user, groups
	return must(kubernetes.NewForConfig(config))(c)
}

// swept waits until everything has been judged that could be judged by now.
func (c *cluster) swept() {
	c.Helper()
	c.configMap(ns, "sentinel", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "nobody", UID: "none"})
	c.until(configMaps, ns, func(objs map[string]*unstructured.Unstructured) bool { return objs[ns+"/sentinel"] == nil })
}

// An owner that does not exist dooms an object. So who may write to an object and
// not delete it must not be able to give it one: a node to its own Node
// (CVE-2025-5187), or anybody where permissions are enforced.
func TestNoConfusedDeputy(t *testing.T) {
	c := start(t, kelsontest.Admission(plugin.Config{MakeAccounts: true, Enable: []string{"NodeRestriction", "OwnerReferencesPermissionEnforcement"}}))
	must(c.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}))(t)
	c.configMap(ns, "mine")
	must(c.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"patch", "update", "create"}}},
	}, metav1.CreateOptions{}))(t)
	must(c.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "writer"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "writer"},
	}, metav1.CreateOptions{}))(t)

	const doom = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"absent","uid":"00000000-0000-0000-0000-000000000000"}]}}`
	refused := func(err error, want string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	_, err := c.as("system:node:n1", "system:nodes", "system:authenticated").CoreV1().Nodes().Patch(t.Context(), "n1", types.MergePatchType, []byte(doom), metav1.PatchOptions{})
	refused(err, `node "n1" is not allowed to modify ownerReferences`)
	_, err = c.as("writer", "system:authenticated").CoreV1().ConfigMaps(ns).Patch(t.Context(), "mine", types.MergePatchType, []byte(doom), metav1.PatchOptions{})
	refused(err, "cannot set an ownerRef on a resource you can't delete")
	c.swept()
	must(c.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{}))(t)
	c.exactly(ns, "mine")
}

// A cluster's object with an owner in a namespace stays, and an event says why
// it always will; every dependent in the wrong namespace has its event.
func TestInvalidOwners(t *testing.T) {
	c := start(t)
	c.namespace("other")
	owner := c.configMap("other", "owner")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "impossible", OwnerReferences: []metav1.OwnerReference{ownedBy(owner, false)}}}
	role = must(c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}))(t)
	want := map[string]string{string(role.UID): ""}
	for i := range 3 {
		child := c.configMap(ns, fmt.Sprint("child-", i), ownedBy(owner, false))
		want[string(child.UID)] = ns
	}
	c.until(events, ns, func(objs map[string]*unstructured.Unstructured) bool {
		seen := map[string]bool{}
		for _, e := range objs {
			uid, _, _ := unstructured.NestedString(e.Object, "involvedObject", "uid")
			where, ours := want[uid]
			if !ours {
				continue
			}
			seen[uid] = true
			text := fmt.Sprintf("ownerRef [v1/ConfigMap, namespace: %s, name: owner, uid: %s] does not exist in namespace %q", where, owner.UID, where)
			if e.Object["message"] != text || e.Object["reason"] != "OwnerRefInvalidNamespace" || e.Object["type"] != "Warning" {
				t.Errorf("event: %v", e.Object)
			}
		}
		return len(seen) == len(want)
	})
	c.exactly(ns)
	must(c.RbacV1().ClusterRoles().Get(t.Context(), "impossible", metav1.GetOptions{}))(t)
}

// An owner of a kind that nobody knows may exist: its dependent stays, and holds
// up another owner, until the kind is known.
func TestUnknownKind(t *testing.T) {
	c := start(t)
	root := c.configMap(ns, "root")
	unknown := metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "none"}
	c.configMap(ns, "child", ownedBy(root, true), unknown)
	c.delete(ns, "root", metav1.DeletePropagationForeground)
	c.swept()
	c.exactly(ns, "root", "child")
	c.define(apiextensions.NamespaceScoped)
	c.exactly(ns)
}

// Objects that own each other, or themselves, can be deleted in every way.
func TestCycles(t *testing.T) {
	c := start(t)
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		for _, size := range []int{1, 2, 3, 5} {
			objs := []*corev1.ConfigMap{c.configMap(ns, "c-0")}
			for i := 1; i < size; i++ {
				objs = append(objs, c.configMap(ns, fmt.Sprint("c-", i), ownedBy(objs[i-1], true)))
			}
			last := objs[size-1]
			patch := fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"blockOwnerDeletion":true}]}}`, last.Name, last.UID)
			must(c.CoreV1().ConfigMaps(ns).Patch(t.Context(), "c-0", types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(t)
			c.swept()
			if got := must(c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{}))(t); len(got.Items) != size+1 {
				t.Fatalf("of a cycle of %d there are %d before anybody has deleted one", size, len(got.Items)-1)
			}
			began := time.Now()
			c.delete(ns, "c-0", policy)
			c.exactly(ns)
			t.Logf("%s, %d: %v", policy, size, time.Since(began))
		}
	}
}
