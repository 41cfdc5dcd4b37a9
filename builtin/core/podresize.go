package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

// preparePodResize restores everything but the resources of the containers and the pod. If
// the containers differ, validation reports it.
func preparePodResize(ctx context.Context, pod, old *corev1.Pod) {
	if len(pod.Spec.Containers) == len(old.Spec.Containers) && len(pod.Spec.InitContainers) == len(old.Spec.InitContainers) {
		resources, volumes := pod.Spec.Resources, pod.Spec.Volumes
		containers := takeResources(pod.Spec.Containers, old.Spec.Containers)
		initContainers := takeResources(pod.Spec.InitContainers, old.Spec.InitContainers)
		pod.Spec, pod.Status = old.Spec, old.Status
		metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
		if features.From(ctx).Enabled("InPlacePodLevelResourcesVerticalScaling") {
			pod.Spec.Resources = resources
		}
		pod.Spec.Containers, pod.Spec.InitContainers = containers, initContainers
		if features.From(ctx).Enabled(volumeResize) {
			pod.Spec.Volumes = volumes
		}
	}
	late := features.From(ctx).Enabled(podspec.LateResources)
	if late {
		keepPodResources(pod, old)
	}
	// The old object must not share memory with the new one.
	pod.Spec.Resources = pod.Spec.Resources.DeepCopy()
	if late {
		podspec.DefaultResources(&pod.Spec)
	}
	podspec.DropDisabledPodFields(ctx, pod, old)
}

func takeResources(containers, old []corev1.Container) []corev1.Container {
	if len(containers) == 0 {
		return containers
	}
	merged := make([]corev1.Container, len(old))
	copy(merged, old)
	for i := range merged {
		if merged[i].Name != containers[i].Name {
			return containers
		}
		merged[i].Resources = containers[i].Resources
		merged[i].ResizePolicy = containers[i].ResizePolicy
	}
	return merged
}

func validatePodResize(ctx context.Context, pod, old *corev1.Pod) field.ErrorList {
	var e rules.Errors
	p := field.NewPath("spec")
	switch {
	case podspec.IsMirror(&old.ObjectMeta):
		return field.ErrorList{field.Forbidden(field.NewPath(""), "static pods cannot be resized")}
	case podspec.IsWindows(&old.Spec):
		return field.ErrorList{field.Forbidden(field.NewPath(""), "windows pods cannot be resized")}
	}
	if prefix := pod.GenerateName; prefix != "" {
		for _, msg := range apivalidation.NameIsDNSSubdomain(prefix, true) {
			e.Invalid(field.NewPath("metadata", "generateName"), prefix, msg)
		}
	}
	podspec.CheckPod(&e, pod, podspec.PodAllowances(ctx, old))
	was := old.Status.QOSClass
	if was == "" {
		was = podspec.QOSClass(features.From(ctx), old)
	}
	if was != podspec.QOSClass(features.From(ctx), pod) {
		e.Invalid(p, pod.Status.QOSClass, "Pod QOS Class may not change as a result of resizing")
	}
	if !nodeCanResize(old) {
		e.Forbidden(p, "Pod running on node without support for resize")
	}
	rest := pod.Spec.DeepCopy()
	checkPodLevelResize(features.From(ctx), &e, pod, old, rest, p)
	same := checkSameContainers(&e, pod.Spec.Containers, old.Spec.Containers, "containers", p)
	if sameInit := checkSameContainers(&e, pod.Spec.InitContainers, old.Spec.InitContainers, "initContainers", p); !same || !sameInit {
		return field.ErrorList(e)
	}
	for i := range old.Spec.InitContainers {
		checkNothingRemoved(&e, &pod.Spec.InitContainers[i].Resources, &old.Spec.InitContainers[i].Resources, "resource",
			p.Child("initContainers").Index(i).Child("resources"))
	}
	for i := range old.Spec.Containers {
		checkNothingRemoved(&e, &pod.Spec.Containers[i].Resources, &old.Spec.Containers[i].Resources, "resource",
			p.Child("containers").Index(i).Child("resources"))
	}

	// Fields that may change are reset; then the rest must be equal.
	for i := range rest.Containers {
		resetCompute(&rest.Containers[i].Resources, &old.Spec.Containers[i].Resources)
		if !equality.Semantic.DeepEqual(rest.Containers[i], old.Spec.Containers[i]) {
			e.Forbidden(p, "only cpu and memory resources are mutable")
		}
	}
	for i := range rest.InitContainers {
		c, was, cp := &rest.InitContainers[i], &old.Spec.InitContainers[i], p.Child("initContainers").Index(i)
		changed := !equality.Semantic.DeepEqual(c, was)
		resetCompute(&c.Resources, &was.Resources)
		if !equality.Semantic.DeepEqual(c, was) {
			e.Forbidden(cp, "only cpu and memory resources for init or sidecar containers are mutable")
		}
		for _, r := range c.ResizePolicy {
			if changed && !podspec.IsSidecar(c) && r.RestartPolicy == corev1.RestartContainer {
				e.Forbidden(cp, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
			}
		}
	}
	if features.From(ctx).Enabled(volumeResize) {
		checkVolumeResize(&e, pod.Spec.Volumes, old.Spec.Volumes, p.Child("volumes"))
		rest.Volumes = old.Spec.Volumes
	} else if !equality.Semantic.DeepEqual(pod.Spec.Volumes, old.Spec.Volumes) {
		e.Forbidden(p.Child("volumes"), "volumes are immutable on resize when InPlacePodVerticalScalingMemoryBackedVolumes feature gate is disabled")
	}
	if len(e) == 0 && !equality.Semantic.DeepEqual(*rest, old.Spec) {
		e.Forbidden(p, "only cpu and memory resources are mutable")
	}
	return field.ErrorList(e)
}

// volumeResize is the feature gate of resizing memory-backed volumes.
const volumeResize = "InPlacePodVerticalScalingMemoryBackedVolumes"

// checkVolumeResize allows sizeLimit of memory-backed volumes to change.
func checkVolumeResize(e *rules.Errors, volumes, old []corev1.Volume, p *field.Path) {
	if len(volumes) != len(old) {
		e.Forbidden(p, "volumes may not be added or removed on resize")
		return
	}
	limit := func(d *corev1.EmptyDirVolumeSource) bool { return d.SizeLimit != nil && !d.SizeLimit.IsZero() }
	for i := range volumes {
		is, was, p := &volumes[i], &old[i], p.Index(i)
		if is.Name != was.Name {
			e.Forbidden(p.Child("name"), "volumes may not be renamed or reordered on resize")
			continue
		}
		same := is.DeepCopy()
		dirs := is.EmptyDir != nil && was.EmptyDir != nil
		if dirs {
			same.EmptyDir.SizeLimit = was.EmptyDir.SizeLimit
		}
		switch size := p.Child("emptyDir", "sizeLimit"); {
		case !equality.Semantic.DeepEqual(same, was):
			e.Forbidden(p, "only sizeLimit of memory-backed emptyDir volumes is mutable on resize")
		case !dirs:
		case limit(is.EmptyDir) != limit(was.EmptyDir):
			e.Forbidden(size, "adding or removing sizeLimit on an existing volume is not allowed")
		case limit(is.EmptyDir) && is.EmptyDir.SizeLimit.Cmp(*was.EmptyDir.SizeLimit) != 0 && is.EmptyDir.Medium != corev1.StorageMediumMemory:
			e.Forbidden(size, "sizeLimit is only mutable for memory-backed emptyDir volumes")
		}
	}
}

// nodeCanResize reports whether the kubelet reports the resources of containers, which means
// that it supports resize.
func nodeCanResize(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Running != nil {
			return pod.Status.ContainerStatuses[i].Resources != nil
		}
	}
	return true
}

func checkPodLevelResize(gates features.Gates, e *rules.Errors, pod, old *corev1.Pod, rest *corev1.PodSpec, p *field.Path) {
	is, was := pod.Spec.Resources, old.Spec.Resources
	set := func(r *corev1.ResourceRequirements) bool { return r != nil && len(r.Requests)+len(r.Limits) > 0 }
	if !set(is) && !set(was) {
		return
	}
	if was != nil && is == nil {
		e.Forbidden(p.Child("resources"), "pod-level resources cannot be removed")
		return
	}
	if was != nil {
		checkNothingRemoved(e, is, was, "pod-level resource", p.Child("resources"))
		resetCompute(rest.Resources, was)
	} else {
		resetCompute(rest.Resources, &corev1.ResourceRequirements{})
		if len(rest.Resources.Requests)+len(rest.Resources.Limits)+len(rest.Resources.Claims) == 0 {
			rest.Resources = nil
		}
	}
	if !equality.Semantic.DeepEqual(rest.Resources, was) {
		e.Forbidden(p, "only cpu and memory resources are mutable at pod-level")
	}
	if len(pod.Status.NodeAllocatableResourceClaimStatuses) > 0 && gates.Enabled("DRANodeAllocatableResources") {
		if problem := podspec.CheckDeviceResources(pod); problem != "" {
			e.Invalid(p.Child("resources"), rules.GoForm(is), problem)
		}
	}
}

// checkSameContainers reports whether the containers have the same names as before.
func checkSameContainers(e *rules.Errors, containers, old []corev1.Container, name string, p *field.Path) bool {
	if len(containers) != len(old) {
		e.Forbidden(p.Child(name), name+" may not be added or removed on resize")
		return false
	}
	same := true
	for i := range old {
		if containers[i].Name != old[i].Name {
			e.Forbidden(p.Child(name).Index(i).Child("name"), name+" may not be renamed or reordered on resize")
			same = false
		}
	}
	return same
}

func checkNothingRemoved(e *rules.Errors, is, was *corev1.ResourceRequirements, what string, p *field.Path) {
	removed := func(list, old corev1.ResourceList) bool {
		for name := range old {
			if _, ok := list[name]; !ok {
				return true
			}
		}
		return false
	}
	if removed(is.Requests, was.Requests) {
		e.Forbidden(p.Child("requests"), what+" requests cannot be removed")
	}
	if removed(is.Limits, was.Limits) {
		e.Forbidden(p.Child("limits"), what+" limits cannot be removed")
	}
}

// resetCompute restores cpu and memory.
func resetCompute(r, old *corev1.ResourceRequirements) {
	reset := func(list *corev1.ResourceList, old corev1.ResourceList) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			delete(*list, name)
			if quantity, ok := old[name]; ok {
				if *list == nil {
					*list = corev1.ResourceList{}
				}
				(*list)[name] = quantity
			}
		}
	}
	reset(&r.Requests, old.Requests)
	reset(&r.Limits, old.Limits)
}
