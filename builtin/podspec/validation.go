package podspec

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/declared"
	"github.com/apikeel/kelson/builtin/rules"
)

// Limits of the DNS configuration of a pod.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
	maxHostname    = 64
)

// checkSpec validates a pod spec. meta is the metadata of the pod, nil for a
// template.
func checkSpec(e *rules.Errors, spec *corev1.PodSpec, meta *metav1.ObjectMeta, p *field.Path, allow *Allowances) {
	if spec.TerminationGracePeriodSeconds == nil {
		e.Required(childOf(p, "terminationGracePeriodSeconds"), "")
	}
	ctx := &podContext{spec: spec, allow: allow}
	ctx.volumes = checkVolumes(e, spec.Volumes, meta, childOf(p, "volumes"), allow)
	ctx.claims = checkPodClaims(e, spec.ResourceClaims, meta, childOf(p, "resourceClaims"))
	checkContainers(e, ctx, childOf(p, "containers"))
	checkInitContainers(e, ctx, childOf(p, "initContainers"))
	checkEphemeralContainers(e, ctx, childOf(p, "ephemeralContainers"))
	checkPodResources(e, ctx, childOf(p, "resources"))
	checkHostNetworkPorts(e, ctx, childOf(p, "containers"))
	rules.OneOfOrRequired(e, childOf(p, "restartPolicy"), spec.RestartPolicy,
		corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	rules.OneOfOrRequired(e, childOf(p, "dnsPolicy"), spec.DNSPolicy,
		corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst, corev1.DNSDefault, corev1.DNSNone)
	e.Add(metavalidation.ValidateLabels(spec.NodeSelector, childOf(p, "nodeSelector"))...)
	checkPodSecurityContext(e, ctx, childOf(p, "securityContext"))
	if spec.HostPID && spec.ShareProcessNamespace != nil && *spec.ShareProcessNamespace {
		e.Invalid(childOf(p, "shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	checkAffinity(e, spec.Affinity, childOf(p, "affinity"), allow)
	checkDNSConfig(e, spec, childOf(p, "dnsConfig"), allow)
	for i, g := range spec.ReadinessGates {
		e.InvalidEach(childOf(itemOf(childOf(p, "readinessGates"), i), "conditionType"), string(g.ConditionType), validation.IsQualifiedName(string(g.ConditionType)))
	}
	checkSchedulingGates(e, spec.SchedulingGates, childOf(p, "schedulingGates"))
	checkTopologySpread(e, spec.TopologySpreadConstraints, childOf(p, "topologySpreadConstraints"), allow)
	checkHostProcess(e, spec, p)
	checkHostUsers(e, ctx, p)
	checkHostnameOverride(e, spec, childOf(p, "hostnameOverride"))
	checkNames(e, spec, p)
	CheckTolerations(e, spec.Tolerations, childOf(p, "tolerations"), allow)
	for i, a := range spec.HostAliases {
		ap := itemOf(childOf(p, "hostAliases"), i)
		e.Add(validation.IsValidIPForLegacyField(childOf(ap, "ip"), a.IP, !allow.looseIPs, nil)...)
		for j, name := range a.Hostnames {
			e.DNSSubdomain(itemOf(childOf(ap, "hostnames"), j), name)
		}
	}
	if spec.PriorityClassName != "" {
		e.DNSSubdomain(childOf(p, "priorityClassName"), spec.PriorityClassName)
	}
	if spec.RuntimeClassName != nil {
		e.DNSSubdomain(childOf(p, "runtimeClassName"), *spec.RuntimeClassName)
	}
	if spec.PreemptionPolicy != nil {
		rules.OneOfOrRequired(e, childOf(p, "preemptionPolicy"), *spec.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
	if spec.Overhead != nil {
		checkResources(e, &corev1.ResourceRequirements{Limits: spec.Overhead}, rules.CheckContainerResourceName, nil, childOf(p, "overhead"), allow)
	}
	checkOS(e, spec, p)
	checkSchedulingGroup(e, spec, childOf(p, "schedulingGroup"))
	checkFileKeyVolumes(e, spec, p)
}

// checkNames validates references to other objects by name, and the names of the
// pod in the network.
func checkNames(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	if spec.ServiceAccountName != "" {
		e.DNSSubdomain(childOf(p, "serviceAccountName"), spec.ServiceAccountName)
	}
	if spec.DeprecatedServiceAccount != spec.ServiceAccountName {
		e.Invalid(childOf(p, "deprecatedServiceAccount"), spec.DeprecatedServiceAccount,
			fmt.Sprintf("must be the same as serviceAccountName: %q", spec.ServiceAccountName))
	}
	if spec.NodeName != "" {
		e.DNSSubdomain(childOf(p, "nodeName"), spec.NodeName)
	}
	if s := spec.ActiveDeadlineSeconds; s != nil && (*s < 1 || *s > math.MaxInt32) {
		e.Invalid(childOf(p, "activeDeadlineSeconds"), *s, validation.InclusiveRangeError(1, math.MaxInt32))
	}
	if spec.Hostname != "" {
		e.DNSLabel(childOf(p, "hostname"), spec.Hostname)
	}
	if spec.Subdomain != "" {
		e.DNSLabel(childOf(p, "subdomain"), spec.Subdomain)
	}
}

// checkPodClaims validates the resource claims of a pod and returns their names.
func checkPodClaims(e *rules.Errors, claims []corev1.PodResourceClaim, meta *metav1.ObjectMeta, p *field.Path) sets.Set[string] {
	names, seen := sets.New[string](), sets.New[string]()
	for i := range claims {
		c, cp := &claims[i], itemOf(p, i)
		if c.Name != "" {
			names.Insert(c.Name)
		}
		if meta != nil && IsMirror(meta) {
			e.Forbidden(field.NewPath(""), "static pods do not support resource claims")
			continue
		}
		if !e.NotEmpty(childOf(cp, "name"), c.Name) {
		} else if seen.Has(c.Name) {
			e.Duplicate(childOf(cp, "name"), c.Name)
		} else {
			e.DNSLabel(childOf(cp, "name"), c.Name)
			seen.Insert(c.Name)
		}
		switch {
		case c.ResourceClaimName != nil && c.ResourceClaimTemplateName != nil:
			e.Invalid(cp, rules.GoForm(c), "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		case c.ResourceClaimName == nil && c.ResourceClaimTemplateName == nil:
			e.Invalid(cp, rules.GoForm(c), "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		if c.ResourceClaimName != nil {
			e.DNSSubdomain(childOf(cp, "resourceClaimName"), *c.ResourceClaimName)
		}
		if c.ResourceClaimTemplateName != nil {
			e.DNSSubdomain(childOf(cp, "resourceClaimTemplateName"), *c.ResourceClaimTemplateName)
		}
	}
	return names
}

// checkHostNetworkPorts reports host ports that differ from the container port
// in a pod on the host network. A template may leave the host port unset; it is
// defaulted in the pod.
func checkHostNetworkPorts(e *rules.Errors, ctx *podContext, p *field.Path) {
	if !ctx.spec.HostNetwork {
		return
	}
	for i := range ctx.spec.Containers {
		for j, port := range ctx.spec.Containers[i].Ports {
			if (ctx.allow.pod || port.HostPort != 0) && port.HostPort != port.ContainerPort {
				e.Invalid(childOf(itemOf(childOf(itemOf(p, i), "ports"), j), "hostPort"), port.HostPort, "must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

func checkDNSConfig(e *rules.Errors, spec *corev1.PodSpec, p *field.Path, allow *Allowances) {
	c := spec.DNSConfig
	if spec.DNSPolicy == corev1.DNSNone {
		if c == nil {
			e.Required(p, fmt.Sprintf("must provide `dnsConfig` when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
		if len(c.Nameservers) == 0 {
			e.Required(childOf(p, "nameservers"), fmt.Sprintf("must provide at least one DNS nameserver when `dnsPolicy` is %s", corev1.DNSNone))
			return
		}
	}
	if c == nil {
		return
	}
	if len(c.Nameservers) > maxNameservers {
		e.Invalid(childOf(p, "nameservers"), c.Nameservers, fmt.Sprintf("must not have more than %v nameservers", maxNameservers))
	}
	for i, ip := range c.Nameservers {
		e.Add(validation.IsValidIPForLegacyField(itemOf(childOf(p, "nameservers"), i), ip, !allow.looseIPs, nil)...)
	}
	sp := childOf(p, "searches")
	if len(c.Searches) > maxSearches {
		e.Invalid(sp, c.Searches, fmt.Sprintf("must not have more than %v search paths", maxSearches))
	}
	if len(strings.Join(c.Searches, " ")) > maxSearchChars {
		e.Invalid(sp, c.Searches, fmt.Sprintf("must not have more than %v characters (including spaces) in the search list", maxSearchChars))
	}
	for i, search := range c.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			e.InvalidEach(itemOf(sp, i), search, validation.IsDNS1123SubdomainWithUnderscore(search))
		}
	}
	for i, option := range c.Options {
		if option.Name == "" {
			e.Required(itemOf(childOf(p, "options"), i), "must not be empty")
		}
	}
}

func checkSchedulingGates(e *rules.Errors, gates []corev1.PodSchedulingGate, p *field.Path) {
	var seen rules.Seen[corev1.PodSchedulingGate]
	for i, g := range gates {
		e.InvalidEach(itemOf(p, i), g.Name, validation.IsQualifiedName(g.Name))
		if seen.Again(g) {
			e.Duplicate(itemOf(p, i), g.Name)
		}
	}
}

func checkHostnameOverride(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	if spec.HostnameOverride == nil {
		return
	}
	if spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN {
		e.Forbidden(p, "may not be specified when setHostnameAsFQDN is true")
	}
	if spec.HostNetwork {
		e.Forbidden(p, "may not be specified when hostNetwork is true")
	}
	if len(*spec.HostnameOverride) > maxHostname {
		e.Add(field.TooLong(p, "", maxHostname))
	}
	e.DNSSubdomain(p, *spec.HostnameOverride)
}

func checkSchedulingGroup(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	g := spec.SchedulingGroup
	if g == nil {
		return
	}
	if g.PodGroupName == nil {
		e.Invalid(childOf(p, "podGroupName"), g.PodGroupName, "must specify one of: `podGroupName`")
	} else {
		e.DNSSubdomain(childOf(p, "podGroupName"), *g.PodGroupName)
	}
	if len(spec.EvictionResponders) > 0 {
		e.Forbidden(p, "may not be set when evictionResponders is set")
	}
}

// responderRules are the declared rules for spec.evictionResponders.
const responderRules = `
PodSpec
  evictionResponders max-items=10 optional key=name
EvictionResponder
  name required reserved=.k8s.io,.kubernetes.io prefixed-label-key
  priority required reserved-below=1000 max=100000 min=0
`

// ValidateResponders validates spec.evictionResponders; old is nil on create.
func ValidateResponders(ctx context.Context, spec, old *corev1.PodSpec, p *field.Path) field.ErrorList {
	if len(spec.EvictionResponders) == 0 {
		return nil
	}
	return declared.Parse(responderRules).Judge(ctx, spec, old, p)
}

// IsMirror reports whether a pod is a mirror pod: the API object of a static pod,
// which a kubelet runs from a file.
func IsMirror(meta *metav1.ObjectMeta) bool {
	_, ok := meta.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}

// CheckAnnotations validates the annotations that have a meaning for pods.
func CheckAnnotations(e *rules.Errors, annotations map[string]string, spec *corev1.PodSpec, p *field.Path, allow *Allowances) {
	if len(annotations) == 0 {
		return
	}
	if value, ok := annotations[corev1.MirrorPodAnnotationKey]; ok && spec.NodeName == "" {
		e.Invalid(entryOf(p, corev1.MirrorPodAnnotationKey), value, "must set spec.nodeName if mirror pod annotation is set")
	}
	if value := annotations[corev1.TolerationsAnnotationKey]; value != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(value), &tolerations); err != nil {
			e.Invalid(p, corev1.TolerationsAnnotationKey, err.Error())
		} else {
			CheckTolerations(e, tolerations, childOf(p, corev1.TolerationsAnnotationKey), allow)
		}
	}
	if !allow.deletionCost && !validDeletionCost(annotations) {
		e.Invalid(entryOf(p, corev1.PodDeletionCost), annotations[corev1.PodDeletionCost], "must be a 32bit integer")
	}
	keys := sets.List(sets.KeySet(annotations))
	if value, ok := annotations[corev1.SeccompPodAnnotationKey]; ok {
		checkSeccompName(e, value, childOf(p, corev1.SeccompPodAnnotationKey))
	}
	for _, key := range keys {
		if strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			checkSeccompName(e, annotations[key], childOf(p, key))
		}
	}
	containers := sync.OnceValue(func() sets.Set[string] {
		names := sets.New[string]()
		for c := range Containers(spec) {
			names.Insert(c.Name)
		}
		return names
	})
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix); ok {
			if !containers().Has(name) {
				e.Invalid(entryOf(p, key), name, "container not found")
			}
			checkAppArmorName(e, annotations[key], entryOf(p, key))
		}
	}
}

func checkSeccompName(e *rules.Errors, name string, p *field.Path) {
	switch name {
	case corev1.SeccompProfileRuntimeDefault, corev1.DeprecatedSeccompProfileDockerDefault, corev1.SeccompProfileNameUnconfined:
		return
	}
	if path, ok := strings.CutPrefix(name, corev1.SeccompLocalhostProfileNamePrefix); ok {
		checkDescendingPath(e, path, p)
	} else {
		e.Invalid(p, name, "must be a valid seccomp profile")
	}
}

func checkAppArmorName(e *rules.Errors, name string, p *field.Path) {
	switch name {
	case "", corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return
	}
	if !strings.HasPrefix(name, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
		e.Invalid(p, name, fmt.Sprintf("invalid AppArmor profile name: %q", name))
	}
}

// CheckPod validates a pod without comparing it with its old version.
func CheckPod(e *rules.Errors, pod *corev1.Pod, allow *Allowances) {
	withPathsIfWrong(e, nil, func(e *rules.Errors, root *field.Path) { checkPod(e, pod, root, allow) })
}

func checkPod(e *rules.Errors, pod *corev1.Pod, root *field.Path, allow *Allowances) {
	p := childOf(root, "spec")
	CheckAnnotations(e, pod.Annotations, &pod.Spec, childOf(root, "metadata", "annotations"), allow)
	checkSpec(e, &pod.Spec, &pod.ObjectMeta, p, allow)
	for i := range pod.Spec.Volumes {
		v := pod.Spec.Volumes[i].Projected
		if v == nil || pod.Spec.ServiceAccountName != "" {
			continue
		}
		for j := range v.Sources {
			if v.Sources[j].ServiceAccountToken != nil {
				e.Forbidden(childOf(itemOf(childOf(itemOf(childOf(p, "volumes"), i), "projected", "sources"), j), "serviceAccountToken"),
					"must not be specified when serviceAccountName is not set")
			}
		}
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		e.NonNegative(childOf(p, "terminationGracePeriodSeconds"), *s)
	}
	for i := range pod.Spec.Containers {
		CheckImageSpaces(e, &pod.Spec.Containers[i], itemOf(childOf(p, "containers"), i))
	}
	for i := range pod.Spec.InitContainers {
		CheckImageSpaces(e, &pod.Spec.InitContainers[i], itemOf(childOf(p, "initContainers"), i))
	}
}
