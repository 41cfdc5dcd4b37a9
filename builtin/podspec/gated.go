package podspec

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/apikeel/kelson/features"
)

// walk calls visit for each place in which an object uses a feature; clear removes it.
type walk[T any] func(at *T, visit func(clear func()))

// gated is a feature with its gate and the fields that it adds.
type gated[T any] struct {
	gate string
	walk walk[T]
}

// deviceAllocation is the gate of claims for devices in pods.
const deviceAllocation = "DynamicResourceAllocation"

// gatedSpec and gatedStatus are the features of pod specs and pod statuses that
// have a feature gate.
var gatedSpec = []gated[corev1.PodSpec]{
	{"ClusterTrustBundleProjection", func(s *corev1.PodSpec, visit func(clear func())) {
		eachProjection(s, func(p *corev1.VolumeProjection) {
			if p.ClusterTrustBundle != nil {
				visit(func() { p.ClusterTrustBundle = nil })
			}
		})
	}},
	{"PodCertificateRequest", func(s *corev1.PodSpec, visit func(clear func())) {
		eachProjection(s, func(p *corev1.VolumeProjection) {
			if p.PodCertificate != nil {
				visit(func() { p.PodCertificate = nil })
			}
		})
	}},
	{"GenericWorkload", func(s *corev1.PodSpec, visit func(clear func())) {
		if s.SchedulingGroup != nil {
			visit(func() { s.SchedulingGroup = nil })
		}
	}},
	{"EvictionRequestAPI", func(s *corev1.PodSpec, visit func(clear func())) {
		if s.EvictionResponders != nil {
			visit(func() { s.EvictionResponders = nil })
		}
	}},
	{"EmptyDirVolumeMode", func(s *corev1.PodSpec, visit func(clear func())) {
		for i := range s.Volumes {
			if d := s.Volumes[i].EmptyDir; d != nil {
				if d.Mode != nil {
					visit(func() { d.Mode = nil })
				}
			}
		}
	}},
	{"AtomicWriteVolumeUserFields", volumeUsers},
	{"VolumeBindMountOptions", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			for i := range c.VolumeMounts {
				m := &c.VolumeMounts[i]
				if m.BindMountOptions != nil {
					visit(func() { m.BindMountOptions = nil })
				}
			}
		}
	}},
	{"GRPCContainerProbeTLS", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
				if p != nil && p.GRPC != nil {
					if p.GRPC.Mode != nil {
						visit(func() { p.GRPC.Mode = nil })
					}
				}
			}
		}
	}},
	{"ContainerStopSignals", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
				continue
			}
			visit(func() {
				c.Lifecycle.StopSignal = nil
				if *c.Lifecycle == (corev1.Lifecycle{}) {
					c.Lifecycle = nil
				}
			})
		}
	}},
	{"H2CContainerProbe", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			for _, a := range httpGets(c) {
				if a.Protocol != nil {
					visit(func() { a.Protocol = nil })
				}
			}
		}
	}},
	{"UserNamespacesSupport", func(s *corev1.PodSpec, visit func(clear func())) {
		if s.HostUsers != nil {
			visit(func() { s.HostUsers = nil })
		}
	}},
	{"SupplementalGroupsPolicy", func(s *corev1.PodSpec, visit func(clear func())) {
		if c := s.SecurityContext; c != nil {
			if c.SupplementalGroupsPolicy != nil {
				visit(func() { c.SupplementalGroupsPolicy = nil })
			}
		}
	}},
	{"SELinuxChangePolicy", func(s *corev1.PodSpec, visit func(clear func())) {
		if c := s.SecurityContext; c != nil {
			if c.SELinuxChangePolicy != nil {
				visit(func() { c.SELinuxChangePolicy = nil })
			}
		}
	}},
	{"ProcMountType", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			if sc := c.SecurityContext; sc != nil && sc.ProcMount != nil {
				if *sc.ProcMount != corev1.DefaultProcMount {
					visit(func() { sc.ProcMount = new(corev1.DefaultProcMount) })
				}
			}
		}
	}},
	{"PodLevelResources", func(s *corev1.PodSpec, visit func(clear func())) {
		if s.Resources != nil {
			visit(func() { s.Resources = nil })
		}
	}},
	{"MatchLabelKeysInPodTopologySpread", func(s *corev1.PodSpec, visit func(clear func())) {
		for i := range s.TopologySpreadConstraints {
			c := &s.TopologySpreadConstraints[i]
			if len(c.MatchLabelKeys) > 0 {
				visit(func() { c.MatchLabelKeys = nil })
			}
		}
	}},
	{"ContainerRestartRules", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			if len(c.RestartPolicyRules) > 0 {
				visit(func() { c.RestartPolicyRules = nil })
			}
		}
		for i := range s.InitContainers {
			c := &s.InitContainers[i]
			if c.RestartPolicy != nil && !IsSidecar(c) {
				visit(func() { c.RestartPolicy = nil })
			}
		}
		for i := range s.Containers {
			c := &s.Containers[i]
			if c.RestartPolicy != nil {
				visit(func() { c.RestartPolicy = nil })
			}
		}
		for i := range s.EphemeralContainers {
			c := &s.EphemeralContainers[i]
			if c.RestartPolicy != nil {
				visit(func() { c.RestartPolicy = nil })
			}
		}
	}},
	{"HostnameOverride", func(s *corev1.PodSpec, visit func(clear func())) {
		if s.HostnameOverride != nil {
			visit(func() { s.HostnameOverride = nil })
		}
	}},
	{"EnvFiles", func(s *corev1.PodSpec, visit func(clear func())) {
		for c := range Containers(s) {
			for i := range c.Env {
				if from := c.Env[i].ValueFrom; from != nil {
					if from.FileKeyRef != nil {
						visit(func() { from.FileKeyRef = nil })
					}
				}
			}
		}
	}},
	{"ImageVolume", imageVolumes},
	{deviceAllocation, func(s *corev1.PodSpec, visit func(clear func())) {
		if s.ResourceClaims != nil {
			visit(func() { s.ResourceClaims = nil })
		}
		for c := range Containers(s) {
			if c.Resources.Claims != nil {
				visit(func() { c.Resources.Claims = nil })
			}
		}
	}},
}

// imageVolumes is the walk of volumes with the content of an image. They are removed with
// their mounts.
func imageVolumes(s *corev1.PodSpec, visit func(clear func())) {
	isImage := func(v corev1.Volume) bool { return v.Image != nil }
	if !slices.ContainsFunc(s.Volumes, isImage) {
		return
	}
	visit(func() {
		images := map[string]bool{}
		for _, v := range s.Volumes {
			images[v.Name] = images[v.Name] || isImage(v)
		}
		for c := range Containers(s) {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return images[m.Name]
			})
		}
		s.Volumes = slices.DeleteFunc(s.Volumes, isImage)
	})
}

func eachProjection(s *corev1.PodSpec, f func(p *corev1.VolumeProjection)) {
	for i := range s.Volumes {
		if p := s.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				f(&p.Sources[j])
			}
		}
	}
}

var gatedStatus = []gated[corev1.PodStatus]{
	{"InPlacePodLevelResourcesVerticalScaling", func(s *corev1.PodStatus, visit func(clear func())) {
		if s.Resources != nil || s.AllocatedResources != nil {
			visit(func() { s.Resources, s.AllocatedResources = nil, nil })
		}
	}},
	{"DRAExtendedResource", func(s *corev1.PodStatus, visit func(clear func())) {
		if s.ExtendedResourceClaimStatus != nil {
			visit(func() { s.ExtendedResourceClaimStatus = nil })
		}
	}},
	{"ResourceHealthStatus", func(s *corev1.PodStatus, visit func(clear func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			if len(c.AllocatedResourcesStatus) > 0 {
				visit(func() { c.AllocatedResourcesStatus = nil })
			}
		})
	}},
	{"ResourceHealthStatusMessage", func(s *corev1.PodStatus, visit func(clear func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			for i := range c.AllocatedResourcesStatus {
				for j := range c.AllocatedResourcesStatus[i].Resources {
					h := &c.AllocatedResourcesStatus[i].Resources[j]
					if h.Message != nil {
						visit(func() { h.Message = nil })
					}
				}
			}
		})
	}},
	{"DRANodeAllocatableResources", func(s *corev1.PodStatus, visit func(clear func())) {
		if s.NodeAllocatableResourceClaimStatuses != nil {
			visit(func() { s.NodeAllocatableResourceClaimStatuses = nil })
		}
	}},
	{"CSIVolumeHealth", func(s *corev1.PodStatus, visit func(clear func())) {
		if s.VolumeHealth != nil {
			visit(func() { s.VolumeHealth = nil })
		}
	}},
	{"ImageVolumeWithDigest", func(s *corev1.PodStatus, visit func(clear func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			for i := range c.VolumeMounts {
				m := &c.VolumeMounts[i]
				if m.VolumeStatus != nil {
					visit(func() { m.VolumeStatus = nil })
				}
			}
		})
	}},
}

func eachContainerStatus(s *corev1.PodStatus, f func(c *corev1.ContainerStatus)) {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			f(&list[i])
		}
	}
}

// httpGets returns the HTTP actions of the probes and hooks of a container.
func httpGets(c *corev1.Container) []*corev1.HTTPGetAction {
	var all []*corev1.HTTPGetAction
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if p != nil && p.HTTPGet != nil {
			all = append(all, p.HTTPGet)
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil && h.HTTPGet != nil {
				all = append(all, h.HTTPGet)
			}
		}
	}
	return all
}

// volumeUsers is the walk of the fields that set the owner of files in volumes.
func volumeUsers(s *corev1.PodSpec, visit func(clear func())) {
	user := func(u **int64) {
		if *u != nil {
			visit(func() { *u = nil })
		}
	}
	keys := func(items []corev1.KeyToPath) {
		for i := range items {
			user(&items[i].User)
		}
	}
	files := func(items []corev1.DownwardAPIVolumeFile) {
		for i := range items {
			user(&items[i].User)
		}
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		switch {
		case v.Secret != nil:
			user(&v.Secret.DefaultUser)
			keys(v.Secret.Items)
		case v.ConfigMap != nil:
			user(&v.ConfigMap.DefaultUser)
			keys(v.ConfigMap.Items)
		case v.DownwardAPI != nil:
			user(&v.DownwardAPI.DefaultUser)
			files(v.DownwardAPI.Items)
		case v.Projected != nil:
			user(&v.Projected.DefaultUser)
			for j := range v.Projected.Sources {
				switch p := &v.Projected.Sources[j]; {
				case p.Secret != nil:
					keys(p.Secret.Items)
				case p.DownwardAPI != nil:
					files(p.DownwardAPI.Items)
				case p.ConfigMap != nil:
					keys(p.ConfigMap.Items)
				case p.ServiceAccountToken != nil:
					user(&p.ServiceAccountToken.User)
				case p.ClusterTrustBundle != nil:
					user(&p.ClusterTrustBundle.User)
				case p.PodCertificate != nil:
					user(&p.PodCertificate.User)
				}
			}
		}
	}
}

// dropOff clears the fields of features that are off, except features that the
// old version uses; old is nil on create.
func dropOff[T any](on func(name string) bool, now, old *T, features []gated[T]) {
	for _, f := range features {
		keep := on(f.gate)
		if old != nil && !keep {
			f.walk(old, func(func()) { keep = true })
		}
		if keep {
			continue
		}
		f.walk(now, func(clear func()) { clear() })
	}
}

func dropSpecFields(gates features.Gates, spec, old *corev1.PodSpec) {
	dropOff(gates.Enabled, spec, old, gatedSpec)
}

// DropDisabledPodFields clears the fields of features that are off in the spec
// and status of a pod, unless the old pod, nil on create, uses them.
func DropDisabledPodFields(ctx context.Context, pod, old *corev1.Pod) {
	gates := features.From(ctx)
	var oldSpec *corev1.PodSpec
	var oldStatus *corev1.PodStatus
	if old != nil {
		oldSpec, oldStatus = &old.Spec, &old.Status
	}
	dropSpecFields(gates, &pod.Spec, oldSpec)
	dropOff(gates.Enabled, &pod.Status, oldStatus, gatedStatus)
	if !gates.Enabled(deviceAllocation) && (old == nil || len(old.Spec.ResourceClaims) == 0) {
		pod.Status.ResourceClaimStatuses = nil // which belong to claims in the spec
	}
	DropInitAnnotations(pod.Annotations)
}

// DropInitAnnotations removes the annotations that were the alpha and beta form
// of init containers, so that old kubelets do not run what they say.
func DropInitAnnotations(annotations map[string]string) {
	for _, stage := range []string{"alpha", "beta"} {
		delete(annotations, "pod."+stage+".kubernetes.io/init-containers")
		delete(annotations, "pod."+stage+".kubernetes.io/init-container-statuses")
	}
}
