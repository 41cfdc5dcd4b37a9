package core

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

// preparePodStatus restores everything but the status, and fields of the status that old
// clients drop.
func preparePodStatus(ctx context.Context, pod, old *corev1.Pod) {
	pod.Spec = old.Spec
	pod.DeletionTimestamp = old.DeletionTimestamp
	// Old kubelets corrupt owner references.
	pod.OwnerReferences = old.OwnerReferences
	is, was := &pod.Status, &old.Status
	if is.QOSClass == "" {
		is.QOSClass = was.QOSClass
	}
	if is.ResourceClaimStatuses == nil {
		is.ResourceClaimStatuses = was.ResourceClaimStatuses
	}
	if is.ExtendedResourceClaimStatus == nil {
		is.ExtendedResourceClaimStatus = was.ExtendedResourceClaimStatus
	}
	if is.NodeAllocatableResourceClaimStatuses == nil {
		is.NodeAllocatableResourceClaimStatuses = was.NodeAllocatableResourceClaimStatuses
	}
	if is.ObservedGeneration == 0 {
		is.ObservedGeneration = was.ObservedGeneration
	}
	// Condition types may repeat; they are matched in order.
	generations := map[corev1.PodConditionType][]int64{}
	for _, c := range was.Conditions {
		generations[c.Type] = append(generations[c.Type], c.ObservedGeneration)
	}
	for i := range is.Conditions {
		c := &is.Conditions[i]
		if g := generations[c.Type]; len(g) > 0 {
			if c.ObservedGeneration == 0 {
				c.ObservedGeneration = g[0]
			}
			generations[c.Type] = g[1:]
		}
	}
	podspec.DropDisabledPodFields(ctx, pod, old)
}

func validatePodStatus(ctx context.Context, pod, old *corev1.Pod) field.ErrorList {
	var e rules.Errors
	p, s := field.NewPath("status"), &pod.Status
	checkAnnotationUpdates(&e, pod, old, podspec.PodAllowances(ctx, old))
	for i, c := range s.Conditions {
		cp := p.Child("conditions").Index(i)
		if c.ObservedGeneration < 0 {
			e.Invalid(cp.Child("observedGeneration"), c.ObservedGeneration, "must be a non-negative integer")
		}
		switch c.Type {
		case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
		default:
			e.InvalidEach(cp.Child("Type"), string(c.Type), validation.IsQualifiedName(string(c.Type)))
		}
	}
	if pod.Spec.NodeName != old.Spec.NodeName {
		e.Forbidden(p.Child("nodeName"), "may not be changed directly")
	}
	if name := s.NominatedNodeName; name != "" && name != old.Status.NominatedNodeName {
		e.DNSSubdomain(p.Child("nominatedNodeName"), name)
		if old.Spec.NodeName != "" && features.From(ctx).Enabled(clearsNomination) {
			e.Forbidden(p.Child("nominatedNodeName"), "may not be set on pods that are already bound to a node")
		}
	}
	if s.ObservedGeneration < 0 {
		e.Invalid(p.Child("observedGeneration"), s.ObservedGeneration, "must be a non-negative integer")
	}
	e.Add(rules.ValidateImmutable(s.QOSClass, old.Status.QOSClass, p.Child("qosClass"))...)

	if !features.From(ctx).Enabled("RestartAllContainersOnContainerExits") || !mayRestartAll(&old.Spec) {
		checkTransitions(&e, s.ContainerStatuses, old.Status.ContainerStatuses, &old.Spec, old.Spec.Containers, p.Child("containerStatuses"))
		checkTransitions(&e, s.InitContainerStatuses, old.Status.InitContainerStatuses, &old.Spec, old.Spec.InitContainers, p.Child("initContainerStatuses"))
	}
	checkTransitions(&e, s.EphemeralContainerStatuses, old.Status.EphemeralContainerStatuses, &old.Spec, nil, p.Child("ephemeralContainerStatuses"))
	checkClaimStatuses(&e, pod, p.Child("resourceClaimStatuses"))
	checkExtendedClaim(&e, s.ExtendedResourceClaimStatus, &pod.Spec, p.Child("extendedResourceClaimStatus"))
	checkAllocatable(&e, pod, p.Child("nodeAllocatableResourceClaimStatuses"))
	checkVolumeHealth(&e, pod, p.Child("volumeHealth"))

	addresses := func(list []corev1.PodIP) []string {
		var ips []string
		for _, ip := range list {
			ips = append(ips, ip.IP)
		}
		return ips
	}
	hosts := func(list []corev1.HostIP) []string {
		var ips []string
		for _, ip := range list {
			ips = append(ips, ip.IP)
		}
		return ips
	}
	checkAddresses(ctx, &e, addresses(s.PodIPs), addresses(old.Status.PodIPs), rules.GoForm(s.PodIPs), p.Child("podIPs"))
	if (s.PodIP == "") != (len(s.PodIPs) == 0) {
		e.Invalid(p.Child("podIPs"), rules.GoForm(s.PodIPs), "podIP and podIPs must either both be set or both be unset")
	} else if len(s.PodIPs) > 0 && s.PodIP != s.PodIPs[0].IP {
		e.Invalid(p.Child("podIPs").Index(0).Child("ip"), s.PodIPs[0].IP, "must be equal to `podIP`")
	}
	if len(s.HostIPs) > 0 && s.HostIP != s.HostIPs[0].IP {
		e.Invalid(p.Child("hostIPs").Index(0).Child("ip"), s.HostIPs[0].IP, "must be equal to `hostIP`")
	}
	checkAddresses(ctx, &e, hosts(s.HostIPs), hosts(old.Status.HostIPs), rules.GoForm(s.HostIPs), p.Child("hostIPs"))

	lists := []struct {
		name     string
		statuses []corev1.ContainerStatus
	}{
		{"containerStatuses", s.ContainerStatuses},
		{"initContainerStatuses", s.InitContainerStatuses},
		{"ephemeralContainerStatuses", s.EphemeralContainerStatuses},
	}
	for _, l := range lists {
		checkStatusUsers(&e, l.statuses, &pod.Spec, p.Child(l.name))
	}
	checkAllocated(&e, s.ContainerStatuses, pod.Spec.Containers, s, p.Child("containerStatuses"))
	checkAllocated(&e, s.InitContainerStatuses, pod.Spec.InitContainers, s, p.Child("initContainerStatuses"))
	for i := range s.EphemeralContainerStatuses {
		if len(s.EphemeralContainerStatuses[i].AllocatedResourcesStatus) > 0 {
			e.Forbidden(p.Child("ephemeralContainerStatuses").Index(i).Child("allocatedResourcesStatus"), "must not be specified in container status")
		}
	}
	if features.From(ctx).Enabled("ImageVolumeWithDigest") {
		checkVolumeStatuses(&e, s.ContainerStatuses, p.Child("containerStatuses"))
		checkVolumeStatuses(&e, s.InitContainerStatuses, p.Child("initContainerStatuses"))
		checkVolumeStatuses(&e, s.EphemeralContainerStatuses, p.Child("ephemeralContainerStatuses"))
	}
	e.Add(declaredStatus().Judge(ctx, s, &old.Status, p)...)
	return field.ErrorList(e)
}

// podStatusWarnings returns warnings for non-canonical IP addresses.
func podStatusWarnings(pod *corev1.Pod) []string {
	var w []string
	for i, ip := range pod.Status.PodIPs {
		w = append(w, validation.GetWarningsForIP(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range pod.Status.HostIPs {
		w = append(w, validation.GetWarningsForIP(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return w
}

// checkAddresses allows at most one address of each IP family.
func checkAddresses(ctx context.Context, e *rules.Errors, ips, old []string, shown any, p *field.Path) {
	for i, ip := range ips {
		e.Add(validation.IsValidIPForLegacyField(p.Index(i), ip, rules.StrictIPs(ctx), old)...)
	}
	if len(ips) < 2 {
		return
	}
	dual, err := netutils.IsDualStackIPStrings(ips)
	if err != nil {
		e.Add(field.InternalError(p, fmt.Errorf("failed to check for dual stack with error:%v", err)))
	}
	if !dual || len(ips) > 2 {
		e.Invalid(p, shown, "may specify no more than one IP for each IP family")
	}
}

// mayRestartAll reports whether a restart rule of some container restarts all containers.
func mayRestartAll(spec *corev1.PodSpec) bool {
	restarts := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(spec.InitContainers, restarts) || slices.ContainsFunc(spec.Containers, restarts)
}

// checkTransitions checks that a terminated container which is not restarted stays
// terminated.
func checkTransitions(e *rules.Errors, statuses, old []corev1.ContainerStatus, spec *corev1.PodSpec, containers []corev1.Container, p *field.Path) {
	runs := map[string]bool{}
	for i := range statuses {
		runs[statuses[i].Name] = runs[statuses[i].Name] || statuses[i].State.Terminated == nil
	}
	index := firstOf(containers)
	for i := range old {
		end := old[i].State.Terminated
		if end == nil || !runs[old[i].Name] {
			continue
		}
		j, ok := index[old[i].Name]
		if !ok || !restartsAfter(&containers[j], spec.RestartPolicy, end.ExitCode) {
			e.Forbidden(p.Index(i).Child("state"), "may not be transitioned to non-terminated state")
		}
	}
}

// firstOf returns the index of the first container of each name.
func firstOf(containers []corev1.Container) map[string]int {
	index := make(map[string]int, len(containers))
	for i := range slices.Backward(containers) {
		index[containers[i].Name] = i
	}
	return index
}

// restartsAfter decides by the restart rules of the container, then by its policy, then by
// that of the pod.
func restartsAfter(c *corev1.Container, podPolicy corev1.RestartPolicy, exitCode int32) bool {
	if c.RestartPolicy != nil {
		for _, r := range c.RestartPolicyRules {
			if r.ExitCodes == nil {
				continue
			}
			in := slices.Contains(r.ExitCodes.Values, exitCode)
			if r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn && in ||
				r.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn && !in {
				if r.Action == corev1.ContainerRestartRuleActionRestart || r.Action == corev1.ContainerRestartRuleActionRestartAllContainers {
					return true
				}
				break
			}
		}
		podPolicy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch podPolicy {
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	case corev1.RestartPolicyNever:
		return false
	}
	return true
}

func checkClaimStatuses(e *rules.Errors, pod *corev1.Pod, p *field.Path) {
	seen := sets.New[string]()
	claims := rules.Set(pod.Spec.ResourceClaims, func(c *corev1.PodResourceClaim) string { return c.Name })
	for i, s := range pod.Status.ResourceClaimStatuses {
		np := p.Index(i).Child("name")
		if _, ok := claims[s.Name]; !ok {
			e.Invalid(np, s.Name, "must match the name of an entry in `spec.resourceClaims`")
		}
		if seen.Has(s.Name) {
			e.Duplicate(np, s.Name)
		}
		seen.Insert(s.Name)
		if s.ResourceClaimName != nil {
			e.InvalidEach(p.Index(i).Child("resourceClaimName"), s.ResourceClaimName, validation.IsDNS1123Subdomain(*s.ResourceClaimName))
		}
	}
}

// checkExtendedClaim validates status.extendedResourceClaimStatus.
func checkExtendedClaim(e *rules.Errors, s *corev1.PodExtendedResourceClaimStatus, spec *corev1.PodSpec, p *field.Path) {
	if s == nil {
		return
	}
	if len(s.RequestMappings) == 0 {
		e.Required(p.Child("requestMappings"), "at least one request mapping is required")
	}
	// Of two containers with one name the regular one counts.
	containers := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for j := range list {
			containers[list[j].Name] = &list[j]
		}
	}
	var seen rules.Seen[corev1.ContainerExtendedResourceRequest]
	for i, m := range s.RequestMappings {
		mp := p.Child("requestMappings").Index(i)
		container := containers[m.ContainerName]
		if container == nil {
			e.Invalid(mp.Child("containerName"), m.ContainerName, "must match the name of an entry in spec.initContainers.name or spec.containers.name")
		} else if _, ok := container.Resources.Requests[corev1.ResourceName(m.ResourceName)]; !ok {
			e.Invalid(mp.Child("resourceName"), m.ResourceName,
				"must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests")
		}
		e.DNSLabel(p.Child("requestName"), m.RequestName)
		if seen.Again(m) {
			e.Duplicate(mp.Child("containerName"), m.ContainerName)
			e.Duplicate(mp.Child("resourceName"), m.ResourceName)
			e.Duplicate(mp.Child("requestName"), m.RequestName)
		}
	}
	if e.NotEmpty(p.Child("resourceClaimName"), s.ResourceClaimName) {
		e.DNSSubdomain(p.Child("resourceClaimName"), s.ResourceClaimName)
	}
}

func checkAllocatable(e *rules.Errors, pod *corev1.Pod, p *field.Path) {
	claims := sets.New[string]()
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			claims.Insert(*c.ResourceClaimName)
		}
	}
	for _, c := range pod.Status.ResourceClaimStatuses {
		if c.ResourceClaimName != nil {
			claims.Insert(*c.ResourceClaimName)
		}
	}
	for i, s := range pod.Status.NodeAllocatableResourceClaimStatuses {
		if s.ResourceClaimName == "" {
			continue
		}
		if !claims.Has(s.ResourceClaimName) {
			e.Invalid(p.Index(i).Child("resourceClaimName"), s.ResourceClaimName, "no mapping found in pod reference")
		}
		for j, m := range s.Mapping {
			p := p.Index(i).Child("mapping").Index(j)
			checkAllocatableName(e, m.Name, p.Child("name"))
			checkNotNegative(e, m.Quantity, p.Child("quantity"))
		}
		for j, o := range s.Overhead {
			p := p.Index(i).Child("overhead").Index(j)
			checkAllocatableName(e, o.Name, p.Child("name"))
			if o.PerPod == nil && o.PerContainer == nil {
				e.Invalid(p, "", "at least one of perPod or perContainer must be set")
			}
			checkNotNegative(e, o.PerPod, p.Child("perPod"))
			checkNotNegative(e, o.PerContainer, p.Child("perContainer"))
		}
	}
}

func checkAllocatableName(e *rules.Errors, name corev1.ResourceName, p *field.Path) {
	if !rules.IsNodeAllocatable(name) {
		e.Invalid(p, name, "must be a node allocatable resource name")
	}
}

func checkNotNegative(e *rules.Errors, q *resource.Quantity, p *field.Path) {
	if q != nil && q.Sign() < 0 {
		e.Invalid(p, q.String(), "must be non-negative")
	}
}

func checkVolumeHealth(e *rules.Errors, pod *corev1.Pod, p *field.Path) {
	volumes := rules.Set(pod.Spec.Volumes, func(v *corev1.Volume) string { return v.Name })
	for i, h := range pod.Status.VolumeHealth {
		if _, ok := volumes[h.Name]; h.Name != "" && !ok {
			e.Add(field.NotFound(p.Index(i).Child("name"), h.Name))
		}
		checkHealthConditions(e, h.HealthConditions, p.Index(i).Child("healthConditions"))
	}
}

func checkHealthConditions(e *rules.Errors, conditions []corev1.VolumeHealthCondition, p *field.Path) {
	for i, c := range conditions {
		if c.Reason != "" {
			e.InvalidEach(p.Index(i).Child("reason"), c.Reason, metavalidation.IsValidConditionReason(c.Reason))
		}
	}
}

// maxImageRef bounds the length of an image reference in a volume status.
const maxImageRef = 256

// checkVolumeStatuses validates the images in the volume statuses of containers.
func checkVolumeStatuses(e *rules.Errors, statuses []corev1.ContainerStatus, p *field.Path) {
	for i := range statuses {
		for j, m := range statuses[i].VolumeMounts {
			if m.VolumeStatus == nil || m.VolumeStatus.Image == nil {
				continue
			}
			ref, p := m.VolumeStatus.Image.ImageRef, p.Index(i).Child("volumeMounts").Index(j).Child("volumeStatus", "imageVolumeStatus", "imageRef")
			if ref == "" {
				e.Required(p, "imageRef must not be empty")
			}
			if len(ref) > maxImageRef {
				e.Add(field.TooLong(p, ref, maxImageRef))
			}
		}
	}
}

func checkStatusUsers(e *rules.Errors, statuses []corev1.ContainerStatus, spec *corev1.PodSpec, p *field.Path) {
	for i := range statuses {
		if statuses[i].User == nil || statuses[i].User.Linux == nil {
			continue
		}
		u, up := statuses[i].User.Linux, p.Index(i).Child("user", "linux")
		if podspec.IsWindows(spec) {
			e.Forbidden(up, "cannot be set for a windows pod")
			continue
		}
		if u.UID < 0 || u.UID > math.MaxUint32 {
			e.Invalid(up.Child("uid"), u.UID, fmt.Sprintf("must be between 0 and %d, inclusive", int64(math.MaxUint32)))
		}
		e.GroupID(up.Child("gid"), &u.GID)
		for j := range u.SupplementalGroups {
			e.GroupID(up.Child("supplementalGroups").Index(j), &u.SupplementalGroups[j])
		}
	}
}

// checkAllocated validates allocatedResourcesStatus of containers.
func checkAllocated(e *rules.Errors, statuses []corev1.ContainerStatus, containers []corev1.Container, status *corev1.PodStatus, p *field.Path) {
	index := firstOf(containers)
	for i := range statuses {
		c, found := index[statuses[i].Name]
		for j, a := range statuses[i].AllocatedResourcesStatus {
			ap := p.Index(i).Child("allocatedResourcesStatus").Index(j)
			if found && !isAllocated(a.Name, &containers[c], status) {
				detail := "must match one of the container's resource requests"
				if strings.HasPrefix(string(a.Name), "claim:") {
					detail = "must match one of the container's resource claims as 'claim:<claimName>/<requestName>' when container.resources.claims[*].request is set or 'claim:<claimName>' when it is empty"
				}
				e.Invalid(ap.Child("name"), a.Name, detail)
			}
			seen := sets.New[corev1.ResourceID]()
			for k, r := range a.Resources {
				rp := ap.Child("resources").Index(k)
				rules.OneOf(e, rp.Child("health"), r.Health,
					corev1.ResourceHealthStatusHealthy, corev1.ResourceHealthStatusUnhealthy, corev1.ResourceHealthStatusUnknown)
				if r.Message != nil && *r.Message == "" {
					e.Required(rp.Child("message"), "must be non-empty if specified")
				} else if r.Message != nil && len(*r.Message) > corev1.ResourceHealthMessageMaxLength {
					e.Add(field.TooLong(rp.Child("message"), *r.Message, corev1.ResourceHealthMessageMaxLength))
				}
				if seen.Has(r.ResourceID) {
					e.Duplicate(rp.Child("resourceID"), r.ResourceID)
				}
				seen.Insert(r.ResourceID)
			}
		}
	}
}

// isAllocated reports whether a container requests a resource by its name, or a request of a
// claim, directly or through an extended resource.
func isAllocated(name corev1.ResourceName, c *corev1.Container, status *corev1.PodStatus) bool {
	ref, isClaim := strings.CutPrefix(string(name), "claim:")
	if !isClaim {
		_, ok := c.Resources.Requests[name]
		return ok
	}
	for _, claim := range c.Resources.Claims {
		if ref == claim.Name && claim.Request == "" || claim.Request != "" && ref == claim.Name+"/"+claim.Request {
			return true
		}
	}
	claim, request, _ := strings.Cut(ref, "/")
	extended := status.ExtendedResourceClaimStatus
	return extended != nil && request != "" && claim != "" && claim == extended.ResourceClaimName &&
		slices.ContainsFunc(extended.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
			quantity := c.Resources.Requests[corev1.ResourceName(m.ResourceName)]
			return m.ContainerName == c.Name && m.RequestName == request && !quantity.IsZero()
		})
}
