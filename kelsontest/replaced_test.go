package kelsontest_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/admission/plugin"
	"github.com/apikeel/kelson/kelsontest"
)

// meanwhile is an admission plugin that does something, once, while a write of a config map is admitted.
type meanwhile struct{ do atomic.Pointer[func()] }

func (*meanwhile) Name() string { return "Meanwhile" }

func (*meanwhile) Handles(t admission.Target) bool { return t.Resource == "configmaps" }

func (m *meanwhile) Validate(_ context.Context, a *admission.Attributes) error {
	if a.Namespace != "ns" || a.Name != "new" && a.Name != "there" {
		return nil // of a controller
	}
	if do := m.do.Swap(nil); do != nil {
		(*do)()
	}
	return nil
}

// remake deletes a namespace and makes the next one of that name, which has a config map of its own.
func remake(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	if err := c.CoreV1().Namespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(time.Millisecond) {
		_, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsAlreadyExists(err) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	theirs := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there"}, Data: map[string]string{"of": "the next"}}
	if _, err := c.CoreV1().ConfigMaps(name).Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A write that was allowed for a namespace is not done in the next one of that name.
func TestNextNamespaceGetsNothingOfTheLast(t *testing.T) {
	for name, write := range map[string]func(c kubernetes.Interface, ns string) error{
		"create": func(c kubernetes.Interface, ns string) error {
			_, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
			return err
		},
		"apply": func(c kubernetes.Interface, ns string) error {
			_, err := c.CoreV1().ConfigMaps(ns).Patch(t.Context(), "new", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"}}`), metav1.PatchOptions{FieldManager: "m"})
			return err
		},
		"update": func(c kubernetes.Interface, ns string) error {
			_, err := c.CoreV1().ConfigMaps(ns).Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there"}}, metav1.UpdateOptions{})
			return err
		},
		"patch": func(c kubernetes.Interface, ns string) error {
			_, err := c.CoreV1().ConfigMaps(ns).Patch(t.Context(), "there", types.MergePatchType, []byte(`{"data":{"of":"the last"}}`), metav1.PatchOptions{})
			return err
		},
		"delete": func(c kubernetes.Interface, ns string) error {
			return c.CoreV1().ConfigMaps(ns).Delete(t.Context(), "there", metav1.DeleteOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := &meanwhile{}
			s := kelsontest.Start(t, kelsontest.Admission(plugin.Config{}, m))
			c := client(t, s.Config())
			made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}
			if _, err := c.CoreV1().Namespaces().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.CoreV1().ConfigMaps("ns").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			do := func() { remake(t, c, "ns") }
			m.do.Store(&do)
			if err := write(c, "ns"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "deleted and made again") {
				t.Errorf("got %v, want a conflict with the new namespace", err)
			}
			theirs, err := c.CoreV1().ConfigMaps("ns").Get(t.Context(), "there", metav1.GetOptions{})
			if err != nil || theirs.Data["of"] != "the next" {
				t.Errorf("the object of the next namespace is %v, %v, want it unchanged", theirs, err)
			}
			if _, err := c.CoreV1().ConfigMaps("ns").Get(t.Context(), "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("the object of the last namespace: %v, want that there is none", err)
			}
		})
	}
}

// A request whose body arrives slowly is judged by the rights of its end, too.
func TestSlowBodyIsAuthorizedAgain(t *testing.T) {
	s := kelsontest.Start(t)
	c, jane := client(t, s.Config()), s.Token("jane")
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "writer"}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"create"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}
	if _, err := c.RbacV1().Roles("default").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "writer"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "writer"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "jane"}},
	}
	if _, err := c.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"metadata":{"name":"late"}}`
	fmt.Fprintf(conn, "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", jane.BearerToken, len(body))
	answers := bufio.NewReader(conn)
	// The server asks for the body when the request is authorized.
	if line, err := answers.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("got %q, %v, want that the server asks for the body", line, err)
	}
	_, _ = answers.ReadString('\n')
	begun := time.Now()
	_, _ = io.WriteString(conn, body[:10])
	if err := c.RbacV1().RoleBindings("default").Delete(t.Context(), "writer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Until(begun.Add(1100 * time.Millisecond))) // longer than a body may take
	_, _ = io.WriteString(conn, body[10:])
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusForbidden {
		t.Errorf("got %s: %s, want 403, as the right was taken away", resp.Status, text)
	}
}
