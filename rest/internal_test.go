package rest_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/managedfields"
	kresource "github.com/apikeel/kelson/resource"
	"github.com/apikeel/kelson/rest"
	"github.com/apikeel/kelson/storage/memory"
	"github.com/apikeel/kelson/store"
)

// admissionObjects are those of the built-in kinds, on a store in memory.
func admissionObjects(tb testing.TB) rest.AdmissionObjects {
	tb.Helper()
	backend := memory.New(memory.Options{})
	objects, err := store.Open(tb.Context(), backend, store.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		objects.Close()
		if err := backend.Close(); err != nil {
			tb.Error(err)
		}
	})
	catalog, err := kresource.NewCatalog(builtin.Groups(builtin.Config{})...)
	if err != nil {
		tb.Fatal(err)
	}
	handler := &rest.Handler{Catalog: func() *kresource.Catalog { return catalog }, Store: objects, Owners: &managedfields.Owners{}}
	return rest.AdmissionObjects{Handler: handler}
}

// TestAdmissionSeesAcknowledgedWrites wants plugins to see every write that was
// acknowledged, at once, and to share what was decoded.
func TestAdmissionSeesAcknowledgedWrites(t *testing.T) {
	s, ctx := admissionObjects(t), t.Context()
	for i := range 200 {
		name := fmt.Sprint("ns-", i)
		if _, err := s.Get(ctx, "", "namespaces", "", name); !apierrors.IsNotFound(err) {
			t.Fatalf("before it is created: %v", err)
		}
		if err := s.Create(ctx, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
		ns, err := s.Get(ctx, "", "namespaces", "", name)
		if err != nil {
			t.Fatalf("after it was created: %v", err)
		}
		if again, err := s.Get(ctx, "", "namespaces", "", name); again != ns || err != nil {
			t.Errorf("it is decoded again: %v", err)
		}
		if all, err := s.List(ctx, "", "namespaces", ""); len(all) != i+1 || err != nil {
			t.Fatalf("there are %d after %d were created, %v", len(all), i+1, err)
		}
	}
}

// TestAdmissionUpdatesStatus checks what plugins write: the guard holds, and the
// server owns it.
func TestAdmissionUpdatesStatus(t *testing.T) {
	s, ctx := admissionObjects(t), t.Context()
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "q"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("5")}},
	}
	if err := s.Create(ctx, "", "resourcequotas", quota); err != nil {
		t.Fatal(err)
	}
	increase := func(obj kresource.Object) error {
		q := obj.(*corev1.ResourceQuota)
		if q.Status.Used == nil {
			q.Status.Used = corev1.ResourceList{}
		}
		used := q.Status.Used[corev1.ResourcePods]
		used.Add(resource.MustParse("1"))
		q.Status.Used[corev1.ResourcePods] = used
		return nil
	}
	done := make(chan error)
	const writers, each = 8, 10
	for range writers {
		go func() {
			var failed error
			for range each {
				if _, err := s.UpdateStatus(ctx, "", "resourcequotas", "ns", "q", increase); err != nil {
					failed = err
				}
			}
			done <- failed
		}()
	}
	for range writers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	obj, err := s.Get(ctx, "", "resourcequotas", "ns", "q")
	if err != nil {
		t.Fatal(err)
	}
	if used := obj.(*corev1.ResourceQuota).Status.Used[corev1.ResourcePods]; used.Value() != writers*each {
		t.Errorf("%s are counted of %d", used.String(), writers*each)
	}
	if m := obj.GetManagedFields(); len(m) != 2 || m[1].Manager != "kube-apiserver" || m[1].Subresource != "status" {
		t.Errorf("the owners are %v", m)
	}
	if _, err := s.UpdateStatus(ctx, "", "resourcequotas", "ns", "none", increase); !apierrors.IsNotFound(err) {
		t.Errorf("one that is not there: %v", err)
	}
}

// BenchmarkAdmissionObjects is what a plugin pays for a look.
func BenchmarkAdmissionObjects(b *testing.B) {
	s, ctx := admissionObjects(b), b.Context()
	if err := s.Create(ctx, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}); err != nil {
		b.Fatal(err)
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Get(ctx, "", "namespaces", "", "ns"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.List(ctx, "", "limitranges", "ns"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
