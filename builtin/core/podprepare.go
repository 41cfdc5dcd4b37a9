package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/request"
)

func preparePod(ctx context.Context, pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	dropPodFields(ctx, pod, nil)
	if len(pod.Spec.SchedulingGates) > 0 {
		setPodCondition(ctx, &pod.Status, corev1.PodCondition{
			Type:    corev1.PodScheduled,
			Status:  corev1.ConditionFalse,
			Reason:  corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		})
	}
	mergeLabelKeys(pod)
	adoptAppArmorAnnotations(ctx, pod)
	defaultPodResources(&pod.Spec)
	pod.Status.QOSClass = qosClass(pod)
}

func preparePodUpdate(ctx context.Context, pod, old *corev1.Pod) {
	pod.Status = old.Status
	keepPodResources(pod, old)
	dropPodFields(ctx, pod, old)
}

// keepPodResources: clients from before pods had resources of their own drop
// them without meaning to.
func keepPodResources(pod, old *corev1.Pod) {
	if pod.Spec.Resources == nil {
		pod.Spec.Resources = old.Spec.Resources.DeepCopy()
	}
}

// setPodCondition sets a condition; the time of its transition moves when its
// status does.
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

// mergeLabelKeys adds the values that the pod's own labels have under the keys
// that a selector names to that selector.
func mergeLabelKeys(pod *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
			}
		}
	}
	eachAffinityTerm(pod.Spec.Affinity, func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	})
	for i := range pod.Spec.TopologySpreadConstraints {
		c := &pod.Spec.TopologySpreadConstraints[i]
		merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// adoptAppArmorAnnotations copies what an old annotation says about a container
// into the field that has replaced it, and tells the client of the field.
func adoptAppArmorAnnotations(ctx context.Context, pod *corev1.Pod) {
	if len(pod.Annotations) == 0 || isWindows(&pod.Spec) {
		return
	}
	var ofPod *corev1.AppArmorProfile
	if pod.Spec.SecurityContext != nil {
		ofPod = pod.Spec.SecurityContext.AppArmorProfile
	}
	eachContainer(&pod.Spec, nil, func(c *corev1.Container, _ *field.Path) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		value, ok := pod.Annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := appArmorFromAnnotation(value)
		if profile != nil && equality.Semantic.DeepEqual(profile, ofPod) {
			return
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		request.From(ctx).Warn(appArmorWarning(field.NewPath("metadata", "annotations").Key(key)))
	})
}

func appArmorWarning(p *field.Path) string {
	return fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`, p)
}

// appArmorFromAnnotation returns nil if the annotation makes no valid profile.
func appArmorFromAnnotation(value string) *corev1.AppArmorProfile {
	var profile *corev1.AppArmorProfile
	name, local := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	switch {
	case value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case local && name != "":
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	var e problems
	if checkAppArmorProfile(&e, profile, nil); len(e) > 0 {
		return nil
	}
	return profile
}

// defaultPodResources completes resources of the pod as a whole, if it has
// some, from those of its containers. It needs to see all containers, so it
// comes after admission.
func defaultPodResources(spec *corev1.PodSpec) {
	r := spec.Resources
	if r == nil || len(r.Requests)+len(r.Limits) == 0 {
		return
	}
	set := func(list *corev1.ResourceList, name corev1.ResourceName, from corev1.ResourceList) {
		if _, ok := (*list)[name]; ok {
			return
		}
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[name] = from[name].DeepCopy()
	}
	limits := containerSum(spec, limitsOf)
	for name := range limits {
		if _, requested := r.Requests[name]; isHugePages(name) && !requested {
			set(&r.Limits, name, limits)
		}
	}
	requests := containerSum(spec, requestsOf)
	for name := range requests {
		if isPodLevel(name) && canOvercommit(name) {
			set(&r.Requests, name, requests)
		}
	}
	for name := range r.Limits {
		if isPodLevel(name) {
			set(&r.Requests, name, r.Limits)
		}
	}
	// A limit follows from those of the containers if all of them have one.
	for name, request := range r.Requests {
		if _, ok := r.Limits[name]; ok || !isPodLevel(name) ||
			anyContainer(spec, func(c *corev1.Container) bool { _, ok := c.Resources.Limits[name]; return !ok }) {
			continue
		}
		if limit, ok := limits[name]; !ok {
			continue
		} else if request.Cmp(limit) > 0 {
			set(&r.Limits, name, r.Requests)
		} else {
			set(&r.Limits, name, limits)
		}
	}
}
