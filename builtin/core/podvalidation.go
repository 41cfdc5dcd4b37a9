package core

import (
	"context"
	"fmt"
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
)

func validatePod(ctx context.Context, pod *corev1.Pod) field.ErrorList {
	var e rules.Errors
	p := field.NewPath("spec")
	podspec.CheckPod(&e, pod, podspec.PodAllowances(ctx, nil))
	if len(pod.Spec.EphemeralContainers) > 0 {
		e.Forbidden(p.Child("ephemeralContainers"), "cannot be set on create")
	}
	if pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0 {
		e.Forbidden(p.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	podspec.CheckProfileAnnotations(&e, &pod.ObjectMeta, &pod.Spec, p)
	e.Add(podspec.ValidateResponders(ctx, &pod.Spec, nil, p)...)
	return field.ErrorList(e)
}

// checkAnnotationUpdates checks that annotations which kubelets act upon are unchanged.
func checkAnnotationUpdates(e *rules.Errors, pod, old *corev1.Pod, allow *podspec.Allowances) {
	p := field.NewPath("metadata", "annotations")
	const appArmor = corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
	for _, key := range sets.List(sets.KeySet(old.Annotations)) {
		if value, ok := pod.Annotations[key]; ok && value == old.Annotations[key] {
			continue
		}
		if strings.HasPrefix(key, appArmor) {
			e.Forbidden(p.Key(key), "may not remove or update AppArmor annotations")
		}
		if key == corev1.MirrorPodAnnotationKey {
			e.Forbidden(p.Key(key), "may not remove or update mirror pod annotation")
		}
	}
	for _, key := range sets.List(sets.KeySet(pod.Annotations)) {
		if _, ok := old.Annotations[key]; ok {
			continue
		}
		if strings.HasPrefix(key, appArmor) {
			e.Forbidden(p.Key(key), "may not add AppArmor annotations")
		}
		if key == corev1.MirrorPodAnnotationKey {
			e.Forbidden(p.Key(key), "may not add mirror pod annotation")
		}
	}
	podspec.CheckAnnotations(e, pod.Annotations, &pod.Spec, p, allow)
}

// validatePodUpdate allows the few changes that a running pod can take.
func validatePodUpdate(ctx context.Context, pod, old *corev1.Pod) field.ErrorList {
	var e rules.Errors
	p, allow := field.NewPath("spec"), podspec.PodAllowances(ctx, old)
	podspec.CheckPod(&e, pod, allow)
	checkAnnotationUpdates(&e, pod, old, allow)
	if !checkImageUpdates(&e, pod.Spec.Containers, old.Spec.Containers, p.Child("containers")) ||
		!checkImageUpdates(&e, pod.Spec.InitContainers, old.Spec.InitContainers, p.Child("initContainers")) ||
		!checkDeadlineUpdate(&e, pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, p.Child("activeDeadlineSeconds")) {
		return field.ErrorList(e)
	}
	checkTolerationUpdates(&e, pod.Spec.Tolerations, old.Spec.Tolerations, p.Child("tolerations"), allow)
	added := map[corev1.PodSchedulingGate]int{} // where it is last
	for i, g := range pod.Spec.SchedulingGates {
		added[g] = i
	}
	for _, g := range old.Spec.SchedulingGates {
		delete(added, g)
	}
	for i, g := range pod.Spec.SchedulingGates {
		if last, ok := added[g]; ok && last == i {
			e.Forbidden(p.Child("schedulingGates").Index(i).Child("name"),
				fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name))
		}
	}
	if equality.Semantic.DeepEqual(pod.Spec, old.Spec) {
		return field.ErrorList(e)
	}

	// Fields that may change are reset; then the rest must be equal.
	rest := pod.Spec.DeepCopy()
	for i := range rest.Containers {
		rest.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range rest.InitContainers {
		rest.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	// Empty lists of containers equal missing ones, here and in the message.
	if len(rest.InitContainers) == 0 {
		rest.InitContainers = nil
	}
	rest.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	rest.SchedulingGates = old.Spec.SchedulingGates
	rest.Tolerations = old.Spec.Tolerations
	if was, is := old.Spec.TerminationGracePeriodSeconds, rest.TerminationGracePeriodSeconds; was != nil && *was < 0 && is != nil && *is == 1 {
		rest.TerminationGracePeriodSeconds = was
	}
	if len(old.Spec.SchedulingGates) > 0 {
		checkGatedUpdates(&e, rest, &old.Spec, p)
	}
	if !equality.Semantic.DeepEqual(*rest, old.Spec) {
		e.Forbidden(p, "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"+
			"`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"+
			"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"+
			diff.Diff(rules.GoForm(old.Spec), rules.GoForm(*rest)))
	}
	return field.ErrorList(e)
}

// checkImageUpdates reports whether there are as many containers as before.
func checkImageUpdates(e *rules.Errors, containers, old []corev1.Container, p *field.Path) bool {
	if len(containers) != len(old) {
		e.Forbidden(p, "pod updates may not add or remove containers")
		return false
	}
	for i := range containers {
		e.NotEmpty(p.Index(i).Child("image"), containers[i].Image)
		podspec.CheckImageSpaces(e, &containers[i], p.Index(i))
	}
	return true
}

// checkDeadlineUpdate allows activeDeadlineSeconds to be set and to shrink. It reports
// whether the rest of the update is to be validated.
func checkDeadlineUpdate(e *rules.Errors, seconds, old *int64, p *field.Path) bool {
	switch {
	case seconds == nil && old != nil:
		e.Invalid(p, seconds, "must not update from a positive integer to nil value")
	case seconds == nil:
	case *seconds < 0 || *seconds > math.MaxInt32:
		e.Invalid(p, *seconds, validation.InclusiveRangeError(0, math.MaxInt32))
		return false
	case old != nil && *old < *seconds:
		e.Invalid(p, *seconds, "must be less than or equal to previous value")
		return false
	}
	return true
}

func checkTolerationUpdates(e *rules.Errors, tolerations, old []corev1.Toleration, p *field.Path, allow *podspec.Allowances) {
	kept := rules.Set(tolerations, withoutSeconds)
	for i := range old {
		if _, ok := kept[withoutSeconds(&old[i])]; !ok {
			e.Forbidden(p, "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
	podspec.CheckTolerations(e, tolerations, p, allow)
}

// withoutSeconds returns what may not change in a toleration.
func withoutSeconds(t *corev1.Toleration) corev1.Toleration {
	return corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
}

// checkGatedUpdates validates changes that are allowed while a pod has scheduling gates, those
// that leave it fewer nodes, and resets them.
func checkGatedUpdates(e *rules.Errors, spec, old *corev1.PodSpec, p *field.Path) {
	for key, value := range old.NodeSelector {
		if v, ok := spec.NodeSelector[key]; !ok || v != value {
			e.Invalid(p.Child("nodeSelector"), spec.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	spec.NodeSelector = old.NodeSelector

	nodeAffinity := func(a *corev1.Affinity) *corev1.NodeAffinity {
		if a == nil {
			return nil
		}
		return a.NodeAffinity
	}
	is, was := nodeAffinity(spec.Affinity), nodeAffinity(old.Affinity)
	if equality.Semantic.DeepEqual(is, was) {
		return
	}
	checkNodeAffinityUpdate(e, is, was, p.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"))
	switch {
	case spec.Affinity == nil:
		spec.Affinity = &corev1.Affinity{NodeAffinity: was}
	case old.Affinity == nil && spec.Affinity.PodAffinity == nil && spec.Affinity.PodAntiAffinity == nil:
		spec.Affinity = nil
	default:
		spec.Affinity.NodeAffinity = was
	}
}

func checkNodeAffinityUpdate(e *rules.Errors, is, was *corev1.NodeAffinity, p *field.Path) {
	if was == nil || was.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	var terms []corev1.NodeSelectorTerm
	if is != nil && is.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		terms = is.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	old := was.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(old) > 0 && len(old) != len(terms) {
		e.Invalid(p, rules.GoForm(terms), "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
		return
	}
	for i := range old {
		if !onlyAdds(terms[i], old[i]) {
			e.Invalid(p.Index(i), rules.GoForm(terms[i]), "only additions are allowed (no mutations or deletions)")
		}
	}
}

// onlyAdds reports whether requirements are only appended to a term. Nothing may be appended
// to an empty term, which matches no node, because it would then match some.
func onlyAdds(term, old corev1.NodeSelectorTerm) bool {
	if len(old.MatchExpressions)+len(old.MatchFields) == 0 {
		return len(term.MatchExpressions)+len(term.MatchFields) == 0
	}
	begins := func(list, old []corev1.NodeSelectorRequirement) bool {
		return len(list) >= len(old) && equality.Semantic.DeepEqual(list[:len(old)], old)
	}
	return begins(term.MatchExpressions, old.MatchExpressions) && begins(term.MatchFields, old.MatchFields)
}

// validateEphemeralUpdate allows ephemeral containers to be added, and nothing else.
func validateEphemeralUpdate(ctx context.Context, pod, old *corev1.Pod) field.ErrorList {
	var e rules.Errors
	if podspec.IsMirror(&old.ObjectMeta) {
		e.Forbidden(field.NewPath(""), "static pods do not support ephemeral containers")
		return field.ErrorList(e)
	}
	allow, p := podspec.PodAllowances(ctx, old), field.NewPath("spec", "ephemeralContainers")
	podspec.CheckPod(&e, pod, allow)
	checkAnnotationUpdates(&e, pod, old, allow)
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		var is *corev1.EphemeralContainer
		for j := range pod.Spec.EphemeralContainers {
			if pod.Spec.EphemeralContainers[j].Name == was.Name {
				is = &pod.Spec.EphemeralContainers[j]
			}
		}
		if is == nil {
			e.Forbidden(p, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name))
		} else if !equality.Semantic.DeepEqual(was, is) {
			e.Forbidden(p, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%v", was.Name, diff.Diff(rules.GoForm(*was), rules.GoForm(*is))))
		}
	}
	return field.ErrorList(e)
}
