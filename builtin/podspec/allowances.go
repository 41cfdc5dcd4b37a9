package podspec

import (
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/features"
)

// Allowances lists the rules that validation of a pod or template leaves out,
// because the old version of the object already breaks them (an object that was
// once accepted can always be updated) or because a feature gate lifts them.
type Allowances struct {
	// pod is true for a pod and false for a template.
	pod bool

	deletionCost               bool // a deletion cost that is no number
	partialHugePages           bool // huge pages that are no whole number of pages
	selectorValues             bool // bad label values in selectors of pod affinity
	nodeAffinityValues         bool // bad label values in required node affinity
	spreadSelectors            bool // bad selectors in topology spread constraints
	unmergedLabelKeys          bool // keys of spread constraints that are not merged into selectors
	tokenPaths                 bool // paths of tokens that leave the volume
	hostSysctls                bool // sysctls of namespaces that the host owns
	initRestartOnResize        bool // init containers that restart when resized
	devicesInUserNamespace     bool // block devices in a user namespace
	hostNetworkInUserNamespace bool // the host's network in a user namespace
	numericTolerations         bool // tolerations that compare numbers
	emptyImageReference        bool // image volumes without an image
	looseIPs                   bool // IP addresses with leading zeros
	sysAdminWithoutEscalation  bool // CAP_SYS_ADMIN without privilege escalation
	restartAll                 bool // rules that restart all containers, and rules of sidecars
	mountSELinux               bool // a seLinuxChangePolicy other than Recursive
}

// allowancesFor returns the allowances for an update of a pod or template whose
// old version is old, or for a create if old is nil.
func allowancesFor(ctx context.Context, old *corev1.PodSpec, oldMeta *metav1.ObjectMeta) *Allowances {
	gates := features.From(ctx)
	a := &Allowances{
		hostNetworkInUserNamespace: gates.Enabled("UserNamespacesHostNetworkSupport"),
		numericTolerations:         gates.Enabled("TaintTolerationComparisonOperators"),
		looseIPs:                   !rules.StrictIPs(ctx),
		deletionCost:               !gates.Enabled("PodDeletionCost"),
		restartAll:                 gates.Enabled("RestartAllContainersOnContainerExits"),
		mountSELinux:               gates.Enabled("SELinuxMount"),
	}
	merges := mergesSpreadKeys(gates)
	a.unmergedLabelKeys = !merges
	if old == nil {
		return a
	}
	a.deletionCost = a.deletionCost || !validDeletionCost(oldMeta.Annotations)
	a.restartAll = a.restartAll || restartsAll(old)
	a.mountSELinux = a.mountSELinux || old.SecurityContext != nil && old.SecurityContext.SELinuxChangePolicy != nil
	a.partialHugePages = partialPages(old.Overhead) || anyContainer(old, func(c *corev1.Container) bool {
		return partialPages(c.Resources.Limits) || partialPages(c.Resources.Requests)
	})
	a.selectorValues = badAffinitySelectors(old.Affinity)
	a.nodeAffinityValues = badNodeAffinity(old.Affinity)
	for i := range old.TopologySpreadConstraints {
		c := &old.TopologySpreadConstraints[i]
		if len(metavalidation.ValidateLabelSelector(c.LabelSelector, metavalidation.LabelSelectorValidationOptions{}, nil)) > 0 {
			a.spreadSelectors = true
		}
		// Keys that do not pass the rules of the gate are judged by the rules of the other
		// position, in which they were written.
		var merged, unmerged rules.Errors
		checkLabelKeys(&merged, c.MatchLabelKeys, nil, c.LabelSelector, nil)
		checkOldLabelKeys(&unmerged, c, nil)
		if merges && len(merged) > 0 || !merges && len(unmerged) > 0 {
			a.unmergedLabelKeys = merges
		}
	}
	for i := range old.Volumes {
		if image := old.Volumes[i].Image; image != nil && image.Reference == "" {
			a.emptyImageReference = true
		}
		if old.Volumes[i].Projected == nil {
			continue
		}
		for _, s := range old.Volumes[i].Projected.Sources {
			var e rules.Errors
			if s.ServiceAccountToken != nil {
				checkFilePath(&e, s.ServiceAccountToken.Path, nil)
			}
			a.tokenPaths = a.tokenPaths || len(e) > 0
		}
	}
	if old.SecurityContext != nil {
		a.hostSysctls = slices.ContainsFunc(old.SecurityContext.Sysctls, func(s corev1.Sysctl) bool { return hostSysctl(s.Name, old) != "" })
	}
	a.initRestartOnResize = slices.ContainsFunc(old.InitContainers, func(c corev1.Container) bool {
		return !IsSidecar(&c) && slices.ContainsFunc(c.ResizePolicy, func(r corev1.ContainerResizePolicy) bool {
			return r.RestartPolicy == corev1.RestartContainer
		})
	})
	if old.HostUsers != nil && !*old.HostUsers {
		a.hostNetworkInUserNamespace = a.hostNetworkInUserNamespace || old.HostNetwork
		a.devicesInUserNamespace = anyContainer(old, func(c *corev1.Container) bool { return len(c.VolumeDevices) > 0 })
	}
	a.numericTolerations = a.numericTolerations || slices.ContainsFunc(old.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpLt || t.Operator == corev1.TolerationOpGt
	})
	a.sysAdminWithoutEscalation = anyContainer(old, func(c *corev1.Container) bool {
		sc := c.SecurityContext
		return sc != nil && (sc.AllowPrivilegeEscalation == nil || !*sc.AllowPrivilegeEscalation) &&
			sc.Capabilities != nil && slices.Contains(sc.Capabilities.Add, sysAdmin)
	})
	return a
}

// validDeletionCost reports whether the deletion cost annotation is absent or a
// 32-bit integer without a plus sign or leading zeros.
func validDeletionCost(annotations map[string]string) bool {
	value, ok := annotations[corev1.PodDeletionCost]
	if !ok {
		return true
	}
	if value == "" || value[0] == '+' || value[0] == '0' && value != "0" {
		return false
	}
	_, err := strconv.ParseInt(value, 10, 32)
	return err == nil
}

func partialPages(list corev1.ResourceList) bool {
	for name, quantity := range list {
		if rules.IsHugePages(name) && !rules.IsWholePages(name, quantity) {
			return true
		}
	}
	return false
}

func badAffinitySelectors(a *corev1.Affinity) bool {
	bad := false
	eachAffinityTerm(a, func(t *corev1.PodAffinityTerm) {
		var e rules.Errors
		checkAffinitySelectors(&e, t, nil, false)
		bad = bad || len(e) > 0
	})
	return bad
}

func badNodeAffinity(a *corev1.Affinity) bool {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	for _, t := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, x := range t.MatchExpressions {
			if slices.ContainsFunc(x.Values, func(v string) bool { return len(validation.IsValidLabelValue(v)) > 0 }) {
				return true
			}
		}
	}
	return false
}

// PodAllowances returns the allowances for an update of a pod, or for a create if
// old is nil.
func PodAllowances(ctx context.Context, old *corev1.Pod) *Allowances {
	var a *Allowances
	if old == nil {
		a = allowancesFor(ctx, nil, nil)
	} else {
		a = allowancesFor(ctx, &old.Spec, &old.ObjectMeta)
	}
	a.pod = true
	return a
}

// mergesSpreadKeys reports whether matchLabelKeys of spread constraints are merged into
// their selectors.
func mergesSpreadKeys(gates features.Gates) bool {
	return gates.Enabled("MatchLabelKeysInPodTopologySpread") && gates.Enabled("MatchLabelKeysInPodTopologySpreadSelectorMerge")
}

// restartsAll reports whether a rule restarts all containers, or a sidecar has rules.
func restartsAll(spec *corev1.PodSpec) bool {
	all := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(spec.Containers, all) || slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool {
		return all(c) || IsSidecar(&c) && len(c.RestartPolicyRules) > 0
	})
}
