package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// isHugePages, isNative and isExtended sort resources by their names: native
// ones belong to Kubernetes, extended ones to devices.
func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isNative(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func isExtended(name corev1.ResourceName) bool {
	const quota = corev1.DefaultResourceRequestsPrefix
	return !isNative(name) && !strings.HasPrefix(string(name), quota) && len(validation.IsQualifiedName(quota+string(name))) == 0
}

// canOvercommit reports whether the requests of a resource may be below its
// limits.
func canOvercommit(name corev1.ResourceName) bool { return isNative(name) && !isHugePages(name) }

// isPodLevel reports whether a pod as a whole can have the resource.
func isPodLevel(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || isHugePages(name)
}

// isStandard knows the names without a domain, of containers and of quotas.
func isStandard(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage,
		corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage, corev1.ResourceRequestsStorage,
		corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage:
		return true
	}
	return isCount(name) || isHugePages(name) || strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix)
}

// isCount knows the resources that are numbers of objects.
func isCount(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
		corev1.ResourceSecrets, corev1.ResourceConfigMaps, corev1.ResourcePersistentVolumeClaims,
		corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers:
		return true
	}
	return false
}

// wholePages reports whether an amount of huge pages is a number of pages.
func wholePages(name corev1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && size.Sign() > 0 && size.MilliValue()%1000 == 0 && quantity.Value()%size.Value() == 0
}

// checkResourceName reports whether the name can be judged further.
func checkResourceName(e *problems, name corev1.ResourceName, p *field.Path) bool {
	if messages := validation.IsQualifiedName(string(name)); len(messages) > 0 {
		e.each(p, name, messages)
		return false
	}
	if !strings.Contains(string(name), "/") && !isStandard(name) {
		e.invalid(p, name, "must be a standard resource type or fully qualified")
		return false
	}
	return true
}

func checkContainerResourceName(e *problems, name corev1.ResourceName, p *field.Path) {
	checkResourceName(e, name, p)
	switch {
	case !strings.Contains(string(name), "/"):
		if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage && !isHugePages(name) {
			e.invalid(p, name, "must be a standard resource for containers")
		}
	case !isNative(name) && !isExtended(name):
		e.invalid(p, name, "doesn't follow extended resource name standard")
	}
}

func checkPodResourceName(e *problems, name corev1.ResourceName, p *field.Path) {
	if checkResourceName(e, name, p) && !isPodLevel(name) {
		e.add(field.NotSupported(p, name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceHugePagesPrefix, corev1.ResourceMemory}))
	}
}

// checkQuantity wants an amount that the resource can have.
func checkQuantity(e *problems, name corev1.ResourceName, quantity resource.Quantity, p *field.Path) {
	if quantity.Sign() < 0 {
		e.invalid(p, quantity.String(), "must be greater than or equal to 0")
	}
	if (isCount(name) || isExtended(name)) && quantity.MilliValue()%1000 != 0 {
		e.invalid(p, quantity, "must be an integer")
	}
}

// checkResources judges requests, limits and claims of a container or a pod.
func checkResources(e *problems, r *corev1.ResourceRequirements, checkName func(*problems, corev1.ResourceName, *field.Path),
	claims sets.Set[string], p *field.Path, allow *allowances,
) {
	compute, hugePages := false, false
	list := func(list corev1.ResourceList, lp *field.Path, more func(corev1.ResourceName, resource.Quantity)) {
		for _, name := range resourceNames(list) {
			quantity, np := list[name], lp.Key(string(name))
			checkName(e, name, np)
			checkQuantity(e, name, quantity, np)
			more(name, quantity)
			if isHugePages(name) {
				hugePages = true
				if !allow.partialHugePages && !wholePages(name, quantity) {
					e.invalid(np, quantity.String(), fmt.Sprintf("%s is not positive integer multiple of %s", quantity.String(), name))
				}
			}
			compute = compute || name == corev1.ResourceCPU || name == corev1.ResourceMemory
		}
	}
	limits, requests := p.Child("limits"), p.Child("requests")
	list(r.Limits, limits, func(corev1.ResourceName, resource.Quantity) {})
	list(r.Requests, requests, func(name corev1.ResourceName, quantity resource.Quantity) {
		limit, ok := r.Limits[name]
		switch {
		case !ok && !canOvercommit(name):
			e.required(limits, "Limit must be set for non overcommitable resources")
		case !ok:
		case quantity.Cmp(limit) != 0 && !canOvercommit(name):
			e.invalid(requests, quantity.String(), fmt.Sprintf("must be equal to %s limit of %s", name, limit.String()))
		case quantity.Cmp(limit) > 0:
			e.invalid(requests, quantity.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", name, limit.String()))
		}
	})
	if hugePages && !compute {
		e.forbidden(p, "HugePages require cpu or memory")
	}
	checkResourceClaims(e, r.Claims, claims, p.Child("claims"))
}

// resourceNames returns the names in a list, sorted, so that the same object
// always gives the same answer.
func resourceNames(list corev1.ResourceList) []corev1.ResourceName {
	names := make([]corev1.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkResourceClaims wants each claim, or request in a claim, once, and among
// those of the pod.
func checkResourceClaims(e *problems, refs []corev1.ResourceClaim, known sets.Set[string], p *field.Path) {
	seen := sets.New[string]()
	for i, ref := range refs {
		cp := p.Index(i)
		if !e.need(cp, ref.Name) {
			continue
		}
		if seen.Has(ref.Name) {
			e.duplicate(cp, ref.Name)
		} else {
			key := ref.Name
			if ref.Request != "" {
				e.label(cp.Child("request"), ref.Request)
				key += "/" + ref.Request
			}
			if seen.Has(key) {
				e.duplicate(cp, key)
			} else if ref.Request == "" {
				for other := range seen {
					if strings.HasPrefix(other, ref.Name+"/") {
						e.duplicate(cp, ref.Name)
					}
				}
			}
			seen.Insert(key)
		}
		if !known.Has(ref.Name) {
			err := field.NotFound(cp, ref.Name)
			err.Detail = "must be one of the names in pod.spec.resourceClaims"
			if known.Len() == 0 {
				err.Detail += " which is empty"
			} else {
				err.Detail += ": " + strings.Join(sets.List(known), ", ")
			}
			e.add(err)
		}
	}
}

// checkPodResources judges the resources of the pod as a whole, also against
// those of its containers.
func checkPodResources(e *problems, ctx *podContext, p *field.Path) {
	r := ctx.spec.Resources
	if r == nil {
		return
	}
	if isWindows(ctx.spec) {
		e.forbidden(p, "may not be set for a windows pod")
		return
	}
	if r.Claims != nil {
		e.forbidden(p.Child("claims"), "claims may not be set for Resources at pod-level")
	}
	checkResources(e, r, checkPodResourceName, ctx.claims, p, ctx.allow)

	sum := containerSum(ctx.spec, requestsOf)
	for _, name := range resourceNames(sum) {
		total := sum[name]
		if pod, ok := r.Requests[name]; ok && total.Cmp(pod) > 0 {
			e.invalid(p.Child("requests").Key(string(name)), pod.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container requests of %s", total.String()))
		}
	}
	sum = containerSum(ctx.spec, limitsOf)
	for _, name := range resourceNames(sum) {
		total := sum[name]
		if pod, ok := r.Limits[name]; ok && isHugePages(name) && total.Cmp(pod) > 0 {
			e.invalid(p.Child("limits").Key(string(name)), pod.String(),
				fmt.Sprintf("must be greater than or equal to aggregate container limits of %s", total.String()))
		}
	}
	for i := range ctx.spec.Containers {
		limits := ctx.spec.Containers[i].Resources.Limits
		for _, name := range resourceNames(limits) {
			limit := limits[name]
			if pod, ok := r.Limits[name]; ok && limit.Cmp(pod) > 0 {
				e.invalid(p.Child("containers").Index(i).Key(string(name)).Child("limits"), limit.String(),
					fmt.Sprintf("must be less than or equal to pod limits of %s", pod.String()))
			}
		}
	}
}

func requestsOf(c *corev1.Container) corev1.ResourceList { return c.Resources.Requests }
func limitsOf(c *corev1.Container) corev1.ResourceList   { return c.Resources.Limits }

// containerSum returns what the containers of a pod need at the most: all that
// run together, or an init container and the sidecars started before it.
func containerSum(spec *corev1.PodSpec, of func(*corev1.Container) corev1.ResourceList) corev1.ResourceList {
	add := func(to, list corev1.ResourceList) {
		for name, quantity := range list {
			sum := to[name].DeepCopy()
			sum.Add(quantity)
			to[name] = sum
		}
	}
	running, sidecars, peak := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range spec.Containers {
		add(running, of(&spec.Containers[i]))
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		now := corev1.ResourceList{}
		if isSidecar(c) {
			add(running, of(c))
			add(sidecars, of(c))
		} else {
			add(now, of(c))
		}
		add(now, sidecars)
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

// qosClass says how a pod is treated when a node runs short: by the resources
// of the pod if it has any, else by those of its containers.
func qosClass(pod *corev1.Pod) corev1.PodQOSClass {
	if r := pod.Spec.Resources; r != nil {
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

// mergeQoS: whatever is not all the same is burstable.
func mergeQoS(a, b corev1.PodQOSClass) corev1.PodQOSClass {
	if a == "" || a == b {
		return b
	}
	return corev1.PodQOSBurstable
}

// ValidateContainerResourceName returns what is wrong with the name of a
// resource that containers can ask for.
func ValidateContainerResourceName(name corev1.ResourceName, p *field.Path) field.ErrorList {
	var e problems
	checkContainerResourceName(&e, name, p)
	return field.ErrorList(e)
}
