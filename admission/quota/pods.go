package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/apikeel/kelson/admission"
)

// Sum returns the resources of a pod, given those that pick returns for a container: the sum
// of the containers and sidecars that run together, or the peak of the init containers if
// that is more.
func Sum(spec *corev1.PodSpec, pick func(c *corev1.Container) corev1.ResourceList) corev1.ResourceList {
	running, beside, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		addTo(running, pick(&spec.Containers[i]))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		now := pick(c)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			addTo(running, now)
			addTo(beside, now)
			raise(peak, beside)
			continue
		}
		sum := corev1.ResourceList{}
		addTo(sum, now)
		addTo(sum, beside)
		raise(peak, sum)
	}
	raise(running, peak)
	return running
}

func addTo(list, more corev1.ResourceList) {
	for name, quantity := range more {
		sum, ok := list[name]
		if !ok {
			list[name] = quantity.DeepCopy()
			continue
		}
		sum.Add(quantity)
		list[name] = sum
	}
}

// raise raises the quantities of a list to at least those of another.
func raise(list, other corev1.ResourceList) {
	for name, quantity := range other {
		if is, ok := list[name]; !ok || quantity.Cmp(is) > 0 {
			list[name] = quantity.DeepCopy()
		}
	}
}

// Requests returns the requests of a pod. With status, the allocated resources count too: a
// pod that is being resized needs the larger of both.
func Requests(pod *corev1.Pod, status bool) corev1.ResourceList {
	sum := Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests })
	if status && len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) > 0 {
		infeasible := resizeInfeasible(pod)
		allocated := Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList {
			s := statusOf(pod, c.Name)
			switch {
			case s != nil && s.AllocatedResources != nil:
				return s.AllocatedResources
			case infeasible:
				return nil
			}
			return c.Resources.Requests
		})
		actual := Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList {
			s := statusOf(pod, c.Name)
			switch {
			case s != nil && s.Resources != nil && s.Resources.Requests != nil:
				return s.Resources.Requests
			case s != nil && s.AllocatedResources != nil:
				return s.AllocatedResources
			case infeasible:
				return nil
			}
			return c.Resources.Requests
		})
		if infeasible {
			sum = corev1.ResourceList{}
		}
		raise(sum, allocated)
		raise(sum, actual)
	}
	if pod.Spec.Resources != nil {
		replace(sum, pod.Spec.Resources.Requests)
	}
	addTo(sum, pod.Spec.Overhead)
	return sum
}

// Limits returns the limits of a pod, as Requests does the requests.
func Limits(pod *corev1.Pod, status bool) corev1.ResourceList {
	sum := Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList { return c.Resources.Limits })
	if status && len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) > 0 {
		infeasible := resizeInfeasible(pod)
		actual := Sum(&pod.Spec, func(c *corev1.Container) corev1.ResourceList {
			s := statusOf(pod, c.Name)
			switch {
			case s != nil && s.Resources != nil && s.Resources.Limits != nil:
				return s.Resources.Limits
			case infeasible:
				return nil
			}
			return c.Resources.Limits
		})
		if infeasible {
			sum = corev1.ResourceList{}
		}
		raise(sum, actual)
	}
	if pod.Spec.Resources != nil {
		replace(sum, pod.Spec.Resources.Limits)
	}
	for name, quantity := range pod.Spec.Overhead {
		if is, ok := sum[name]; ok && !is.IsZero() {
			is.Add(quantity)
			sum[name] = is
		}
	}
	return sum
}

// replace replaces sums of containers by pod-level resources.
func replace(sum, own corev1.ResourceList) {
	for name, quantity := range own {
		if isPodLevel(name) {
			sum[name] = quantity
		}
	}
}

func isPodLevel(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func statusOf(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			if statuses[i].Name == name {
				return &statuses[i]
			}
		}
	}
	return nil
}

func resizeInfeasible(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodResizePending {
			return c.Reason == corev1.PodReasonInfeasible
		}
	}
	return false
}

// IsBestEffort reports whether a pod has the QoS class BestEffort.
func IsBestEffort(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass == corev1.PodQOSBestEffort
	}
	nothing := func(r *corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				if q := list[name]; q.Sign() > 0 {
					return false
				}
			}
		}
		return true
	}
	if hasPodLevelResources(pod) {
		return nothing(pod.Spec.Resources)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if !nothing(&containers[i].Resources) {
				return false
			}
		}
	}
	return true
}

// hasPodLevelResources reports whether a pod has pod-level resources.
func hasPodLevelResources(pod *corev1.Pod) bool {
	if pod.Spec.Resources == nil {
		return false
	}
	for _, list := range []corev1.ResourceList{pod.Spec.Resources.Requests, pod.Spec.Resources.Limits} {
		for name := range list {
			if isPodLevel(name) {
				return true
			}
		}
	}
	return false
}

// IsExtended reports whether a resource is an extended one: its name has a domain that is
// not of Kubernetes.
func IsExtended(name corev1.ResourceName) bool {
	return !isNative(name) && !strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}

func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// isExtendedQuota is IsExtended for the resource name of a quota.
func isExtendedQuota(name corev1.ResourceName) bool {
	implicit := strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix+resourcev1.ResourceDeviceClassPrefix)
	return (!isNative(name) || implicit) && strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// pods computes the usage of pods.
func pods(now func() time.Time) *Evaluator {
	counted := []corev1.ResourceName{
		"count/pods", corev1.ResourcePods,
		corev1.ResourceCPU, corev1.ResourceRequestsCPU, corev1.ResourceLimitsCPU,
		corev1.ResourceMemory, corev1.ResourceRequestsMemory, corev1.ResourceLimitsMemory,
		corev1.ResourceEphemeralStorage, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceLimitsEphemeralStorage,
	}
	return &Evaluator{
		handles: func(t admission.Target) bool {
			return t.Subresource == "" && (t.Operation == admission.Create || t.Operation == admission.Update) ||
				t.Subresource == "resize" && t.Operation == admission.Update
		},
		concerns: func(a *admission.Attributes) bool {
			if a.Subresource != "" || a.Operation == admission.Create {
				return true
			}
			pod, ok := a.Object.(*corev1.Pod)
			old, was := a.Old.(*corev1.Pod)
			return ok && was && isTerminating(pod) != isTerminating(old)
		},
		counts: func(name corev1.ResourceName) bool {
			return slices.Contains(counted, name) || isExtendedQuota(name) ||
				strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
		},
		scope:    podInScope,
		requires: podRequires,
		usage: func(obj any) corev1.ResourceList {
			pod := obj.(*corev1.Pod)
			used := corev1.ResourceList{"count/pods": one()}
			if hasFinished(pod, now()) {
				return used
			}
			addTo(used, byQuotaNames(Requests(pod, true), Limits(pod, true)))
			return used
		},
	}
}

func one() resource.Quantity { return *resource.NewQuantity(1, resource.DecimalSI) }

// hasFinished reports whether a pod has finished, or its grace period has passed.
func hasFinished(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return true
	}
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return false
	}
	return now.After(pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second))
}

// byQuotaNames returns requests and limits under the resource names of quotas.
func byQuotaNames(requests, limits corev1.ResourceList) corev1.ResourceList {
	used := corev1.ResourceList{corev1.ResourcePods: one()}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := requests[name]; ok {
			used[name], used[corev1.DefaultResourceRequestsPrefix+name] = q, q
		}
		if q, ok := limits[name]; ok {
			used["limits."+name] = q
		}
	}
	for name, q := range requests {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			used[name], used[corev1.DefaultResourceRequestsPrefix+name] = q, q
		}
		if IsExtended(name) || strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) {
			used[corev1.DefaultResourceRequestsPrefix+name] = q
		}
	}
	return used
}

// podRequires checks that every container has requests or limits for the CPU and memory
// names that a quota limits.
func podRequires(limited []corev1.ResourceName, obj any) error {
	pod := obj.(*corev1.Pod)
	if hasPodLevelResources(pod) {
		return nil
	}
	var required []corev1.ResourceName
	for _, name := range limited {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory:
			required = append(required, name)
		}
	}
	missing := map[corev1.ResourceName]map[string]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			c := &containers[i]
			has := byQuotaNames(c.Resources.Requests, c.Resources.Limits)
			for _, name := range required {
				if _, ok := has[name]; ok {
					continue
				}
				if missing[name] == nil {
					missing[name] = map[string]bool{}
				}
				missing[name][c.Name] = true
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		texts = append(texts, fmt.Sprintf("%s for: %s", name, strings.Join(slices.Sorted(maps.Keys(missing[name])), ",")))
	}
	return fmt.Errorf("must specify %s", strings.Join(texts, "; "))
}

func isTerminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

func podInScope(scope corev1.ScopedResourceSelectorRequirement, obj any) (bool, error) {
	pod := obj.(*corev1.Pod)
	switch scope.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return isTerminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !isTerminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return IsBestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !IsBestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		if scope.Operator == corev1.ScopeSelectorOpExists {
			return pod.Spec.PriorityClassName != "", nil
		}
		return selects(scope, pod.Spec.PriorityClassName)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return crossesNamespaces(pod.Spec.Affinity), nil
	}
	return false, nil
}

// crossesNamespaces reports whether pod affinity refers to other namespaces.
func crossesNamespaces(affinity *corev1.Affinity) bool {
	if affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for i := range preferred {
			terms = append(terms, preferred[i].PodAffinityTerm)
		}
	}
	if a := affinity.PodAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := affinity.PodAntiAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) > 0 || t.NamespaceSelector != nil })
}
