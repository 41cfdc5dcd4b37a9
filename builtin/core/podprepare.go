package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/request"
)

func preparePod(ctx context.Context, pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	podspec.DropDisabledPodFields(ctx, pod, nil)
	if len(pod.Spec.SchedulingGates) > 0 {
		setPodCondition(ctx, &pod.Status, corev1.PodCondition{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
	podspec.MergeLabelKeys(ctx, pod)
	podspec.AdoptAppArmorAnnotations(ctx, pod)
	gates := features.From(ctx)
	if gates.Enabled(podspec.LateResources) {
		podspec.DefaultResources(&pod.Spec)
	}
	pod.Status.QOSClass = podspec.QOSClass(gates, pod)
}

func preparePodUpdate(ctx context.Context, pod, old *corev1.Pod) {
	pod.Status = old.Status
	if features.From(ctx).Enabled(podspec.LateResources) {
		keepPodResources(pod, old)
	}
	podspec.DropDisabledPodFields(ctx, pod, old)
}

// keepPodResources restores pod-level resources that a client drops because it does not know
// the field.
func keepPodResources(pod, old *corev1.Pod) {
	if pod.Spec.Resources == nil {
		pod.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

// setPodCondition sets a condition. lastTransitionTime changes only with its status.
func setPodCondition(ctx context.Context, status *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.NewTime(request.From(ctx).Received)
	for i := range status.Conditions {
		if old := &status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	status.Conditions = append(status.Conditions, c)
}

// podCondition returns a condition of a pod, or nil.
func podCondition(status *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == t {
			return &status.Conditions[i]
		}
	}
	return nil
}
