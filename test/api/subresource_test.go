package api

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	"k8s.io/client-go/kubernetes"
)

// Who scales owns the number of replicas, in the object and in its Scale.
func TestScaleOwnership(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, deployments := t.Context(), c.AppsV1().Deployments("default")
		labels := map[string]string{"app": "scaled"}
		must(deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: named("scaled"), Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		}}, metav1.CreateOptions{FieldManager: "creator"}))(t)
		scale := applyautoscalingv1.Scale().WithName("scaled").WithSpec(applyautoscalingv1.ScaleSpec().WithReplicas(4))
		if _, err := deployments.ApplyScale(ctx, "scaled", scale, metav1.ApplyOptions{FieldManager: "hpa"}); !apierrors.IsConflict(err) {
			t.Errorf("a field of another owner: %v", err)
		}
		applied := must(deployments.ApplyScale(ctx, "scaled", scale, metav1.ApplyOptions{FieldManager: "hpa", Force: true}))(t)
		if applied.Spec.Replicas != 4 {
			t.Errorf("replicas: %d", applied.Spec.Replicas)
		}
		owners := map[string]bool{}
		for _, e := range must(deployments.Get(ctx, "scaled", metav1.GetOptions{}))(t).ManagedFields {
			if e.Subresource == "scale" {
				owners[e.Manager+" "+e.FieldsV1.GetRawString()] = true
			}
		}
		if len(owners) != 1 || !owners[`hpa {"f:spec":{"f:replicas":{}}}`] {
			t.Errorf("owners through scale: %v", owners)
		}
	})
}

// An eviction takes from the budget of the pod, and is refused when it is empty.
func TestEvictionSpendsBudget(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, pods, budgets := t.Context(), c.CoreV1().Pods("default"), c.PolicyV1().PodDisruptionBudgets("default")
		labels := map[string]string{"app": "evicted"}
		none := intstr.FromInt32(1)
		budget := must(budgets.Create(ctx, &policyv1.PodDisruptionBudget{ObjectMeta: named("budget"), Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &none, Selector: &metav1.LabelSelector{MatchLabels: labels},
		}}, metav1.CreateOptions{}))(t)
		budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
		must(budgets.UpdateStatus(ctx, budget, metav1.UpdateOptions{}))(t)
		for _, name := range []string{"one", "two"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			pod = must(pods.Create(ctx, pod, metav1.CreateOptions{}))(t)
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			must(pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}))(t)
		}
		evict := func(name string) error { return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: named(name)}) }
		if err := evict("one"); err != nil {
			t.Fatal(err)
		}
		budget = must(budgets.Get(ctx, "budget", metav1.GetOptions{}))(t)
		if _, noted := budget.Status.DisruptedPods["one"]; budget.Status.DisruptionsAllowed != 0 || !noted {
			t.Errorf("status: %+v", budget.Status)
		}
		if err := evict("two"); !apierrors.IsTooManyRequests(err) {
			t.Errorf("a second eviction: %v", err)
		}
	})
}
