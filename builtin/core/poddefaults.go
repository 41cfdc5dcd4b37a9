package core

import (
	"regexp"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// defaultPod fills in what a pod may leave out: all that a template may, and
// what only a pod gets, so that a template stays as its author wrote it.
func defaultPod(pod *corev1.Pod) {
	DefaultPodSpec(&pod.Spec)
	defaultPodStatus(&pod.Status)

	spec := &pod.Spec
	if *spec.TerminationGracePeriodSeconds < 0 {
		spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	}
	for _, containers := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			defaultRequests(&containers[i].Resources)
			if spec.HostNetwork {
				defaultHostPorts(containers[i].Ports)
			}
		}
	}
	if spec.EnableServiceLinks == nil {
		spec.EnableServiceLinks = ptr.To(corev1.DefaultEnableServiceLinks)
	}
}

// DefaultPodTemplate fills in what a pod template may leave out.
func DefaultPodTemplate(t *corev1.PodTemplateSpec) { DefaultPodSpec(&t.Spec) }

// DefaultPodSpec fills in what a pod's specification may leave out.
func DefaultPodSpec(spec *corev1.PodSpec) {
	// The old name of the service account follows the new one.
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = spec.DeprecatedServiceAccount
	}
	spec.DeprecatedServiceAccount = spec.ServiceAccountName
	orDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	orDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	orDefault(&spec.SchedulerName, corev1.DefaultSchedulerName)
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
	roundUp(spec.Overhead)
	if spec.Resources != nil {
		roundUp(spec.Resources.Limits)
		roundUp(spec.Resources.Requests)
	}
}

// defaultPodStatus keeps the one address and the list of them in step; the
// single one wins, since old kubelets know no other.
func defaultPodStatus(s *corev1.PodStatus) {
	switch {
	case s.PodIP == "" && len(s.PodIPs) > 0:
		s.PodIP = s.PodIPs[0].IP
	case s.PodIP != "" && (len(s.PodIPs) == 0 || s.PodIPs[0].IP != s.PodIP):
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	for _, statuses := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range statuses {
			roundUp(statuses[i].AllocatedResources)
			if r := statuses[i].Resources; r != nil {
				roundUp(r.Limits)
				roundUp(r.Requests)
			}
		}
	}
	roundUp(s.AllocatedResources)
	if s.Resources != nil {
		roundUp(s.Resources.Limits)
		roundUp(s.Resources.Requests)
	}
}

func defaultContainer(c *corev1.Container) {
	defaultPullPolicy(&c.ImagePullPolicy, c.Image)
	orDefault(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		orDefault(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		v := c.Env[i].ValueFrom
		if v == nil {
			continue
		}
		if v.FieldRef != nil {
			orDefault(&v.FieldRef.APIVersion, "v1")
		}
		if v.FileKeyRef != nil && v.FileKeyRef.Optional == nil {
			v.FileKeyRef.Optional = ptr.To(false)
		}
	}
	roundUp(c.Resources.Limits)
	roundUp(c.Resources.Requests)
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
	orDefault(&p.TimeoutSeconds, 1)
	orDefault(&p.PeriodSeconds, 10)
	orDefault(&p.SuccessThreshold, 1)
	orDefault(&p.FailureThreshold, 3)
}

func defaultHTTPGet(a *corev1.HTTPGetAction) {
	if a != nil {
		orDefault(&a.Path, "/")
		orDefault(&a.Scheme, corev1.URISchemeHTTP)
	}
}

// defaultRequests gives a container with limits the same requests.
func defaultRequests(r *corev1.ResourceRequirements) {
	if r.Limits == nil {
		return
	}
	if r.Requests == nil {
		r.Requests = corev1.ResourceList{}
	}
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// defaultHostPorts: on the network of the host every port is one of the host.
func defaultHostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		orDefault(&ports[i].HostPort, ports[i].ContainerPort)
	}
}

// roundUp rounds quantities up to thousandths, the finest that the API knows.
func roundUp(list corev1.ResourceList) {
	for name, quantity := range list {
		quantity.RoundUp(-3)
		list[name] = quantity
	}
}

func orDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// defaultPullPolicy: an image that may change under its name is always pulled.
func defaultPullPolicy(policy *corev1.PullPolicy, image string) {
	switch {
	case *policy != "":
	case isLatest(image):
		*policy = corev1.PullAlways
	default:
		*policy = corev1.PullIfNotPresent
	}
}

// imageGrammar is the grammar of image references: host, path, tag and digest.
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

// isLatest reports whether an image reference is valid and means the tag
// latest, by saying so or by naming neither a tag nor a digest.
func isLatest(image string) bool {
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

// validDigest knows the algorithms that images use and their lengths.
func validDigest(digest string) bool {
	if digest == "" {
		return true
	}
	algorithm, sum, _ := strings.Cut(digest, ":")
	size := map[string]int{"sha256": 64, "sha384": 96, "sha512": 128}[algorithm]
	return size == len(sum) && strings.Trim(sum, "abcdef0123456789") == ""
}
