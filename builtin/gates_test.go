package builtin_test

import (
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
