package podspec

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/request"
)

const sysAdmin corev1.Capability = "CAP_SYS_ADMIN"

func checkPodSecurityContext(e *rules.Errors, ctx *podContext, p *field.Path) {
	sc := ctx.spec.SecurityContext
	if sc == nil {
		return
	}
	e.GroupID(childOf(p, "fsGroup"), sc.FSGroup)
	e.UserID(childOf(p, "runAsUser"), sc.RunAsUser)
	e.GroupID(childOf(p, "runAsGroup"), sc.RunAsGroup)
	for i := range sc.SupplementalGroups {
		e.GroupID(itemOf(childOf(p, "supplementalGroups"), i), &sc.SupplementalGroups[i])
	}
	checkSysctls(e, sc.Sysctls, ctx, childOf(p, "sysctls"))
	rules.OneOfPointer(e, childOf(p, "fsGroupChangePolicy"), sc.FSGroupChangePolicy, corev1.FSGroupChangeAlways, corev1.FSGroupChangeOnRootMismatch)
	checkSeccompProfile(e, sc.SeccompProfile, childOf(p, "seccompProfile"))
	checkWindowsOptions(e, sc.WindowsOptions, childOf(p, "windowsOptions"))
	checkAppArmorProfile(e, sc.AppArmorProfile, childOf(p, "appArmorProfile"))
	rules.OneOfPointer(e, childOf(p, "supplementalGroupsPolicy"), sc.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	policies := []corev1.PodSELinuxChangePolicy{corev1.SELinuxChangePolicyMountOption, corev1.SELinuxChangePolicyRecursive}
	if !ctx.allow.mountSELinux {
		policies = policies[1:]
	}
	rules.OneOfPointer(e, childOf(p, "seLinuxChangePolicy"), sc.SELinuxChangePolicy, policies...)
}

func checkSecurityContext(e *rules.Errors, sc *corev1.SecurityContext, ctx *podContext, p *field.Path) {
	if sc == nil {
		return
	}
	e.UserID(childOf(p, "runAsUser"), sc.RunAsUser)
	e.GroupID(childOf(p, "runAsGroup"), sc.RunAsGroup)
	rules.OneOfPointer(e, childOf(p, "procMount"), sc.ProcMount, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
	if sc.ProcMount != nil && *sc.ProcMount == corev1.UnmaskedProcMount && ctx.hostUsers() {
		e.Invalid(childOf(p, "procMount"), sc.ProcMount, "`hostUsers` must be false to use `Unmasked`")
	}
	checkSeccompProfile(e, sc.SeccompProfile, childOf(p, "seccompProfile"))
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		if isPrivileged(sc) {
			e.Invalid(p, rules.GoForm(sc), "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if !ctx.allow.sysAdminWithoutEscalation && sc.Capabilities != nil {
			for _, c := range sc.Capabilities.Add {
				if c == sysAdmin {
					e.Invalid(p, rules.GoForm(sc), "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
				}
			}
		}
	}
	checkWindowsOptions(e, sc.WindowsOptions, childOf(p, "windowsOptions"))
	checkAppArmorProfile(e, sc.AppArmorProfile, childOf(p, "appArmorProfile"))
}

const sysctlMaxLength = 253

func checkSysctls(e *rules.Errors, sysctls []corev1.Sysctl, ctx *podContext, p *field.Path) {
	if len(sysctls) == 0 {
		return
	}
	const segment = `[a-z0-9]([-_a-z0-9]*[a-z0-9])?`
	form := regexp.MustCompile(`^(` + segment + `[\./])*` + segment + `$`)
	var seen rules.Seen[string]
	for i, s := range sysctls {
		again := seen.Again(s.Name)
		np := childOf(itemOf(p, i), "name")
		switch {
		case s.Name == "":
			e.Required(np, "")
		case len(s.Name) > sysctlMaxLength || !form.MatchString(s.Name):
			e.Invalid(np, s.Name, fmt.Sprintf("must have at most %d characters and match regex %s", sysctlMaxLength, form))
		case again:
			e.Duplicate(np, s.Name)
		}
		if detail := hostSysctl(s.Name, ctx.spec); detail != "" && !ctx.allow.hostSysctls {
			e.Invalid(np, s.Name, detail)
		}
	}
}

// hostSysctl returns why a sysctl may not be set because it would change the
// host, or "".
func hostSysctl(name string, spec *corev1.PodSpec) string {
	// A name may use slashes where others have dots, and the other way round.
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		name = strings.NewReplacer("/", ".", ".", "/").Replace(name)
	}
	name, _, _ = strings.Cut(name, "*")
	ipc := strings.HasPrefix(name, "fs.mqueue.")
	switch name {
	case "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced", "kernel.shm",
		"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.msg":
		ipc = true
	}
	switch {
	case spec.HostNetwork && strings.HasPrefix(name, "net."):
		return "may not be specified when 'hostNetwork' is true"
	case spec.HostIPC && ipc:
		return "may not be specified when 'hostIPC' is true"
	}
	return ""
}

func checkSeccompProfile(e *rules.Errors, s *corev1.SeccompProfile, p *field.Path) {
	if s == nil {
		return
	}
	if s.Type == "" {
		e.Required(childOf(p, "type"), "type is required when seccompProfile is set")
	} else {
		rules.OneOf(e, childOf(p, "type"), s.Type, corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined)
	}
	lp := childOf(p, "localhostProfile")
	switch {
	case s.Type == corev1.SeccompProfileTypeLocalhost && s.LocalhostProfile == nil:
		e.Required(lp, "must be set when seccomp type is Localhost")
	case s.Type == corev1.SeccompProfileTypeLocalhost:
		checkDescendingPath(e, *s.LocalhostProfile, lp)
	case s.LocalhostProfile != nil:
		e.Invalid(lp, rules.GoForm(s), "can only be set when seccomp type is Localhost")
	}
}

func checkAppArmorProfile(e *rules.Errors, a *corev1.AppArmorProfile, p *field.Path) {
	if a == nil {
		return
	}
	const (
		needed    = "must be set when AppArmor type is Localhost"
		maxLength = 4095 // the longest path of Linux
	)
	lp := childOf(p, "localhostProfile")
	switch a.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		if a.LocalhostProfile == nil {
			e.Required(lp, needed)
			return
		}
		if strings.TrimSpace(*a.LocalhostProfile) != *a.LocalhostProfile {
			e.Invalid(lp, *a.LocalhostProfile, "must not be padded with whitespace")
		} else if *a.LocalhostProfile == "" {
			e.Required(lp, needed)
		}
		if len(*a.LocalhostProfile) > maxLength {
			e.Add(field.TooLong(lp, "", maxLength))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if a.LocalhostProfile != nil {
			e.Invalid(lp, a.LocalhostProfile, "can only be set when AppArmor type is Localhost")
		}
	case "":
		e.Required(childOf(p, "type"), "type is required when appArmorProfile is set")
	default:
		rules.OneOf(e, childOf(p, "type"), a.Type, corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined)
	}
}

func checkWindowsOptions(e *rules.Errors, w *corev1.WindowsSecurityContextOptions, p *field.Path) {
	if w == nil {
		return
	}
	if w.GMSACredentialSpecName != nil {
		e.InvalidEach(childOf(p, "gmsaCredentialSpecName"), w.GMSACredentialSpecName, validation.IsDNS1123Subdomain(*w.GMSACredentialSpecName))
	}
	if w.GMSACredentialSpec != nil {
		const maxKiB = 64
		switch n := len(*w.GMSACredentialSpec); {
		case n == 0:
			e.Invalid(childOf(p, "gmsaCredentialSpec"), w.GMSACredentialSpec, "gmsaCredentialSpec cannot be an empty string")
		case n > maxKiB*1024:
			e.Invalid(childOf(p, "gmsaCredentialSpec"), w.GMSACredentialSpec, fmt.Sprintf("gmsaCredentialSpec size must be under %d KiB", maxKiB))
		}
	}
	if w.RunAsUserName != nil {
		for _, m := range windowsUserProblems(*w.RunAsUserName) {
			e.Invalid(childOf(p, "runAsUserName"), w.RunAsUserName, "runAsUserName"+m)
		}
	}
}

// windowsUserProblems returns what is wrong with a Windows user name, DOMAIN\user
// or user.
func windowsUserProblems(name string) []string {
	const (
		maxDomain = 256
		maxUser   = 104
		dnsLabel  = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
		netBIOS   = `^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`
		dns       = `^` + dnsLabel + `(?:\.` + dnsLabel + `)*$`
	)
	match := func(pattern, s string) bool { return regexp.MustCompile(pattern).MatchString(s) }
	switch {
	case name == "":
		return []string{" cannot be an empty string"}
	case match(`[[:cntrl:]]+`, name):
		return []string{" cannot contain control characters"}
	case strings.Count(name, `\`) > 1:
		return []string{" cannot contain more than one backslash"}
	}
	domain, user, hasDomain := strings.Cut(name, `\`)
	if !hasDomain {
		domain, user = "", name
	}
	var m []string
	if len(domain) >= maxDomain {
		m = append(m, fmt.Sprintf("'s Domain length must be under %d characters", maxDomain))
	}
	if hasDomain && !match(netBIOS, domain) && !match(dns, domain) {
		m = append(m, "'s Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		m = append(m, "'s User cannot be empty")
	} else if len(user) > maxUser {
		m = append(m, fmt.Sprintf("'s User length must not be longer than %d characters", maxUser))
	}
	if user != "" && strings.Trim(user, ". ") == "" {
		m = append(m, "'s User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		m = append(m, `'s User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return m
}

// checkHostProcess validates Windows host process containers: either all
// containers of a pod are such, or none.
func checkHostProcess(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	var ofPod *bool
	if spec.SecurityContext != nil && spec.SecurityContext.WindowsOptions != nil {
		ofPod = spec.SecurityContext.WindowsOptions.HostProcess
	}
	all, host := 0, 0
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		all++
		own := ofPod
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil && c.SecurityContext.WindowsOptions.HostProcess != nil {
			own = c.SecurityContext.WindowsOptions.HostProcess
		}
		if ofPod != nil && own != nil && *ofPod != *own {
			e.Invalid(childOf(at.Path(), "securityContext", "windowsOptions", "hostProcess"), *own,
				fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *ofPod))
		}
		if own != nil && *own {
			host++
		}
	})
	if host == 0 {
		return
	}
	if host != all {
		e.Invalid(p, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if !spec.HostNetwork {
		e.Invalid(childOf(p, "hostNetwork"), spec.HostNetwork, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

// IsWindows reports whether a pod names Windows as its operating system.
func IsWindows(spec *corev1.PodSpec) bool { return spec.OS != nil && spec.OS.Name == corev1.Windows }

// checkOS validates the operating system of the pod, and reports fields that the
// other operating system has.
func checkOS(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	if spec.OS == nil || !e.NotEmpty(childOf(p, "os", "name"), string(spec.OS.Name)) {
		return
	}
	rules.OneOf(e, childOf(p, "os"), spec.OS.Name, corev1.Linux, corev1.Windows)
	switch spec.OS.Name {
	case corev1.Linux:
		checkLinux(e, spec, p)
	case corev1.Windows:
		checkWindows(e, spec, p)
	}
}

func checkLinux(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	const detail = "windows options cannot be set for a linux pod"
	if sc := spec.SecurityContext; sc != nil && sc.WindowsOptions != nil {
		e.Forbidden(childOf(p, "securityContext", "windowsOptions"), detail)
	}
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
			e.Forbidden(childOf(at.Path(), "securityContext", "windowsOptions"), detail)
		}
	})
}

func checkWindows(e *rules.Errors, spec *corev1.PodSpec, p *field.Path) {
	no := func(set bool, p *field.Path, name string) {
		if set {
			e.Forbidden(childOf(p, name), "cannot be set for a windows pod")
		}
	}
	if sc, sp := spec.SecurityContext, childOf(p, "securityContext"); sc != nil {
		no(sc.AppArmorProfile != nil, sp, "appArmorProfile")
		no(sc.SELinuxOptions != nil, sp, "seLinuxOptions")
		no(sc.SeccompProfile != nil, sp, "seccompProfile")
		no(sc.FSGroup != nil, sp, "fsGroup")
		no(sc.FSGroupChangePolicy != nil, sp, "fsGroupChangePolicy")
		no(len(sc.Sysctls) > 0, sp, "sysctls")
		no(sc.RunAsUser != nil, sp, "runAsUser")
		no(sc.RunAsGroup != nil, sp, "runAsGroup")
		no(sc.SupplementalGroups != nil, sp, "supplementalGroups")
		no(sc.SupplementalGroupsPolicy != nil, sp, "supplementalGroupsPolicy")
		no(sc.SELinuxChangePolicy != nil, sp, "seLinuxChangePolicy")
	}
	no(spec.HostUsers != nil, p, "hostUsers")
	no(spec.HostPID, p, "hostPID")
	no(spec.HostIPC, p, "hostIPC")
	no(spec.ShareProcessNamespace != nil, p, "shareProcessNamespace")
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		sc := c.SecurityContext
		if sc == nil {
			return
		}
		sp := childOf(at.Path(), "securityContext")
		no(sc.AppArmorProfile != nil, sp, "appArmorProfile")
		no(sc.SELinuxOptions != nil, sp, "seLinuxOptions")
		no(sc.SeccompProfile != nil, sp, "seccompProfile")
		no(sc.Capabilities != nil, sp, "capabilities")
		no(sc.ReadOnlyRootFilesystem != nil, sp, "readOnlyRootFilesystem")
		no(sc.Privileged != nil, sp, "privileged")
		no(sc.AllowPrivilegeEscalation != nil, sp, "allowPrivilegeEscalation")
		no(sc.ProcMount != nil, sp, "procMount")
		no(sc.RunAsUser != nil, sp, "runAsUser")
		no(sc.RunAsGroup != nil, sp, "runAsGroup")
	})
}

// checkHostUsers reports host namespaces that a pod with a user namespace of its
// own cannot use.
func checkHostUsers(e *rules.Errors, ctx *podContext, p *field.Path) {
	if ctx.hostUsers() {
		return
	}
	const detail = "when `hostUsers` is false"
	if ctx.spec.HostNetwork && !ctx.allow.hostNetworkInUserNamespace {
		e.Forbidden(childOf(p, "hostNetwork"), detail)
	}
	if ctx.spec.HostPID {
		e.Forbidden(childOf(p, "HostPID"), detail)
	}
	if ctx.spec.HostIPC {
		e.Forbidden(childOf(p, "HostIPC"), detail)
	}
	if !ctx.allow.devicesInUserNamespace {
		EachContainer(ctx.spec, p, func(c *corev1.Container, at Place) {
			if len(c.VolumeDevices) > 0 {
				e.Forbidden(childOf(at.Path(), "volumeDevices"), detail)
			}
		})
	}
}

// CheckProfileAnnotations reports seccomp and AppArmor annotations that disagree
// with the fields that have replaced them.
func CheckProfileAnnotations(e *rules.Errors, meta *metav1.ObjectMeta, spec *corev1.PodSpec, p *field.Path) {
	if len(meta.Annotations) == 0 {
		return
	}
	const profile = "seccompProfile"
	if sc := spec.SecurityContext; sc != nil && sc.SeccompProfile != nil {
		if value, ok := meta.Annotations[corev1.SeccompPodAnnotationKey]; ok {
			matchSeccomp(e, value, sc.SeccompProfile, childOf(p, "securityContext", profile))
		}
	}
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		if sc := c.SecurityContext; sc != nil && sc.SeccompProfile != nil {
			if value, ok := meta.Annotations[corev1.SeccompContainerAnnotationKeyPrefix+c.Name]; ok {
				matchSeccomp(e, value, sc.SeccompProfile, childOf(at.Path(), "securityContext", profile))
			}
		}
	})
	if IsWindows(spec) {
		return
	}
	EachContainer(spec, p, func(c *corev1.Container, at Place) {
		var profile *corev1.AppArmorProfile
		if spec.SecurityContext != nil {
			profile = spec.SecurityContext.AppArmorProfile
		}
		if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			profile = c.SecurityContext.AppArmorProfile
		}
		if value, ok := meta.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; ok && profile != nil {
			matchAppArmor(e, value, profile, childOf(at.Path(), "securityContext", "appArmorProfile"))
		}
	})
}

func matchSeccomp(e *rules.Errors, value string, s *corev1.SeccompProfile, p *field.Path) {
	match := true
	switch s.Type {
	case corev1.SeccompProfileTypeUnconfined:
		match = value == corev1.SeccompProfileNameUnconfined
	case corev1.SeccompProfileTypeRuntimeDefault:
		match = value == corev1.SeccompProfileRuntimeDefault || value == corev1.DeprecatedSeccompProfileDockerDefault
	case corev1.SeccompProfileTypeLocalhost:
		var name string
		name, match = strings.CutPrefix(value, corev1.SeccompLocalhostProfileNamePrefix)
		if match && (s.LocalhostProfile == nil || name != *s.LocalhostProfile) {
			e.Forbidden(childOf(p, "localhostProfile"), "seccomp profile in annotation and field must match")
		}
	}
	if !match {
		e.Forbidden(childOf(p, "type"), "seccomp type in annotation and field must match")
	}
}

func matchAppArmor(e *rules.Errors, value string, a *corev1.AppArmorProfile, p *field.Path) {
	match := true
	switch a.Type {
	case corev1.AppArmorProfileTypeUnconfined:
		match = value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined
	case corev1.AppArmorProfileTypeRuntimeDefault:
		match = value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault
	case corev1.AppArmorProfileTypeLocalhost:
		var name string
		name, match = strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		if match && (a.LocalhostProfile == nil || name != *a.LocalhostProfile) {
			e.Forbidden(childOf(p, "localhostProfile"), "apparmor profile in annotation and field must match")
		}
	}
	if !match {
		e.Forbidden(childOf(p, "type"), "apparmor type in annotation and field must match")
	}
}

// AdoptAppArmorAnnotations copies the AppArmor annotations of a pod into the
// fields that have replaced them, and warns the client.
func AdoptAppArmorAnnotations(ctx context.Context, pod *corev1.Pod) {
	if len(pod.Annotations) == 0 || IsWindows(&pod.Spec) {
		return
	}
	var ofPod *corev1.AppArmorProfile
	if pod.Spec.SecurityContext != nil {
		ofPod = pod.Spec.SecurityContext.AppArmorProfile
	}
	for c := range Containers(&pod.Spec) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		value, ok := pod.Annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			continue
		}
		profile := appArmorFromAnnotation(value)
		if profile != nil && equality.Semantic.DeepEqual(profile, ofPod) {
			continue
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		request.From(ctx).Warn(appArmorWarning(entryOf(field.NewPath("metadata", "annotations"), key)))
	}
}

func appArmorWarning(p *field.Path) string {
	return fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`, p)
}

// appArmorFromAnnotation returns the profile of an annotation, nil if it is not
// valid.
func appArmorFromAnnotation(value string) *corev1.AppArmorProfile {
	var profile *corev1.AppArmorProfile
	name, local := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
	switch {
	case value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case local && name != "":
		profile = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	var e rules.Errors
	if checkAppArmorProfile(&e, profile, nil); len(e) > 0 {
		return nil
	}
	return profile
}
