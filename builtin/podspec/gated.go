package podspec

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/features"
)

// walk calls visit for each place in which an object can use a feature: used
// says whether it does, and clear removes it.
type walk[T any] func(at *T, visit func(used bool, clear func()))

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
	{"ClusterTrustBundleProjection", func(s *corev1.PodSpec, visit func(bool, func())) {
		eachProjection(s, func(p *corev1.VolumeProjection) {
			visit(p.ClusterTrustBundle != nil, func() { p.ClusterTrustBundle = nil })
		})
	}},
	{"PodCertificateRequest", func(s *corev1.PodSpec, visit func(bool, func())) {
		eachProjection(s, func(p *corev1.VolumeProjection) {
			visit(p.PodCertificate != nil, func() { p.PodCertificate = nil })
		})
	}},
	{"GenericWorkload", func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.SchedulingGroup != nil, func() { s.SchedulingGroup = nil })
	}},
	{"EvictionRequestAPI", func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.EvictionResponders != nil, func() { s.EvictionResponders = nil })
	}},
	{"EmptyDirVolumeMode", func(s *corev1.PodSpec, visit func(bool, func())) {
		for i := range s.Volumes {
			if d := s.Volumes[i].EmptyDir; d != nil {
				visit(d.Mode != nil, func() { d.Mode = nil })
			}
		}
	}},
	{"AtomicWriteVolumeUserFields", volumeUsers},
	{"VolumeBindMountOptions", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			for i := range c.VolumeMounts {
				m := &c.VolumeMounts[i]
				visit(m.BindMountOptions != nil, func() { m.BindMountOptions = nil })
			}
		})
	}},
	{"GRPCContainerProbeTLS", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
				if p != nil && p.GRPC != nil {
					visit(p.GRPC.Mode != nil, func() { p.GRPC.Mode = nil })
				}
			}
		})
	}},
	{"ContainerStopSignals", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			if c.Lifecycle == nil {
				return
			}
			visit(c.Lifecycle.StopSignal != nil, func() {
				c.Lifecycle.StopSignal = nil
				if *c.Lifecycle == (corev1.Lifecycle{}) {
					c.Lifecycle = nil
				}
			})
		})
	}},
	{"H2CContainerProbe", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			for _, a := range httpGets(c) {
				visit(a.Protocol != nil, func() { a.Protocol = nil })
			}
		})
	}},
	{"UserNamespacesSupport", func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.HostUsers != nil, func() { s.HostUsers = nil })
	}},
	{"SupplementalGroupsPolicy", func(s *corev1.PodSpec, visit func(bool, func())) {
		if c := s.SecurityContext; c != nil {
			visit(c.SupplementalGroupsPolicy != nil, func() { c.SupplementalGroupsPolicy = nil })
		}
	}},
	{"SELinuxChangePolicy", func(s *corev1.PodSpec, visit func(bool, func())) {
		if c := s.SecurityContext; c != nil {
			visit(c.SELinuxChangePolicy != nil, func() { c.SELinuxChangePolicy = nil })
		}
	}},
	{"ProcMountType", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			if sc := c.SecurityContext; sc != nil && sc.ProcMount != nil {
				visit(*sc.ProcMount != corev1.DefaultProcMount, func() { sc.ProcMount = new(corev1.DefaultProcMount) })
			}
		})
	}},
	{"PodLevelResources", func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.Resources != nil, func() { s.Resources = nil })
	}},
	{"MatchLabelKeysInPodTopologySpread", func(s *corev1.PodSpec, visit func(bool, func())) {
		for i := range s.TopologySpreadConstraints {
			c := &s.TopologySpreadConstraints[i]
			visit(len(c.MatchLabelKeys) > 0, func() { c.MatchLabelKeys = nil })
		}
	}},
	{"ContainerRestartRules", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			visit(len(c.RestartPolicyRules) > 0, func() { c.RestartPolicyRules = nil })
		})
		for i := range s.InitContainers {
			c := &s.InitContainers[i]
			visit(c.RestartPolicy != nil && !IsSidecar(c), func() { c.RestartPolicy = nil })
		}
		for i := range s.Containers {
			c := &s.Containers[i]
			visit(c.RestartPolicy != nil, func() { c.RestartPolicy = nil })
		}
		for i := range s.EphemeralContainers {
			c := &s.EphemeralContainers[i]
			visit(c.RestartPolicy != nil, func() { c.RestartPolicy = nil })
		}
	}},
	{"HostnameOverride", func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.HostnameOverride != nil, func() { s.HostnameOverride = nil })
	}},
	{"EnvFiles", func(s *corev1.PodSpec, visit func(bool, func())) {
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			for i := range c.Env {
				if from := c.Env[i].ValueFrom; from != nil {
					visit(from.FileKeyRef != nil, func() { from.FileKeyRef = nil })
				}
			}
		})
	}},
	{"ImageVolume", imageVolumes},
	{deviceAllocation, func(s *corev1.PodSpec, visit func(bool, func())) {
		visit(s.ResourceClaims != nil, func() { s.ResourceClaims = nil })
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			visit(c.Resources.Claims != nil, func() { c.Resources.Claims = nil })
		})
	}},
}

// imageVolumes is the walk of volumes with the content of an image. They are removed with
// their mounts.
func imageVolumes(s *corev1.PodSpec, visit func(bool, func())) {
	isImage := func(v corev1.Volume) bool { return v.Image != nil }
	visit(slices.ContainsFunc(s.Volumes, isImage), func() {
		images := map[string]bool{}
		for _, v := range s.Volumes {
			images[v.Name] = images[v.Name] || isImage(v)
		}
		EachContainer(s, nil, func(c *corev1.Container, _ *field.Path) {
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
				return images[m.Name]
			})
		})
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
	{"InPlacePodLevelResourcesVerticalScaling", func(s *corev1.PodStatus, visit func(bool, func())) {
		visit(s.Resources != nil || s.AllocatedResources != nil, func() { s.Resources, s.AllocatedResources = nil, nil })
	}},
	{"DRAExtendedResource", func(s *corev1.PodStatus, visit func(bool, func())) {
		visit(s.ExtendedResourceClaimStatus != nil, func() { s.ExtendedResourceClaimStatus = nil })
	}},
	{"ResourceHealthStatus", func(s *corev1.PodStatus, visit func(bool, func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			visit(len(c.AllocatedResourcesStatus) > 0, func() { c.AllocatedResourcesStatus = nil })
		})
	}},
	{"ResourceHealthStatusMessage", func(s *corev1.PodStatus, visit func(bool, func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			for i := range c.AllocatedResourcesStatus {
				for j := range c.AllocatedResourcesStatus[i].Resources {
					h := &c.AllocatedResourcesStatus[i].Resources[j]
					visit(h.Message != nil, func() { h.Message = nil })
				}
			}
		})
	}},
	{"DRANodeAllocatableResources", func(s *corev1.PodStatus, visit func(bool, func())) {
		visit(s.NodeAllocatableResourceClaimStatuses != nil, func() { s.NodeAllocatableResourceClaimStatuses = nil })
	}},
	{"CSIVolumeHealth", func(s *corev1.PodStatus, visit func(bool, func())) {
		visit(s.VolumeHealth != nil, func() { s.VolumeHealth = nil })
	}},
	{"ImageVolumeWithDigest", func(s *corev1.PodStatus, visit func(bool, func())) {
		eachContainerStatus(s, func(c *corev1.ContainerStatus) {
			for i := range c.VolumeMounts {
				m := &c.VolumeMounts[i]
				visit(m.VolumeStatus != nil, func() { m.VolumeStatus = nil })
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
func volumeUsers(s *corev1.PodSpec, visit func(bool, func())) {
	user := func(u **int64) { visit(*u != nil, func() { *u = nil }) }
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
			f.walk(old, func(used bool, _ func()) { keep = keep || used })
		}
		if keep {
			continue
		}
		f.walk(now, func(used bool, clear func()) {
			if used {
				clear()
			}
		})
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
