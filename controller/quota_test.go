package controller_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// What is deleted is given back.
func TestQuota(t *testing.T) {
	c := start(t)
	c.namespace("limited")
	must(c.CoreV1().ResourceQuotas("limited").Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "quota"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			"count/secrets": resource.MustParse("2"), "requests.cpu": resource.MustParse("1"), "pods": resource.MustParse("3"),
		}},
	}, metav1.CreateOptions{}))(t)
	used := func(secrets, cpu, pods string) {
		t.Helper()
		c.until(corev1.SchemeGroupVersion.WithResource("resourcequotas"), "limited", func(objs map[string]*unstructured.Unstructured) bool {
			u, _, _ := unstructured.NestedStringMap(objs["limited/quota"].Object, "status", "used")
			return u["count/secrets"] == secrets && u["requests.cpu"] == cpu && u["pods"] == pods
		})
	}
	used("0", "0", "0")
	must(c.CoreV1().Secrets("limited").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{}))(t)
	must(c.CoreV1().Pods("limited").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")},
		}}}},
	}, metav1.CreateOptions{}))(t)
	used("1", "250m", "1")
	if err := c.CoreV1().Secrets("limited").Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Pods("limited").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	used("0", "0", "0")
}
