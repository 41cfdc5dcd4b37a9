package plugin

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/storage"
)

func TestNamespaces(t *testing.T) {
	going := newNamespace()
	going.Name, going.Status.Phase = "going", corev1.NamespaceTerminating
	objects := store("namespaces", newNamespace(), "namespaces", going)
	in := func(namespace string) resource.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "m"}}
	}
	ns := func(name string) resource.Object { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	for _, c := range []struct {
		plugin, name string
		write        write
		err          string
	}{
		{"NamespaceLifecycle", "active", write{op: admission.Create, resource: "configmaps", obj: in("ns")}, ""},
		{"NamespaceLifecycle", "missing", write{op: admission.Create, resource: "configmaps", obj: in("none")}, `namespaces "none" not found`},
		{"NamespaceLifecycle", "going", write{op: admission.Create, resource: "configmaps", obj: in("going")},
			`configmaps "m" is forbidden: unable to create new content in namespace going because it is being terminated`},
		{"NamespaceLifecycle", "update in going", write{op: admission.Update, resource: "configmaps", obj: in("going"), old: in("going")}, ""},
		{"NamespaceLifecycle", "subresource", write{op: admission.Create, resource: "pods/eviction", obj: in("none")}, `namespaces "none" not found`},
		{"NamespaceLifecycle", "review", write{op: admission.Create, resource: "localsubjectaccessreviews.authorization.k8s.io", obj: in("none")}, ""},
		{"NamespaceLifecycle", "of the cluster", write{op: admission.Create, resource: "nodes", obj: in("")}, ""},
		{"NamespaceLifecycle", "delete one", write{op: admission.Delete, resource: "namespaces", old: ns("x")}, ""},
		{"NamespaceLifecycle", "delete default", write{op: admission.Delete, resource: "namespaces", old: ns("default")}, `namespaces "default" is forbidden: this namespace may not be deleted`},
		{"NamespaceLifecycle", "delete kube-system", write{op: admission.Delete, resource: "namespaces", old: ns("kube-system")}, "may not be deleted"},
		{"NamespaceLifecycle", "delete kube-node-lease", write{op: admission.Delete, resource: "namespaces", old: ns("kube-node-lease")}, ""},
		{"NamespaceExists", "there", write{op: admission.Update, resource: "configmaps", obj: in("ns"), old: in("ns")}, ""},
		{"NamespaceExists", "missing", write{op: admission.Delete, resource: "configmaps", old: in("none")}, `namespaces "none" not found`},
		{"NamespaceExists", "itself", write{op: admission.Create, resource: "namespaces", obj: ns("none")}, ""},
	} {
		t.Run(c.plugin+"/"+c.name, func(t *testing.T) {
			_, err := try(t, only(t, c.plugin, Config{}, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
			if c.name == "going" && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
				t.Errorf("the cause is not told: %v", err)
			}
		})
	}
}

func TestAutoProvision(t *testing.T) {
	objects := store()
	p := only(t, "NamespaceAutoProvision", Config{}, Deps{Objects: objects})
	made := write{op: admission.Create, resource: "pods", obj: newPod()}
	for _, dry := range []bool{true, false, false} {
		made.dryRun = dry
		if _, err := try(t, p, made); err != nil {
			t.Fatal(err)
		}
		if _, err := objects.Get(t.Context(), "", "namespaces", "", "ns"); (err == nil) == dry {
			t.Errorf("dry run %v: the namespace: %v", dry, err)
		}
	}
}

// failing are objects of a store that does not work.
type failing struct {
	admission.Objects
	err error
}

func (f failing) Get(context.Context, string, string, string, string) (resource.Object, error) {
	return nil, f.err
}

// What is wrong with the store is not hidden: clients are to come back, or have run
// out of time.
func TestNamespaceOfBrokenStore(t *testing.T) {
	for _, want := range []error{context.DeadlineExceeded, storage.ErrUnavailable} {
		if _, err := namespace(t.Context(), failing{err: want}, "default"); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}
