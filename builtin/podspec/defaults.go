package podspec

import (
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/apikeel/kelson/builtin/rules"
)

// DefaultTemplate sets the defaults of a pod template.
func DefaultTemplate(t *corev1.PodTemplateSpec) { Default(&t.Spec) }

// Default sets the defaults of a pod spec that pods and templates share.
func Default(spec *corev1.PodSpec) {
	// serviceAccount is the deprecated name of serviceAccountName; both are set.
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	rules.Default(&spec.DNSPolicy, corev1.DNSClusterFirst)
	rules.Default(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	rules.Default(&spec.SchedulerName, corev1.DefaultSchedulerName)
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](corev1.DefaultTerminationGracePeriodSeconds)
	}
	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i])
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		defaultContainer((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	rules.RoundUp(spec.Overhead)
	if spec.Resources != nil {
		rules.RoundUp(spec.Resources.Limits)
		rules.RoundUp(spec.Resources.Requests)
	}
}

func defaultContainer(c *corev1.Container) {
	defaultPullPolicy(&c.ImagePullPolicy, c.Image)
	rules.Default(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	rules.Default(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		rules.Default(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		v := c.Env[i].ValueFrom
		if v == nil {
			continue
		}
		if v.FieldRef != nil {
			rules.Default(&v.FieldRef.APIVersion, "v1")
		}
		if v.FileKeyRef != nil && v.FileKeyRef.Optional == nil {
			v.FileKeyRef.Optional = ptr.To(false)
		}
	}
	rules.RoundUp(c.Resources.Limits)
	rules.RoundUp(c.Resources.Requests)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		defaultProbe(p)
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = ptr.To("")
	}
	rules.Default(&p.TimeoutSeconds, 1)
	rules.Default(&p.PeriodSeconds, 10)
	rules.Default(&p.SuccessThreshold, 1)
	rules.Default(&p.FailureThreshold, 3)
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a != nil {
		rules.Default(&a.Path, "/")
		rules.Default(&a.Scheme, corev1.URISchemeHTTP)
	}
}

// defaultPullPolicy sets Always for an image with the tag latest, which may
// change, and IfNotPresent for all others.
func defaultPullPolicy(policy *corev1.PullPolicy, image string) {
	switch {
	case *policy != "":
	case isLatest(image):
		*policy = corev1.PullAlways
	default:
		*policy = corev1.PullIfNotPresent
	}
}

// imageGrammar matches image references: host, path, tag and digest.
var imageGrammar = sync.OnceValue(func() *regexp.Regexp {
	const (
		hostPart = `(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])`
		host     = `(?:` + hostPart + `(?:\.` + hostPart + `)*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?`
		pathPart = `[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*`
		path     = pathPart + `(?:/` + pathPart + `)*`
		digest   = `[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[[:xdigit:]]{32,}`
	)
	return regexp.MustCompile(`^(` + host + `/` + path + `)(?::(\w[\w.-]{0,127}))?(?:@(` + digest + `))?$`)
})

// isLatest reports whether an image reference is valid and means the tag latest:
// it has that tag, or neither a tag nor a digest.
func isLatest(image string) bool {
	if _, tag, ok := strings.Cut(image[strings.LastIndexByte(image, '/')+1:], ":"); ok && tag != "latest" && !strings.Contains(image, "@") {
		return false // also if it is not valid
	}
	if len(image) == 64 && strings.Trim(image, "abcdef0123456789") == "" {
		return false // an identifier, not a name
	}
	host, path := "docker.io", image
	if before, after, ok := strings.Cut(image, "/"); ok &&
		(before == "localhost" || strings.ContainsAny(before, ".:") || strings.ToLower(before) != before) {
		host, path = before, after
	}
	if host == "docker.io" && !strings.Contains(path, "/") {
		path = "library/" + path
	}
	m := imageGrammar().FindStringSubmatch(host + "/" + path)
	if m == nil || len(m[1]) > 255+len(host)+1 || !validDigest(m[3]) {
		return false
	}
	return m[2] == "latest" || m[2] == "" && m[3] == ""
}

// validDigest reports whether a digest is empty or has a known algorithm and the
// length of its sums.
func validDigest(digest string) bool {
	if digest == "" {
		return true
	}
	algorithm, sum, _ := strings.Cut(digest, ":")
	size := map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}[algorithm]
	return size == len(sum) && strings.Trim(sum, "abcdef0123456789") == ""
}

// DefaultProbeProtocols sets HTTP1 as the protocol of HTTP probes and hooks that
// name none.
func DefaultProbeProtocols(spec *corev1.PodSpec) {
	for c := range Containers(spec) {
		for _, get := range httpGets(c) {
			if get.Protocol == nil {
				get.Protocol = new(corev1.HTTPProtocolHTTP1)
			}
		}
	}
}
