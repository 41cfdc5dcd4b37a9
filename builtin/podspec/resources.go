package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

// isPodLevel reports whether a resource can be set for the pod as a whole.
func isPodLevel(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || rules.IsHugePages(name)
}

func checkPodResourceName(e *rules.Errors, name corev1.ResourceName, p *field.Path) {
	if rules.CheckResourceName(e, name, p) && !isPodLevel(name) {
		e.Add(field.NotSupported(p, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
	}
}

// checkResources validates requests, limits and claims of a container or a pod.
func checkResources(e *rules.Errors, r *corev1.ResourceRequirements, checkName func(*rules.Errors, corev1.ResourceName, *field.Path),
	claims sets.Set[string], p *field.Path, allow *Allowances,
) {
	compute, hugePages := false, false
	list := func(list corev1.ResourceList, lp *field.Path, more func(corev1.ResourceName, resource.Quantity)) {
		for _, name := range rules.SortedResourceNames(list) {
			quantity, np := list[name], entryOf(lp, string(name))
			checkName(e, name, np)
			rules.CheckQuantity(e, name, quantity, np)
			more(name, quantity)
			if rules.IsHugePages(name) {
				hugePages = true
				if !allow.partialHugePages && !rules.IsWholePages(name, quantity) {
					e.Invalid(np, quantity.String(), fmt.Sprintf("%s is not positive integer multiple of %s", quantity.String(), name))
				}
			}
			compute = compute || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	limits, requests := childOf(p, "limits"), childOf(p, "requests")
	list(r.Limits, limits, func(corev1.ResourceName, resource.Quantity) {})
	list(r.Requests, requests, func(name corev1.ResourceName, quantity resource.Quantity) {
		limit, ok := r.Limits[name]
		switch {
		case !ok && !rules.CanOvercommit(name):
			e.Required(limits, "Limit must be set for non overcommitable resources")
		case !ok:
		case quantity.Cmp(limit) != 0 && !rules.CanOvercommit(name):
			e.Invalid(requests, quantity.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case quantity.Cmp(limit) > 0:
			e.Invalid(requests, quantity.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	})
	if hugePages && !compute {
		e.Forbidden(p, "HugePages require cpu or memory")
	}
	checkResourceClaims(e, r.Claims, claims, childOf(p, "claims"))
}

// checkResourceClaims reports claims, or requests in a claim, that occur twice or
// are not among the claims of the pod.
func checkResourceClaims(e *rules.Errors, refs []corev1.ResourceClaim, known sets.Set[string], p *field.Path) {
	seen := sets.New[string]()
	requests := map[string]int{} // of each claim
	// All errors share this text, which is as long as the list.
	unknown := "must be one of the names in pod.spec.resourceClaims which is empty"
	if known.Len() > 0 {
		unknown = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(sets.List(known), ", ")
	}
	for i, ref := range refs {
		cp := itemOf(p, i)
		if !e.NotEmpty(cp, ref.Name) {
			continue
		}
		if seen.Has(ref.Name) {
			e.Duplicate(cp, ref.Name)
		} else {
			key := ref.Name
			if ref.Request != "" {
				e.DNSLabel(childOf(cp, "request"), ref.Request)
				key += "/" + ref.Request
			}
			if seen.Has(key) {
				e.Duplicate(cp, key)
			} else if ref.Request == "" {
				for range requests[ref.Name] {
					e.Duplicate(cp, ref.Name)
				}
			} else {
				requests[ref.Name]++
			}
			seen.Insert(key)
		}
		if !known.Has(ref.Name) {
			err := field.NotFound(cp, ref.Name)
			err.Detail = unknown
			e.Add(err)
		}
	}
}

// checkPodResources validates the resources of the pod as a whole, also against
// those of its containers.
func checkPodResources(e *rules.Errors, ctx *podContext, p *field.Path) {
	r := ctx.spec.Resources
	if r == nil {
		return
	}
	if IsWindows(ctx.spec) {
		e.Forbidden(p, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		e.Forbidden(childOf(p, "claims"), "claims may not be set for Resources at pod-level")
	}
	checkResources(e, r, checkPodResourceName, ctx.claims, p, ctx.allow)

	sum := containerSum(ctx.spec, requestsOf)
	for _, name := range rules.SortedResourceNames(sum) {
		total := sum[name]
		if pod, ok := r.Requests[name]; ok && total.Cmp(pod) > 0 {
			e.Invalid(entryOf(childOf(p, "requests"), string(name)), pod.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", total.String()))
		}
	}
	sum = containerSum(ctx.spec, limitsOf)
	for _, name := range rules.SortedResourceNames(sum) {
		total := sum[name]
		if pod, ok := r.Limits[name]; ok && rules.IsHugePages(name) && total.Cmp(pod) > 0 {
			e.Invalid(entryOf(childOf(p, "limits"), string(name)), pod.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", total.String()))
		}
	}
	for i := range ctx.spec.Containers {
		limits := ctx.spec.Containers[i].Resources.Limits
		for _, name := range rules.SortedResourceNames(limits) {
			limit := limits[name]
			if pod, ok := r.Limits[name]; ok && limit.Cmp(pod) > 0 {
				e.Invalid(childOf(entryOf(itemOf(childOf(p, "containers"), i), string(name)), "limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", pod.String()))
			}
		}
	}
}

func requestsOf(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests }
func limitsOf(c *corev1.Container) corev1.ResourceList   { return c.Resources.Limits }

// containerSum returns the most that the containers of a pod need at a time: all
// that run together, or an init container and the sidecars started before it.
func containerSum(spec *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	running, sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		addResources(running, of(&spec.Containers[i]))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		now := corev1.ResourceList{}
		if IsSidecar(c) {
			addResources(running, of(c))
			addResources(sidecars, of(c))
		} else {
			addResources(now, of(c))
		}
		addResources(now, sidecars)
		for name, quantity := range now {
			if highest, ok := peak[name]; !ok || quantity.Cmp(highest) > 0 {
				peak[name] = quantity
			}
		}
	}
	for name, quantity := range peak {
		if sum, ok := running[name]; !ok || quantity.Cmp(sum) > 0 {
			running[name] = quantity
		}
	}
	return running
}

// QOSClass returns the quality of service class of a pod, from the resources of
// the pod as a whole if it has any, else from those of its containers. Before the gate
// PodLevelResourcesFixKubeletQOSClass, an empty list of them counted as one.
func QOSClass(gates features.Gates, pod *corev1.Pod) corev1.PodQOSClass {
	if r := pod.Spec.Resources; r != nil {
		if !gates.Enabled("PodLevelResourcesFixKubeletQOSClass") && gates.Enabled("PodLevelResources") {
			return requirementsQoS(r)
		}
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			for name := range list {
				if isPodLevel(name) {
					return requirementsQoS(r)
				}
			}
		}
	}
	var class corev1.PodQOSClass
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if class = mergeQoS(class, requirementsQoS(&containers[i].Resources)); class == corev1.PodQOSBurstable {
				return class
			}
		}
	}
	if class == "" {
		return corev1.PodQOSBestEffort
	}
	return class
}

func requirementsQoS(r *corev1.ResourceRequirements) corev1.PodQOSClass {
	if len(r.Requests) == 0 && len(r.Limits) == 0 {
		return corev1.PodQOSBestEffort
	}
	var class corev1.PodQOSClass
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request, limit := r.Requests[name], r.Limits[name]
		switch {
		case !request.Equal(limit):
			return corev1.PodQOSBurstable
		case request.IsZero():
			class = mergeQoS(class, corev1.PodQOSBestEffort)
		default:
			class = mergeQoS(class, corev1.PodQOSGuaranteed)
		}
	}
	return class
}

// mergeQoS returns the class of two parts: Burstable unless both are the same.
func mergeQoS(a, b corev1.PodQOSClass) corev1.PodQOSClass {
	if a == "" || a == b {
		return b
	}
	return corev1.PodQOSBurstable
}

// LateResources is the feature gate of defaults for the resources of a pod as a whole that
// are set after admission; without it they are set when the object is read.
const LateResources = "PodLevelResourcesFixDefaulting"

// DefaultResources sets the defaults of the resources of the pod as a whole, if
// it has any, from those of its containers. Admission may add containers, so it
// is called after admission.
func DefaultResources(spec *corev1.PodSpec) {
	limits := DefaultRequests(spec)
	r := spec.Resources
	if limits == nil {
		return
	}
	// The limit of the pod is the sum of the containers if all have a limit.
	for name, request := range r.Requests {
		if _, ok := r.Limits[name]; ok || !isPodLevel(name) ||
			anyContainer(spec, func(c *corev1.Container) bool { _, ok := c.Resources.Limits[name]; return !ok }) {
			continue
		}
		if limit, ok := limits[name]; !ok {
			continue
		} else if request.Cmp(limit) > 0 {
			setResource(&r.Limits, name, r.Requests)
		} else {
			setResource(&r.Limits, name, limits)
		}
	}
}

// DefaultRequests sets the defaults of the requests of the pod as a whole, if it has
// resources, and of its limits of huge pages. It returns the sum of the limits of the
// containers; nil if the pod has no resources as a whole.
func DefaultRequests(spec *corev1.PodSpec) (limits corev1.ResourceList) {
	r := spec.Resources
	if r == nil || len(r.Requests)+len(r.Limits) == 0 {
		return nil
	}
	limits = containerSum(spec, limitsOf)
	for name := range limits {
		if _, requested := r.Requests[name]; rules.IsHugePages(name) && !requested {
			setResource(&r.Limits, name, limits)
		}
	}
	requests := containerSum(spec, requestsOf)
	for name := range requests {
		if isPodLevel(name) && rules.CanOvercommit(name) {
			setResource(&r.Requests, name, requests)
		}
	}
	for name := range r.Limits {
		if isPodLevel(name) {
			setResource(&r.Requests, name, r.Limits)
		}
	}
	return limits
}

// setResource copies a resource from another list, unless it is set.
func setResource(list *corev1.ResourceList, name corev1.ResourceName, from corev1.ResourceList) {
	if _, ok := (*list)[name]; ok {
		return
	}
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = from[name].DeepCopy()
}

// ValidateLimits validates a resource list by the rules for the limits of a
// container.
func ValidateLimits(limits corev1.ResourceList, path *field.Path) field.ErrorList {
	var e rules.Errors
	checkResources(&e, &corev1.ResourceRequirements{Limits: limits}, rules.CheckContainerResourceName, nil, path, &Allowances{})
	return field.ErrorList(e)
}
