package podspec

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/builtin/rules"
)

// CheckDeviceResources returns why the resources of a pod as a whole do not suffice for its
// containers and for what its devices need of the node (status.
// nodeAllocatableResourceClaimStatuses), or "" if they do.
func CheckDeviceResources(pod *corev1.Pod) string {
	own := pod.Spec.Resources
	if own == nil {
		return ""
	}
	devices := deviceResources(pod, "")
	requests := containerSum(&pod.Spec, requestsOf)
	addResources(requests, devices)
	for _, name := range rules.SortedResourceNames(own.Requests) {
		if sum, ok := requests[name]; ok && isPodLevel(name) && sum.Cmp(own.Requests[name]) > 0 {
			return fmt.Sprintf("pod level request for %s is insufficient to cover the aggregated container and node-allocatable DRA requests", name)
		}
	}
	// Huge pages cannot be overcommitted: the pod needs the limits of all containers.
	limits := containerSum(&pod.Spec, limitsOf)
	addResources(limits, devices)
	for _, name := range rules.SortedResourceNames(limits) {
		if most, ok := own.Limits[name]; ok && rules.IsHugePages(name) && most.Cmp(limits[name]) < 0 {
			return fmt.Sprintf("pod level limit for %s is insufficient to cover the aggregated container and node-allocatable DRA limits", name)
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		needs := corev1.ResourceList{}
		addResources(needs, c.Resources.Limits)
		addResources(needs, deviceResources(pod, c.Name))
		for _, name := range rules.SortedResourceNames(c.Resources.Limits) {
			if most, ok := own.Limits[name]; ok && !rules.IsHugePages(name) && most.Cmp(needs[name]) < 0 {
				return fmt.Sprintf("pod level limit for %s is insufficient to cover the limit and DRA overhead for container %s", name, c.Name)
			}
		}
	}
	return ""
}

// deviceResources sums up what devices of a container need of the node, or those of the
// whole pod if container is "".
func deviceResources(pod *corev1.Pod, container string) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, s := range pod.Status.NodeAllocatableResourceClaimStatuses {
		times := int64(len(s.Containers))
		if container != "" {
			if !slices.Contains(s.Containers, container) {
				continue
			}
			times = 1
		}
		for _, m := range s.Mapping {
			if m.Quantity != nil {
				addResources(sum, corev1.ResourceList{m.Name: *m.Quantity})
			}
		}
		for _, o := range s.Overhead {
			if o.PerPod != nil {
				addResources(sum, corev1.ResourceList{o.Name: *o.PerPod})
			}
			if o.PerContainer != nil && times > 0 {
				all := o.PerContainer.DeepCopy()
				all.Mul(times)
				addResources(sum, corev1.ResourceList{o.Name: all})
			}
		}
	}
	return sum
}

// addResources adds a list of resources to another.
func addResources(to, list corev1.ResourceList) {
	for name, quantity := range list {
		sum := to[name].DeepCopy()
		sum.Add(quantity)
		to[name] = sum
	}
}
