package core

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
)

// defaultPod is the defaulting of pods: that of pod templates, and fields that only pods get,
// so that templates stay as written.
func defaultPod(pod *corev1.Pod) {
	podspec.Default(&pod.Spec)
	defaultPodStatus(&pod.Status)

	spec := &pod.Spec
	if *spec.TerminationGracePeriodSeconds < 0 {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	for _, containers := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			defaultRequests(&containers[i].Resources)
			if spec.HostNetwork {
				defaultHostPorts(containers[i].Ports)
			}
		}
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
}

// defaultPodStatus keeps podIP and podIPs consistent. podIP wins, because old kubelets write
// only that.
func defaultPodStatus(s *corev1.PodStatus) {
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range statuses {
			rules.RoundUp(statuses[i].AllocatedResources)
			if r := statuses[i].Resources; r != nil {
				rules.RoundUp(r.Limits)
				rules.RoundUp(r.Requests)
			}
		}
	}
	rules.RoundUp(s.AllocatedResources)
	if s.Resources != nil {
		rules.RoundUp(s.Resources.Limits)
		rules.RoundUp(s.Resources.Requests)
	}
}

// defaultRequests sets missing requests to the limits.
func defaultRequests(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// defaultHostPorts sets hostPort to containerPort for pods with hostNetwork.
func defaultHostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		rules.Default(&ports[i].HostPort, ports[i].ContainerPort)
	}
}
