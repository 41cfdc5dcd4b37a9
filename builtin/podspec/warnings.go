package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilnet "k8s.io/utils/net"

	"github.com/apikeel/kelson/builtin/rules"
)

// NameWarnings warns about the name of a workload that is not a valid prefix of the hostnames
// of its pods.
func NameWarnings(name string) []string {
	if messages := validation.IsDNS1123Label(name); len(messages) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", messages)}
	}
	return nil
}

// CreateWarnings returns the warnings for a new pod.
func CreateWarnings(pod *corev1.Pod) []string {
	var w []string
	if messages := validation.IsDNS1123Label(pod.Name); len(messages) > 0 {
		w = append(w, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", messages))
	}
	return append(w, specWarnings(&pod.Spec, &pod.ObjectMeta, nil)...)
}

// specWarnings returns the warnings for the spec and annotations of a pod, or of
// the template at path; path is nil for a pod.
func specWarnings(spec *corev1.PodSpec, meta *metav1.ObjectMeta, path *field.Path) []string {
	if len(warningsAt(noPath, spec, meta, path != nil)) == 0 {
		return nil
	}
	return warningsAt(path, spec, meta, path != nil)
}

func warningsAt(path *field.Path, spec *corev1.PodSpec, meta *metav1.ObjectMeta, template bool) []string {
	sp, ap := childOf(path, "spec"), childOf(path, "metadata", "annotations")
	w := schedulingWarnings(spec, sp)

	for _, old := range [][2]string{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := meta.Annotations[old[0]]; ok {
			w = append(w, fmt.Sprintf("%s: %s", entryOf(ap, old[0]), old[1]))
		}
	}
	for i := range spec.Volumes {
		w = append(w, volumeWarnings(&spec.Volumes[i], itemOf(childOf(sp, "volumes"), i))...)
	}
	for i := range spec.Volumes {
		w = append(w, overlapWarnings(&spec.Volumes[i])...)
	}
	var addresses rules.Seen[string]
	for i, a := range spec.HostAliases {
		if addresses.Again(a.IP) {
			w = append(w, fmt.Sprintf("%s: duplicate ip %q", childOf(itemOf(childOf(sp, "hostAliases"), i), "ip"), a.IP))
		}
	}
	var secrets rules.Seen[corev1.LocalObjectReference]
	for i, s := range spec.ImagePullSecrets {
		if secrets.Again(s) {
			w = append(w, fmt.Sprintf("%s: duplicate name %q", childOf(itemOf(childOf(sp, "imagePullSecrets"), i), "name"), s.Name))
		}
	}
	for i, s := range spec.ImagePullSecrets {
		if s.Name == "" {
			w = append(w, fmt.Sprintf("%s: invalid empty name %q", childOf(itemOf(childOf(sp, "imagePullSecrets"), i), "name"), s.Name))
		}
	}
	w = appendFraction(w, spec.Overhead, corev1.ResourceMemory, childOf(sp, "overhead"))
	w = appendFraction(w, spec.Overhead, corev1.ResourceEphemeralStorage, childOf(sp, "overhead"))

	seccomp := func(key string, field *corev1.SeccompProfile) {
		if _, ok := meta.Annotations[key]; ok && field == nil {
			w = append(w, fmt.Sprintf(`%s: non-functional in v1.27+; use the "seccompProfile" field instead`, entryOf(ap, key)))
		}
	}
	ofPod := spec.SecurityContext
	if ofPod == nil {
		ofPod = &corev1.PodSecurityContext{}
	}
	seccomp(corev1.SeccompPodAnnotationKey, ofPod.SeccompProfile)
	EachContainer(spec, sp, func(c *corev1.Container, at Place) {
		own := c.SecurityContext
		if own == nil {
			own = &corev1.SecurityContext{}
		}
		seccomp(corev1.SeccompContainerAnnotationKeyPrefix+c.Name, own.SeccompProfile)
		// For pods the warning is given by AdoptAppArmorAnnotations.
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		if value, ok := meta.Annotations[key]; ok && template && own.AppArmorProfile == nil &&
			(ofPod.AppArmorProfile == nil || !equality.Semantic.DeepEqual(ofPod.AppArmorProfile, appArmorFromAnnotation(value))) {
			w = append(w, appArmorWarning(entryOf(ap, key)))
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if hasFraction(c.Resources.Limits, name) {
				w = appendFraction(w, c.Resources.Limits, name, childOf(at.Path(), "resources", "limits"))
			}
			if hasFraction(c.Resources.Requests, name) {
				w = appendFraction(w, c.Resources.Requests, name, childOf(at.Path(), "resources", "requests"))
			}
		}
		if len(c.Env) > 0 {
			w = append(w, envWarnings(c.Env, childOf(at.Path(), "env"))...)
		}
	})
	w = append(w, portWarnings(spec, sp)...)
	if s := spec.TerminationGracePeriodSeconds; s != nil && *s < 0 {
		w = append(w, fmt.Sprintf("%s: must be >= 0; negative values are invalid and will be treated as 1", childOf(sp, "terminationGracePeriodSeconds")))
	}
	w = append(w, affinityWarnings(spec.Affinity, childOf(sp, "affinity"))...)
	if spec.DNSConfig != nil {
		for i, ip := range spec.DNSConfig.Nameservers {
			w = append(w, ipWarnings(itemOf(childOf(sp, "dnsConfig", "nameservers"), i), ip)...)
		}
	}
	for i, a := range spec.HostAliases {
		w = append(w, ipWarnings(childOf(itemOf(childOf(sp, "hostAliases"), i), "ip"), a.IP)...)
	}
	return w
}

// ipWarnings returns warnings for an address that has another usual form. What is none at all
// the library would write to the log, with the path.
func ipWarnings(p *field.Path, ip string) []string {
	if utilnet.ParseIPSloppy(ip) == nil {
		return nil
	}
	return validation.GetWarningsForIP(p, ip)
}

// appendFraction adds a warning if a quantity is not a whole number of bytes.
func appendFraction(w []string, list corev1.ResourceList, name corev1.ResourceName, p *field.Path) []string {
	if hasFraction(list, name) {
		q := list[name]
		return append(w, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer", entryOf(p, string(name)), q.String()))
	}
	return w
}

// hasFraction reports whether a quantity is not a whole number.
func hasFraction(list corev1.ResourceList, name corev1.ResourceName) bool {
	q, ok := list[name]
	return ok && q.MilliValue()%1000 != 0
}

// OldNodeLabel returns the deprecation message of a node label, "" if the label is
// not deprecated.
func OldNodeLabel(key string) string {
	switch key {
	case "beta.kubernetes.io/arch":
		return `deprecated since v1.14; use "kubernetes.io/arch" instead`
	case "beta.kubernetes.io/os":
		return `deprecated since v1.14; use "kubernetes.io/os" instead`
	case "failure-domain.beta.kubernetes.io/region":
		return `deprecated since v1.17; use "topology.kubernetes.io/region" instead`
	case "failure-domain.beta.kubernetes.io/zone":
		return `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`
	case "beta.kubernetes.io/instance-type":
		return `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`
	case "app.kubernetes.io/created-by":
		return `deprecated since v1.9`
	case "scheduler.alpha.kubernetes.io/preferAvoidPods":
		return `deprecated since v1.22; use Taints and Tolerations instead`
	case "node-role.kubernetes.io/master":
		return `use "node-role.kubernetes.io/control-plane" instead`
	}
	return ""
}

func schedulingWarnings(spec *corev1.PodSpec, p *field.Path) []string {
	var w []string
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		if m := OldNodeLabel(key); m != "" {
			w = append(w, fmt.Sprintf("%s: %s", entryOf(childOf(p, "nodeSelector"), key), m))
		}
	}
	// Values of preferred terms are not validated, so warnings name invalid ones.
	term := func(t *corev1.NodeSelectorTerm, values bool, p *field.Path) {
		for i, x := range t.MatchExpressions {
			xp := itemOf(childOf(p, "matchExpressions"), i)
			if m := OldNodeLabel(x.Key); m != "" {
				w = append(w, fmt.Sprintf("%s: %s is %s", childOf(xp, "key"), x.Key, m))
			}
			for j, value := range x.Values {
				if !values {
					break
				}
				for _, m := range validation.IsValidLabelValue(value) {
					w = append(w, fmt.Sprintf("%s: %s is invalid, %s", itemOf(childOf(xp, "values"), j), value, m))
				}
			}
		}
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		np := childOf(p, "affinity", "nodeAffinity")
		if r := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i := range r.NodeSelectorTerms {
				term(&r.NodeSelectorTerms[i], false, itemOf(childOf(np, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"), i))
			}
		}
		preferred := a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range preferred {
			term(&preferred[i].Preference, true, childOf(itemOf(childOf(np, "preferredDuringSchedulingIgnoredDuringExecution"), i), "preference"))
		}
	}
	for i, c := range spec.TopologySpreadConstraints {
		cp := itemOf(childOf(p, "topologySpreadConstraints"), i)
		if m := OldNodeLabel(c.TopologyKey); m != "" {
			w = append(w, fmt.Sprintf("%s: %s is %s", childOf(cp, "topologyKey"), c.TopologyKey, m))
		}
		w = appendNullSelector(w, c.LabelSelector, cp)
	}
	return w
}

// appendNullSelector adds a warning for a null label selector, which matches no
// pod.
func appendNullSelector(w []string, s *metav1.LabelSelector, p *field.Path) []string {
	if s != nil {
		return w
	}
	return append(w, fmt.Sprintf("%s: a null labelSelector results in matching no pod", childOf(p, "labelSelector")))
}

func affinityWarnings(a *corev1.Affinity, p *field.Path) []string {
	var w []string
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
		for i := range required {
			w = appendNullSelector(w, required[i].LabelSelector, itemOf(childOf(p, "requiredDuringSchedulingIgnoredDuringExecution"), i))
		}
		for i := range preferred {
			w = appendNullSelector(w, preferred[i].PodAffinityTerm.LabelSelector,
				childOf(itemOf(childOf(p, "preferredDuringSchedulingIgnoredDuringExecution"), i), "podAffinityTerm"))
		}
	}
	if a != nil && a.PodAffinity != nil {
		terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution, childOf(p, "podAffinity"))
	}
	if a != nil && a.PodAntiAffinity != nil {
		terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution, childOf(p, "podAntiAffinity"))
	}
	return w
}

// envWarnings returns warnings for variables that are defined twice, unless the
// second definition refers to the first: otherwise the first one has no effect,
// and clients that merge by name may drop either.
func envWarnings(env []corev1.EnvVar, p *field.Path) []string {
	var w []string
	var names rules.Seen[string]
	for i, v := range env {
		if !names.Again(v.Name) {
			continue
		}
		if ref := "$(" + v.Name + ")"; v.ValueFrom != nil || v.Value == ref || !strings.Contains(v.Value, ref) {
			w = append(w, fmt.Sprintf("%s: hides previous definition of %q, which may be dropped when using apply", itemOf(p, i), v.Name))
		}
	}
	return w
}

func portWarnings(spec *corev1.PodSpec, p *field.Path) []string {
	type block struct {
		path *field.Path
		port *corev1.ContainerPort
	}
	type portKey struct {
		number   int32
		protocol corev1.Protocol
	}
	var w []string
	var all []block
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		for i := range c.Ports {
			all = append(all, block{itemOf(childOf(at.Path(), "ports"), i), &c.Ports[i]})
		}
	})
	same := map[portKey][]block{}
	for _, b := range all {
		if b.port.HostIP != "" && b.port.HostPort == 0 {
			w = append(w, fmt.Sprintf("%s: hostIP set without hostPort: %+v", b.path, *b.port))
		}
		if len(all) == 1 {
			return w
		}
		key := portKey{b.port.ContainerPort, b.port.Protocol}
		for _, o := range same[key] {
			switch {
			case len(w) >= maxPairs:
			case b.port.HostIP == o.port.HostIP && b.port.HostPort == o.port.HostPort:
				w = append(w, fmt.Sprintf("%s: duplicate port definition with %s", b.path, o.path))
			case b.port.HostPort == 0 || o.port.HostPort == 0:
				w = append(w, fmt.Sprintf("%s: overlapping port definition with %s", b.path, o.path))
			case b.port.HostPort == o.port.HostPort && (b.port.HostIP == "") != (o.port.HostIP == ""):
				w = append(w, fmt.Sprintf("%s: dangerously ambiguous port definition with %s", b.path, o.path))
			}
		}
		if len(same[key]) < maxCompared {
			same[key] = append(same[key], b)
		}
	}
	named := map[string]*field.Path{}
	for _, b := range all {
		first := named[b.port.Name]
		switch {
		case first == nil:
			named[b.port.Name] = b.path
		case b.port.Name != "":
			w = append(w, fmt.Sprintf("%s: duplicate port name %q with %s, services and probes that select ports by name will use %s",
				b.path, b.port.Name, first, first))
		}
	}
	return w
}

// Ports and files are compared each with each, and each pair can make a warning. So that
// the work does not grow with the square of what a client sends, an item is compared with
// the first maxCompared others, and pairs make no more than maxPairs warnings.
const (
	maxCompared = 256
	maxPairs    = 4096
)
