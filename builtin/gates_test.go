package builtin_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/builtin"
	"github.com/apikeel/kelson/features"
	"github.com/apikeel/kelson/resource"
)

// TestRulesObeyGates has rules that feature gates change in both positions of the gates.
func TestRulesObeyGates(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "ns"}
	const ip, strict = "010.0.0.1", "must not have leading 0s"
	ingress := func(service string) *networkingv1.Ingress {
		return &networkingv1.Ingress{ObjectMeta: meta, Spec: networkingv1.IngressSpec{DefaultBackend: &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: service, Port: networkingv1.ServiceBackendPort{Number: 1}}}}}
	}
	labels := map[string]string{"job": "x"}
	job := func(change ...func(*batchv1.Job)) *batchv1.Job {
		j := &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{Suspend: new(true), ManualSelector: new(true), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
		for _, f := range change {
			f(j)
		}
		return j
	}
	again := func(j *batchv1.Job) {
		now := metav1.Now()
		j.Status.StartTime, j.Status.Conditions = &now, []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
	}
	moreCPU := func(j *batchv1.Job) {
		j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("1")}
	}
	elsewhere := func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }
	claim := func(class string) resource.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "v", VolumeAttributesClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": apiresource.MustParse("1G")}}}}
	}
	volume := func(class string) resource.Object {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeAttributesClassName: &class, Capacity: corev1.ResourceList{"storage": apiresource.MustParse("1G")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}}}
	}
	const attributes = "update is forbidden when the VolumeAttributesClass feature gate is disabled"
	for _, c := range []struct {
		name, gate, version string
		group, resource     string
		obj, old            resource.Object
		enabled, disabled   string   // parts of the error; "" is none
		off                 []string // further gates that are disabled
	}{
		//lint:ignore SA1019 the kind is still served
		{"endpoints", "StrictIPCIDRValidation", "", "", "endpoints", &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: ip}}, Ports: []corev1.EndpointPort{{Port: 1}}}}}, nil, strict, "", nil},
		{"endpointslice", "StrictIPCIDRValidation", "", "discovery.k8s.io", "endpointslices", &discoveryv1.EndpointSlice{ObjectMeta: meta,
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}}}, nil, strict, "", nil},
		{"network policy", "StrictIPCIDRValidation", "", "networking.k8s.io", "networkpolicies", &networkingv1.NetworkPolicy{ObjectMeta: meta,
			Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
				IPBlock: &networkingv1.IPBlock{CIDR: "010.0.0.0/8", Except: []string{"010.1.0.0/16"}}}}}}}}, nil, strict, "", nil},
		{"external address", "StrictIPCIDRValidation", "", "", "services", &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{ip}}}, nil, strict, "", nil},
		{"host alias", "StrictIPCIDRValidation", "", "", "pods", &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}}, HostAliases: []corev1.HostAlias{{IP: ip, Hostnames: []string{"h"}}}}}, nil, strict, "", nil},
		{"pod range", "StrictIPCIDRValidation", "", "", "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
			Spec: corev1.NodeSpec{PodCIDR: "010.0.0.0/8", PodCIDRs: []string{"010.0.0.0/8"}}}, nil, strict, "", nil},
		{"backend", "RelaxedServiceNameValidation", "1.36", "networking.k8s.io", "ingresses", ingress("1a"), nil, "", "spec.defaultBackend.service.name", nil},
		{"backend as before", "RelaxedServiceNameValidation", "1.36", "networking.k8s.io", "ingresses", ingress("1a"), ingress("2a"), "", "", nil},
		{"class of a claim", "VolumeAttributesClass", "1.35", "", "persistentvolumeclaims", claim("b"), claim("a"), "", attributes, nil},
		{"class of a claim as before", "VolumeAttributesClass", "1.35", "", "persistentvolumeclaims", claim("a"), claim("a"), "", "", nil},
		{"class of a volume", "VolumeAttributesClass", "1.35", "", "persistentvolumes", volume("b"), volume("a"), "", attributes, nil},
		{"resources of a job", "MutablePodResourcesForSuspendedJobs", "", "batch", "jobs", job(moreCPU), job(), "", "field is immutable", nil},
		{"directives of a job", "MutableSchedulingDirectivesForSuspendedJobs", "", "batch", "jobs", job(elsewhere), job(), "", "", nil},
		{"directives of a job that ran", "MutableSchedulingDirectivesForSuspendedJobs", "", "batch", "jobs",
			job(again, elsewhere), job(again), "", "field is immutable", nil},
		{"both of a job that ran", "MutableSchedulingDirectivesForSuspendedJobs", "", "batch", "jobs",
			job(again, elsewhere), job(again), "", "spec.template:", []string{"MutablePodResourcesForSuspendedJobs"}},
	} {
		for _, on := range []bool{true, false} {
			set := map[string]bool{c.gate: on}
			for _, gate := range c.off {
				set[gate] = false
			}
			gates, err := features.New(features.Config{Set: set, EmulatedVersion: c.version})
			if err != nil {
				t.Fatal(err)
			}
			d := find(t, builtin.Groups(builtin.Config{Gates: gates}), c.group, c.resource)
			obj := c.obj.DeepCopyObject().(resource.Object)
			setDefaults(&d, obj)
			want := c.disabled
			if on {
				want = c.enabled
			}
			got := ""
			if c.old == nil {
				got = errorText(d.Strategy.Validate(t.Context(), obj).ToAggregate())
			} else {
				old := c.old.DeepCopyObject().(resource.Object)
				setDefaults(&d, old)
				got = errorText(d.Strategy.ValidateUpdate(t.Context(), obj, old).ToAggregate())
			}
			if want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("%s, %s=%v: got %q, want %q", c.name, c.gate, on, got, want)
			}
		}
	}
}

// TestFieldsBehindGates has fields that are dropped while their gate is disabled, and
// validated when it is enabled.
func TestFieldsBehindGates(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "ns"}
	long := strings.Repeat("x", 257)
	health := func(reason string) []corev1.VolumeHealthCondition {
		return []corev1.VolumeHealthCondition{{Status: corev1.VolumeHealthDegraded, Reason: reason}}
	}
	pod := func(status corev1.PodStatus) resource.Object {
		return &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, Volumes: []corev1.Volume{{Name: "v"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("c")}}}, Status: status}
	}
	podHealth := func(reason string) resource.Object {
		return pod(corev1.PodStatus{VolumeHealth: []corev1.PodVolumeHealth{{Name: "v", HealthConditions: health(reason)}}})
	}
	allocatable := func(name corev1.ResourceName) resource.Object {
		return pod(corev1.PodStatus{NodeAllocatableResourceClaimStatuses: []corev1.NodeAllocatableResourceClaimStatus{{ResourceClaimName: "c",
			Mapping: []corev1.NodeAllocatableMappedResources{{Name: name, Quantity: new(apiresource.MustParse("1"))}}}}})
	}
	claim := func(reason string) resource.Object {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
			Status: corev1.PersistentVolumeClaimStatus{HealthStatus: &corev1.VolumeHealthStatus{HealthConditions: health(reason)}}}
	}
	csiNode := func(reason string) resource.Object {
		return &storagev1.CSINode{ObjectMeta: meta, Status: storagev1.CSINodeStatus{StorageHealth: []storagev1.StorageHealth{{Name: "d",
			HealthConditions: []storagev1.StorageHealthCondition{{Status: storagev1.StorageDegraded, Reason: reason}}}}}}
	}
	slice := func(d resourcev1.Device) resource.Object {
		d.Name = "d"
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Spec: resourcev1.ResourceSliceSpec{Driver: "d", AllNodes: new(true),
			Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, Devices: []resourcev1.Device{d}}}
	}
	attribute := func(values ...string) resource.Object {
		return slice(resourcev1.Device{Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {VersionValues: values}}})
	}
	deviceResource := func(name corev1.ResourceName) resource.Object {
		return slice(resourcev1.Device{NodeAllocatableResources: map[corev1.ResourceName]resourcev1.NodeAllocatableResource{
			name: {Mapping: &resourcev1.NodeAllocatableMapping{DeviceMultiplier: new(apiresource.MustParse("1"))}}}})
	}
	request := func(expression string) resource.Object {
		name := resourcev1.FullyQualifiedName("a.b/c")
		return &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c",
				DerivedAttributes: []resourcev1.DeviceDerivedAttribute{{Name: name, Expression: expression}}}}},
			Constraints: []resourcev1.DeviceConstraint{{MatchAttribute: &name}}}}}
	}
	for _, c := range []struct {
		gate, group, resource string // resource may be a subresource
		good, bad             resource.Object
		has                   func(resource.Object) bool
		problem               string
	}{
		{"CSIVolumeHealth", "", "pods/status", podHealth("Slow"), podHealth(""), func(o resource.Object) bool { return len(o.(*corev1.Pod).Status.VolumeHealth) > 0 },
			"status.volumeHealth[0].healthConditions[0].reason: Required value"},
		{"CSIVolumeHealth", "", "persistentvolumeclaims/status", claim("Slow"), claim("a b"),
			func(o resource.Object) bool { return o.(*corev1.PersistentVolumeClaim).Status.HealthStatus != nil }, "status.healthStatus.healthConditions[0].reason: Invalid value"},
		{"CSIVolumeHealth", "storage.k8s.io", "csinodes/status", csiNode("Slow"), csiNode(long),
			func(o resource.Object) bool { return len(o.(*storagev1.CSINode).Status.StorageHealth) > 0 }, "status.storageHealth[0].healthConditions[0].reason: Too long"},
		{"DRANodeAllocatableResources", "", "pods/status", allocatable("cpu"), allocatable("pods"),
			func(o resource.Object) bool {
				return len(o.(*corev1.Pod).Status.NodeAllocatableResourceClaimStatuses) > 0
			},
			"status.nodeAllocatableResourceClaimStatuses[0].mapping[0].name: Invalid value"},
		{"DRANodeAllocatableResources", "resource.k8s.io", "resourceslices", deviceResource("memory"), deviceResource("pods"),
			func(o resource.Object) bool {
				return len(o.(*resourcev1.ResourceSlice).Spec.Devices[0].NodeAllocatableResources) > 0
			}, "spec.devices[0].nodeAllocatableResources[pods]: Invalid value"},
		{"DRAListTypeAttributes", "resource.k8s.io", "resourceslices", attribute("1.2.3"), attribute("1.2.3", "x"),
			func(o resource.Object) bool {
				return o.(*resourcev1.ResourceSlice).Spec.Devices[0].Attributes["a"].VersionValues != nil
			},
			"spec.devices[0].attributes[a].versions[1]: Invalid value"},
		{"DRADerivedAttributes", "resource.k8s.io", "resourceclaims", request("device.driver"), request("1.5"),
			func(o resource.Object) bool {
				return len(o.(*resourcev1.ResourceClaim).Spec.Devices.Requests[0].Exactly.DerivedAttributes) > 0
			}, "spec.devices.requests[0].exactly.derivedAttributes[0].expression: Invalid value"},
	} {
		for _, on := range []bool{true, false} {
			gates, err := features.New(features.Config{Set: map[string]bool{c.gate: on}})
			if err != nil {
				t.Fatal(err)
			}
			name, sub, _ := strings.Cut(c.resource, "/")
			d := find(t, builtin.Groups(builtin.Config{Gates: gates}), c.group, name)
			strategy := d.Strategy
			for _, s := range d.Subresources {
				if s.Name == sub {
					strategy = *s.Part
				}
			}
			write := func(obj resource.Object) (resource.Object, string) {
				obj = obj.DeepCopyObject().(resource.Object)
				setDefaults(&d, obj)
				if sub == "" {
					strategy.PrepareCreate(t.Context(), obj)
					return obj, errorText(strategy.Validate(t.Context(), obj).ToAggregate())
				}
				old := obj.DeepCopyObject().(resource.Object)
				switch old := old.(type) {
				case *corev1.Pod:
					old.Status = corev1.PodStatus{QOSClass: "BestEffort"}
					obj.(*corev1.Pod).Status.QOSClass = "BestEffort"
				case *corev1.PersistentVolumeClaim:
					old.Status.HealthStatus = nil
				case *storagev1.CSINode:
					old.Status = storagev1.CSINodeStatus{}
				}
				strategy.PrepareUpdate(t.Context(), obj, old)
				return obj, errorText(strategy.ValidateUpdate(t.Context(), obj, old).ToAggregate())
			}
			obj, problem := write(c.good)
			if got := c.has(obj); got != on {
				t.Errorf("%s=%v: %s has the field: %v, want %v", c.gate, on, c.resource, got, on)
			}
			if on && problem != "" {
				t.Errorf("%s: %s: got %s, want no error", c.gate, c.resource, problem)
			}
			if _, problem := write(c.bad); on && !strings.Contains(problem, c.problem) {
				t.Errorf("%s: %s: got %q, want %q", c.gate, c.resource, problem, c.problem)
			}
		}
	}
}

// without returns the gates of a version without one of them, and without those that need it.
func without(t *testing.T, gate, version string) features.Gates {
	t.Helper()
	config := features.Config{EmulatedVersion: version}
	usual, err := features.New(config)
	if err != nil {
		t.Fatal(err)
	}
	config.Set = map[string]bool{gate: false}
	for name, g := range features.Kubernetes() {
		if slices.Contains(g.Needs, gate) && g.At(usual.Version()).Default {
			config.Set[name] = false
		}
	}
	gates, err := features.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return gates
}

func setDefaults(d *resource.Definition, obj resource.Object) {
	if f := d.HubVersion().Default; f != nil {
		f(obj)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestServiceNamesObeyTheirGate has names that begin with a digit in both positions.
func TestServiceNamesObeyTheirGate(t *testing.T) {
	for version, want := range map[string]bool{"1.34": false, "1.36": true, "": true} {
		gates, err := features.New(features.Config{EmulatedVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		d := find(t, builtin.Groups(builtin.Config{Gates: gates}), "", "services")
		if problems := d.Strategy.ValidateName("1a", false); (len(problems) == 0) != want {
			t.Errorf("emulating %q: got %v, want a valid name: %v", version, problems, want)
		}
	}
}

// TestWarningsOfExcludedResourcesObeyTheirGate: webhooks are sent reviews without the gate.
func TestWarningsOfExcludedResourcesObeyTheirGate(t *testing.T) {
	for _, want := range []int{0, 1} {
		gates, err := features.New(features.Config{Set: map[string]bool{"ExcludeAdmissionWebhookVirtualResources": want > 0}})
		if err != nil {
			t.Fatal(err)
		}
		d := find(t, builtin.Groups(builtin.Config{Gates: gates}), "admissionregistration.k8s.io", "validatingwebhookconfigurations")
		c := &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Rules: []admissionregistrationv1.RuleWithOperations{{Rule: admissionregistrationv1.Rule{
				APIGroups: []string{"authentication.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"tokenreviews"}}}}}}}
		if got := d.Strategy.Warnings(t.Context(), c, nil); len(got) != want {
			t.Errorf("got %v, want %d warnings", got, want)
		}
	}
}

// TestFieldsGoWithTheirGates has fields of features that are on by default: they are dropped
// when the gate is switched off, or when an earlier version is emulated in which it was off.
func TestFieldsGoWithTheirGates(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "x", Namespace: "ns"}
	pod := func(change func(*corev1.PodSpec)) resource.Object {
		p := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		change(&p.Spec)
		return p
	}
	inPod := func(has func(*corev1.PodSpec) bool) func(resource.Object) bool {
		return func(o resource.Object) bool { return has(&o.(*corev1.Pod).Spec) }
	}
	device := func(change func(*resourcev1.Device)) resource.Object {
		s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{Name: "d"}}}}
		change(&s.Spec.Devices[0])
		return s
	}
	inDevice := func(has func(*resourcev1.Device) bool) func(resource.Object) bool {
		return func(o resource.Object) bool { return has(&o.(*resourcev1.ResourceSlice).Spec.Devices[0]) }
	}
	for _, c := range []struct {
		gate, version   string // version in which the gate can be off, or "" for this one
		group, resource string
		obj             resource.Object
		has             func(resource.Object) bool
	}{
		{"EnvFiles", "1.34", "", "pods", pod(func(s *corev1.PodSpec) {
			s.Containers[0].Env = []corev1.EnvVar{{Name: "e", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{}}}}
		}), inPod(func(s *corev1.PodSpec) bool { return s.Containers[0].Env[0].ValueFrom.FileKeyRef != nil })},
		{"ContainerRestartRules", "1.34", "", "pods", pod(func(s *corev1.PodSpec) { s.Containers[0].RestartPolicy = new(corev1.ContainerRestartPolicyNever) }),
			inPod(func(s *corev1.PodSpec) bool { return s.Containers[0].RestartPolicy != nil })},
		{"ContainerRestartRules", "1.34", "", "pods", pod(func(s *corev1.PodSpec) {
			s.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{RestartPolicy: new(corev1.ContainerRestartPolicyNever)}}}
		}), inPod(func(s *corev1.PodSpec) bool { return s.EphemeralContainers[0].RestartPolicy != nil })},
		{"ImageVolume", "1.34", "", "pods", pod(func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "i"}}}}
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}), inPod(func(s *corev1.PodSpec) bool { return len(s.Volumes)+len(s.Containers[0].VolumeMounts) > 0 })},
		{"HostnameOverride", "1.34", "", "pods", pod(func(s *corev1.PodSpec) { s.HostnameOverride = new("h") }), inPod(func(s *corev1.PodSpec) bool { return s.HostnameOverride != nil })},
		{"PodLevelResources", "", "", "pods", pod(func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": apiresource.MustParse("1")}}
		}), inPod(func(s *corev1.PodSpec) bool { return s.Resources != nil })},
		{"MatchLabelKeysInPodTopologySpread", "", "", "pods", pod(func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MatchLabelKeys: []string{"a"}}}
		}), inPod(func(s *corev1.PodSpec) bool { return s.TopologySpreadConstraints[0].MatchLabelKeys != nil })},
		{"DynamicResourceAllocation", "1.34", "", "pods", pod(func(s *corev1.PodSpec) {
			s.ResourceClaims = []corev1.PodResourceClaim{{Name: "r"}}
			s.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "r"}}
		}), inPod(func(s *corev1.PodSpec) bool { return len(s.ResourceClaims)+len(s.Containers[0].Resources.Claims) > 0 })},
		{"MaxUnavailableStatefulSet", "1.36", "apps", "statefulsets", &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(intstr.FromInt32(2))}}}},
			func(o resource.Object) bool {
				return o.(*appsv1.StatefulSet).Spec.UpdateStrategy.RollingUpdate.MaxUnavailable != nil
			}},
		{"HPAConfigurableTolerance", "1.34", "autoscaling", "horizontalpodautoscalers", &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: &autoscalingv2.HPAScalingRules{Tolerance: new(apiresource.MustParse("1"))}}}},
			func(o resource.Object) bool {
				return o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.Behavior.ScaleUp.Tolerance != nil
			}},
		{"VolumeLimitScaling", "1.36", "storage.k8s.io", "csidrivers", &storagev1.CSIDriver{ObjectMeta: meta},
			func(o resource.Object) bool {
				return o.(*storagev1.CSIDriver).Spec.PreventPodSchedulingIfMissing != nil
			}},
		{"VolumeAttributesClass", "1.35", "", "persistentvolumes", &corev1.PersistentVolume{ObjectMeta: meta, Spec: corev1.PersistentVolumeSpec{VolumeAttributesClassName: new("c")}},
			func(o resource.Object) bool {
				return o.(*corev1.PersistentVolume).Spec.VolumeAttributesClassName != nil
			}},
		{"VolumeAttributesClass", "1.35", "", "persistentvolumeclaims", &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: new("c")}},
			func(o resource.Object) bool {
				return o.(*corev1.PersistentVolumeClaim).Spec.VolumeAttributesClassName != nil
			}},
		{"NodeDeclaredFeatures", "1.35", "", "nodes", &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{DeclaredFeatures: []string{"f"}}},
			func(o resource.Object) bool { return o.(*corev1.Node).Status.DeclaredFeatures != nil }},
		{"DRADeviceTaints", "1.35", "resource.k8s.io", "resourceslices", device(func(d *resourcev1.Device) { d.Taints = []resourcev1.DeviceTaint{{Key: "k"}} }),
			inDevice(func(d *resourcev1.Device) bool { return d.Taints != nil })},
		{"DRAConsumableCapacity", "1.35", "resource.k8s.io", "resourceslices", device(func(d *resourcev1.Device) {
			d.AllowMultipleAllocations = new(true)
			d.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"c": {RequestPolicy: &resourcev1.CapacityRequestPolicy{}}}
		}), inDevice(func(d *resourcev1.Device) bool {
			return d.AllowMultipleAllocations != nil || d.Capacity["c"].RequestPolicy != nil
		})},
		{"DRAPartitionableDevices", "1.35", "resource.k8s.io", "resourceslices", device(func(d *resourcev1.Device) { d.NodeName = new("n") }),
			inDevice(func(d *resourcev1.Device) bool { return d.NodeName != nil })},
		{"DRAConsumableCapacity", "1.35", "resource.k8s.io", "resourceclaims", &resourcev1.ResourceClaim{ObjectMeta: meta, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Constraints: []resourcev1.DeviceConstraint{{DistinctAttribute: new(resourcev1.FullyQualifiedName("a.b/c"))}}}}},
			func(o resource.Object) bool {
				return o.(*resourcev1.ResourceClaim).Spec.Devices.Constraints[0].DistinctAttribute != nil
			}},
	} {
		for _, on := range []bool{true, false} {
			gates := features.Gates{}
			if !on {
				gates = without(t, c.gate, c.version)
			}
			d := find(t, builtin.Groups(builtin.Config{Gates: gates}), c.group, c.resource)
			obj := c.obj.DeepCopyObject().(resource.Object)
			setDefaults(&d, obj)
			if d.Strategy.PrepareCreate != nil {
				d.Strategy.PrepareCreate(t.Context(), obj)
			}
			if got := c.has(obj); got != on {
				t.Errorf("%s=%v: %s has the field: %v, want %v", c.gate, on, c.resource, got, on)
			}
		}
	}
}

// TestClaimsOfPodsStayWithoutTheirGate wants a pod that has claims for devices to keep them and
// their status when DynamicResourceAllocation is switched off, and other pods to get no status of claims.
func TestClaimsOfPodsStayWithoutTheirGate(t *testing.T) {
	d := find(t, builtin.Groups(builtin.Config{Gates: without(t, "DynamicResourceAllocation", "1.34")}), "", "pods")
	i := slices.IndexFunc(d.Subresources, func(s resource.Subresource) bool { return s.Name == "status" })
	for _, claims := range [][]corev1.PodResourceClaim{nil, {{Name: "r", ResourceClaimTemplateName: new("t")}}} {
		old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "ns"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}, ResourceClaims: claims}}
		obj := old.DeepCopy()
		d.Strategy.PrepareUpdate(t.Context(), obj, old)
		if len(obj.Spec.ResourceClaims) != len(claims) {
			t.Errorf("an update leaves %v, want %v", obj.Spec.ResourceClaims, claims)
		}
		obj = old.DeepCopy()
		obj.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "r", ResourceClaimName: new("c")}}
		d.Subresources[i].Part.PrepareUpdate(t.Context(), obj, old)
		if len(obj.Status.ResourceClaimStatuses) != len(claims) {
			t.Errorf("a pod with claims %v gets the status %v", claims, obj.Status.ResourceClaimStatuses)
		}
	}
}
