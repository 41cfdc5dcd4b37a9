package podspec

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
)

const rulesWithoutPolicy = "must specify restartPolicy when restart rules are used"

// podContext has the parts of a pod spec that the rules for containers need.
type podContext struct {
	spec    *corev1.PodSpec
	volumes map[string]*corev1.VolumeSource
	// claims are the names of the pod's resource claims.
	claims sets.Set[string]
	allow  *Allowances
}

// hostUsers reports whether the pod runs in the user namespace of the host.
func (c *podContext) hostUsers() bool { return c.spec.HostUsers == nil || *c.spec.HostUsers }

// Containers yields every container of a pod spec: the init containers, the
// ordinary ones and the ephemeral ones.
func Containers(spec *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		walkContainers(spec, func(c *corev1.Container, _ string, _ int) bool { return yield(c) })
	}
}

// Place is where a container is in a pod spec.
type Place struct {
	spec *field.Path
	list string
	i    int
}

// Path makes the field path of the container.
func (p Place) Path() *field.Path { return itemOf(childOf(p.spec, p.list), p.i) }

// EachContainer calls f for every container of a pod spec, whose path is p.
func EachContainer(spec *corev1.PodSpec, p *field.Path, f func(c *corev1.Container, at Place)) {
	walkContainers(spec, func(c *corev1.Container, list string, i int) bool {
		f(c, Place{p, list, i})
		return true
	})
}

// walkContainers calls f for every container with the field that lists it and
// its index there, until f returns false.
func walkContainers(spec *corev1.PodSpec, f func(c *corev1.Container, list string, i int) bool) {
	for i := range spec.InitContainers {
		if !f(&spec.InitContainers[i], "initContainers", i) {
			return
		}
	}
	for i := range spec.Containers {
		if !f(&spec.Containers[i], "containers", i) {
			return
		}
	}
	for i := range spec.EphemeralContainers {
		if !f((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon), "ephemeralContainers", i) {
			return
		}
	}
}

// anyContainer reports whether f holds for a container of a pod spec.
func anyContainer(spec *corev1.PodSpec, f func(c *corev1.Container) bool) bool {
	for c := range Containers(spec) {
		if f(c) {
			return true
		}
	}
	return false
}

// IsSidecar reports whether an init container keeps running beside the ordinary
// containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func checkContainers(e *rules.Errors, ctx *podContext, p *field.Path) {
	if len(ctx.spec.Containers) == 0 {
		e.Required(p, "")
		return
	}
	var names, ports rules.Seen[string]
	for i := range ctx.spec.Containers {
		c, cp := &ctx.spec.Containers[i], itemOf(p, i)
		checkContainer(e, ctx, c, cp)
		if names.Again(c.Name) {
			e.Duplicate(childOf(cp, "name"), c.Name)
		}
		checkRunning(e, ctx, c, cp)
		checkRestartPolicy(e, ctx, c, cp)
	}
	for i := range ctx.spec.Containers {
		checkHostPorts(e, &ctx.spec.Containers[i], &ports, itemOf(p, i))
	}
}

func checkInitContainers(e *rules.Errors, ctx *podContext, p *field.Path) {
	var names rules.Seen[string]
	for i := range ctx.spec.Containers {
		names.Again(ctx.spec.Containers[i].Name)
	}
	for i := range ctx.spec.InitContainers {
		c, cp := &ctx.spec.InitContainers[i], itemOf(p, i)
		checkContainer(e, ctx, c, cp)
		if c.RestartPolicy != nil && IsSidecar(c) && !ctx.allow.restartAll {
			if len(c.RestartPolicyRules) > 0 {
				e.Forbidden(childOf(cp, "restartPolicyRules"), "restartPolicyRules are not allowed for init containers with restart policy Always")
			}
		} else if c.RestartPolicy != nil {
			checkRestartPolicy(e, ctx, c, cp)
		} else if len(c.RestartPolicyRules) > 0 {
			e.Required(childOf(cp, "restartPolicy"), rulesWithoutPolicy)
		}
		if names.Has(c.Name) {
			e.Duplicate(childOf(cp, "name"), c.Name)
		} else if c.Name != "" {
			names.Again(c.Name)
		}
		// Init containers run one after the other, so each has the ports to
		// itself; the index is that of a list of one.
		checkHostPorts(e, c, new(rules.Seen[string]), itemOf(p, 0))

		if IsSidecar(c) {
			checkRunning(e, ctx, c, cp)
			continue
		}
		const sidecarsOnly = "may not be set for init containers without restartPolicy=Always"
		if c.Lifecycle != nil {
			e.Forbidden(childOf(cp, "lifecycle"), sidecarsOnly)
		}
		if c.LivenessProbe != nil {
			e.Forbidden(childOf(cp, "livenessProbe"), sidecarsOnly)
		}
		if c.ReadinessProbe != nil {
			e.Forbidden(childOf(cp, "readinessProbe"), sidecarsOnly)
		}
		if c.StartupProbe != nil {
			e.Forbidden(childOf(cp, "startupProbe"), sidecarsOnly)
		}
		for j, r := range c.ResizePolicy {
			if r.RestartPolicy == corev1.RestartContainer && !ctx.allow.initRestartOnResize {
				e.Invalid(childOf(itemOf(childOf(cp, "resizePolicy"), j), "restartPolicy"), r.RestartPolicy,
					"must not be set to 'RestartContainer' for non-sidecar initContainers")
			}
		}
	}
}

func checkEphemeralContainers(e *rules.Errors, ctx *podContext, p *field.Path) {
	const forbidden = "cannot be set for an Ephemeral Container"
	others := sets.New[string]()
	for i := range ctx.spec.Containers {
		others.Insert(ctx.spec.Containers[i].Name)
	}
	for i := range ctx.spec.InitContainers {
		others.Insert(ctx.spec.InitContainers[i].Name)
	}
	all := others.Clone()
	for i := range ctx.spec.EphemeralContainers {
		ec, cp := &ctx.spec.EphemeralContainers[i], itemOf(p, i)
		c := (*corev1.Container)(&ec.EphemeralContainerCommon)
		checkContainer(e, ctx, c, cp)
		CheckImageSpaces(e, c, cp)
		if all.Has(c.Name) {
			e.Duplicate(childOf(cp, "name"), c.Name)
		}
		all.Insert(c.Name)
		if ec.TargetContainerName != "" && !others.Has(ec.TargetContainerName) {
			e.Add(field.NotFound(childOf(cp, "targetContainerName"), ec.TargetContainerName))
		}
		rules.ForbidOthers(e, ec.EphemeralContainerCommon, forbidden, cp, "Name", "Image", "Command", "Args", "WorkingDir",
			"EnvFrom", "Env", "VolumeMounts", "VolumeDevices", "TerminationMessagePath", "TerminationMessagePolicy",
			"ImagePullPolicy", "SecurityContext", "Stdin", "StdinOnce", "TTY")
		for j, m := range c.VolumeMounts {
			if m.SubPath != "" {
				e.Forbidden(childOf(itemOf(childOf(cp, "volumeMounts"), j), "subPath"), forbidden)
			}
			if m.SubPathExpr != "" {
				e.Forbidden(childOf(itemOf(childOf(cp, "volumeMounts"), j), "subPathExpr"), forbidden)
			}
		}
	}
}

// checkContainer validates the fields that init, ordinary and ephemeral
// containers share.
func checkContainer(e *rules.Errors, ctx *podContext, c *corev1.Container, p *field.Path) {
	if e.NotEmpty(childOf(p, "name"), c.Name) {
		e.DNSLabel(childOf(p, "name"), c.Name)
	}
	e.NotEmpty(childOf(p, "image"), c.Image)
	rules.OneOfOrRequired(e, childOf(p, "terminationMessagePolicy"), c.TerminationMessagePolicy,
		corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	checkPorts(e, c.Ports, childOf(p, "ports"))
	checkEnv(e, c.Env, childOf(p, "env"))
	checkEnvFrom(e, c.EnvFrom, childOf(p, "envFrom"))
	checkMounts(e, ctx, c, childOf(p, "volumeMounts"))
	checkDevices(e, ctx, c, childOf(p, "volumeDevices"))
	checkPullPolicy(e, c.ImagePullPolicy, childOf(p, "imagePullPolicy"))
	checkResources(e, &c.Resources, rules.CheckContainerResourceName, ctx.claims, childOf(p, "resources"), ctx.allow)
	checkResizePolicy(e, c.ResizePolicy, ctx.spec.RestartPolicy, childOf(p, "resizePolicy"))
	checkSecurityContext(e, c.SecurityContext, ctx, childOf(p, "securityContext"))
}

// checkRunning validates the hooks and probes of a container that keeps running.
func checkRunning(e *rules.Errors, ctx *podContext, c *corev1.Container, p *field.Path) {
	grace := ctx.spec.TerminationGracePeriodSeconds
	if l := c.Lifecycle; l != nil {
		lp := childOf(p, "lifecycle")
		if h := l.PostStart; h != nil {
			checkHandler(e, handler{h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep}, grace, childOf(lp, "postStart"))
		}
		if h := l.PreStop; h != nil {
			checkHandler(e, handler{h.Exec, h.HTTPGet, h.TCPSocket, nil, h.Sleep}, grace, childOf(lp, "preStop"))
		}
		if l.StopSignal != nil {
			checkStopSignal(e, *l.StopSignal, ctx.spec.OS, childOf(lp, "stopSignal"))
		}
	}
	checkProbe(e, c.LivenessProbe, livenessProbe, p)
	checkProbe(e, c.ReadinessProbe, readinessProbe, p)
	checkProbe(e, c.StartupProbe, startupProbe, p)
}

// CheckImageSpaces reports an image with spaces at its beginning or end.
func CheckImageSpaces(e *rules.Errors, c *corev1.Container, p *field.Path) {
	if c.Image != strings.TrimSpace(c.Image) {
		e.Invalid(childOf(p, "image"), c.Image, "must not have leading or trailing whitespace")
	}
}

func checkPullPolicy(e *rules.Errors, policy corev1.PullPolicy, p *field.Path) {
	rules.OneOfOrRequired(e, p, policy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}

func checkPorts(e *rules.Errors, ports []corev1.ContainerPort, p *field.Path) {
	var names rules.Seen[string]
	for i := range ports {
		port, pp := &ports[i], itemOf(p, i)
		if port.Name != "" {
			if messages := rules.CheckPortName(port.Name); len(messages) > 0 {
				e.InvalidEach(childOf(pp, "name"), port.Name, messages)
			} else if names.Again(port.Name) {
				e.Duplicate(childOf(pp, "name"), port.Name)
			}
		}
		if port.ContainerPort == 0 {
			e.Required(childOf(pp, "containerPort"), "")
		} else {
			e.InvalidEach(childOf(pp, "containerPort"), port.ContainerPort, validation.IsValidPortNum(int(port.ContainerPort)))
		}
		if port.HostPort != 0 {
			e.InvalidEach(childOf(pp, "hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))
		}
		rules.OneOfOrRequired(e, childOf(pp, "protocol"), port.Protocol, corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP)
	}
}

// checkHostPorts reports host ports that another container already uses, and
// adds those of the container to taken.
func checkHostPorts(e *rules.Errors, c *corev1.Container, taken *rules.Seen[string], p *field.Path) {
	for i, port := range c.Ports {
		if port.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
		if taken.Again(key) {
			e.Duplicate(childOf(itemOf(childOf(p, "ports"), i), "hostPort"), key)
		}
	}
}

func checkMounts(e *rules.Errors, ctx *podContext, c *corev1.Container, p *field.Path) {
	var paths rules.Seen[string]
	devices, devicePaths := placesOf(c.VolumeDevices, func(d *corev1.VolumeDevice) (name, path string) { return d.Name, d.DevicePath })
	for i := range c.VolumeMounts {
		m, mp := &c.VolumeMounts[i], itemOf(p, i)
		e.NotEmpty(childOf(mp, "name"), m.Name)
		volume := ctx.volumes[m.Name]
		if volume == nil {
			e.Add(field.NotFound(childOf(mp, "name"), m.Name))
		}
		e.NotEmpty(childOf(mp, "mountPath"), m.MountPath)
		if paths.Again(m.MountPath) {
			e.Invalid(childOf(mp, "mountPath"), m.MountPath, "must be unique")
		}
		if devices.Has(m.Name) {
			e.Invalid(childOf(mp, "name"), m.Name, "must not already exist in volumeDevices")
		}
		if devicePaths.Has(m.MountPath) {
			e.Invalid(childOf(mp, "mountPath"), m.MountPath, "must not already exist as a path in volumeDevices")
		}
		checkDescendingPath(e, m.SubPath, childOf(p, "subPath"))
		if m.SubPathExpr != "" && m.SubPath != "" {
			e.Invalid(childOf(mp, "subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
		}
		checkDescendingPath(e, m.SubPathExpr, childOf(p, "subPathExpr"))
		checkPropagation(e, m, c, p)
		checkBindOptions(e, m, volume, childOf(mp, "bindMountOptions"))
	}
}

// checkPropagation validates mount propagation. Its errors have the path of the
// list of mounts, not of the mount, as in Kubernetes.
func checkPropagation(e *rules.Errors, m *corev1.VolumeMount, c *corev1.Container, p *field.Path) {
	pp := childOf(p, "mountPropagation")
	rules.OneOfPointer(e, pp, m.MountPropagation,
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional && !isPrivileged(c.SecurityContext) {
		e.Forbidden(pp, "Bidirectional mount propagation is available only to privileged containers")
	}

	rp := childOf(p, "recursiveReadOnly")
	rules.OneOfPointer(e, rp, m.RecursiveReadOnly,
		corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled, corev1.RecursiveReadOnlyIfPossible)
	if m.RecursiveReadOnly == nil ||
		*m.RecursiveReadOnly != corev1.RecursiveReadOnlyEnabled && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible {
		return
	}
	if !m.ReadOnly {
		e.Forbidden(rp, "may only be specified when readOnly is true")
	}
	if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
		e.Forbidden(rp, "may only be specified when mountPropagation is None or not specified")
	}
}

func isPrivileged(sc *corev1.SecurityContext) bool {
	return sc != nil && sc.Privileged != nil && *sc.Privileged
}

func checkBindOptions(e *rules.Errors, m *corev1.VolumeMount, volume *corev1.VolumeSource, p *field.Path) {
	var seen rules.Seen[string]
	for i, option := range m.BindMountOptions {
		rules.OneOf(e, itemOf(p, i), option,
			string(corev1.BindMountOptionNoDev), string(corev1.BindMountOptionNoExec), string(corev1.BindMountOptionNoSUID))
		if seen.Again(option) {
			e.Duplicate(itemOf(p, i), option)
		}
	}
	if len(m.BindMountOptions) > 0 && volume != nil && volume.Image != nil {
		e.Invalid(p, m.BindMountOptions, "bindMountOptions may not be used with image volumes")
	}
}

// placesOf returns the names and paths of devices or mounts. Only the last entry of each
// name counts, because an earlier one is reported as a duplicate.
func placesOf[E any](list []E, place func(*E) (name, path string)) (names, paths sets.Set[string]) {
	names, paths = sets.New[string](), sets.New[string]()
	for i := range slices.Backward(list) {
		if name, path := place(&list[i]); !names.Has(name) {
			names.Insert(name)
			paths.Insert(path)
		}
	}
	return names, paths
}

func checkDevices(e *rules.Errors, ctx *podContext, c *corev1.Container, p *field.Path) {
	if len(c.VolumeDevices) == 0 {
		return
	}
	names, paths := sets.New[string](), sets.New[string]()
	mounts, mountPaths := placesOf(c.VolumeMounts, func(m *corev1.VolumeMount) (name, path string) { return m.Name, m.MountPath })
	for i := range c.VolumeDevices {
		d, dp := &c.VolumeDevices[i], itemOf(p, i)
		np, pp := childOf(dp, "name"), childOf(dp, "devicePath")
		e.NotEmpty(np, d.Name)
		if names.Has(d.Name) {
			e.Invalid(np, d.Name, "must be unique")
		}
		if volume := ctx.volumes[d.Name]; volume == nil {
			e.Add(field.NotFound(np, d.Name))
		} else if volume.PersistentVolumeClaim == nil && volume.Ephemeral == nil {
			e.Invalid(np, d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		e.NotEmpty(pp, d.DevicePath)
		if paths.Has(d.DevicePath) {
			e.Invalid(pp, d.DevicePath, "must be unique")
		}
		if hasBackstep(d.DevicePath) {
			e.Invalid(pp, d.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths.Insert(d.DevicePath)
		}
		if mounts.Has(d.Name) {
			e.Invalid(np, d.Name, "must not already exist in volumeMounts")
		}
		if mountPaths.Has(d.DevicePath) {
			e.Invalid(pp, d.DevicePath, "must not already exist as a path in volumeMounts")
		}
		if d.Name != "" {
			names.Insert(d.Name)
		}
	}
}

func checkResizePolicy(e *rules.Errors, policies []corev1.ContainerResizePolicy, podPolicy corev1.RestartPolicy, p *field.Path) {
	var seen rules.Seen[corev1.ResourceName]
	for i, r := range policies {
		if seen.Again(r.ResourceName) {
			e.Duplicate(itemOf(p, i), r.ResourceName)
		}
		rules.OneOfOrRequired(e, p, r.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		rules.OneOfOrRequired(e, p, r.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		if podPolicy == corev1.RestartPolicyNever && r.RestartPolicy != corev1.NotRequired {
			e.Invalid(p, r.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

// checkRestartPolicy validates the restart policy of a container and its rules.
func checkRestartPolicy(e *rules.Errors, ctx *podContext, c *corev1.Container, p *field.Path) {
	if c.RestartPolicy == nil {
		if len(c.RestartPolicyRules) > 0 {
			e.Required(childOf(p, "restartPolicy"), rulesWithoutPolicy)
		}
	} else {
		rules.OneOf(e, childOf(p, "restartPolicy"), *c.RestartPolicy,
			corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever, corev1.ContainerRestartPolicyOnFailure)
	}
	rp := childOf(p, "restartPolicyRules")
	if n := len(c.RestartPolicyRules); n > 20 {
		e.Add(field.TooMany(rp, n, 20))
	}
	actions := []corev1.ContainerRestartRuleAction{corev1.ContainerRestartRuleActionRestart}
	if ctx.allow.restartAll {
		actions = append(actions, corev1.ContainerRestartRuleActionRestartAllContainers)
	}
	for i, rule := range c.RestartPolicyRules {
		rules.OneOf(e, childOf(itemOf(rp, i), "action"), rule.Action, actions...)
		cp := childOf(itemOf(rp, i), "exitCodes")
		if rule.ExitCodes == nil {
			e.Required(cp, "must be specified")
			continue
		}
		rules.OneOf(e, childOf(cp, "operator"), rule.ExitCodes.Operator,
			corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
		if n := len(rule.ExitCodes.Values); n > 255 {
			e.Add(field.TooMany(childOf(cp, "values"), n, 255))
		}
	}
}
