package podspec

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
)

// TestPodResourcesCoverThoseOfDevices has pods with resources as a whole whose devices need
// some of the node.
func TestPodResourcesCoverThoseOfDevices(t *testing.T) {
	list := func(name corev1.ResourceName, amount string) corev1.ResourceList {
		return corev1.ResourceList{name: apiresource.MustParse(amount)}
	}
	devices := func(name corev1.ResourceName, mapped, perContainer string) []corev1.NodeAllocatableResourceClaimStatus {
		return []corev1.NodeAllocatableResourceClaimStatus{{Containers: []string{"a", "b"},
			Mapping:  []corev1.NodeAllocatableMappedResources{{Name: name, Quantity: new(apiresource.MustParse(mapped))}},
			Overhead: []corev1.NodeAllocatableOverheadResources{{Name: name, PerContainer: new(apiresource.MustParse(perContainer))}}}}
	}
	for name, c := range map[string]struct {
		own, container corev1.ResourceRequirements
		devices        []corev1.NodeAllocatableResourceClaimStatus
		want           string
	}{
		"enough": {corev1.ResourceRequirements{Requests: list("cpu", "5")}, corev1.ResourceRequirements{Requests: list("cpu", "1")}, devices("cpu", "1", "1"), ""},
		"too little": {corev1.ResourceRequirements{Requests: list("cpu", "4")}, corev1.ResourceRequirements{Requests: list("cpu", "1")}, devices("cpu", "1", "1"),
			"pod level request for cpu is insufficient"},
		"huge pages": {corev1.ResourceRequirements{Limits: list("hugepages-2Mi", "6Mi")}, corev1.ResourceRequirements{Limits: list("hugepages-2Mi", "2Mi")}, devices("hugepages-2Mi", "2Mi", "2Mi"),
			"pod level limit for hugepages-2Mi is insufficient to cover the aggregated"},
		"limit of a container": {corev1.ResourceRequirements{Limits: list("memory", "2")}, corev1.ResourceRequirements{Limits: list("memory", "1")}, devices("memory", "1", "1"),
			"pod level limit for memory is insufficient to cover the limit and DRA overhead for container a"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: &c.own, Containers: []corev1.Container{{Name: "a", Resources: c.container}, {Name: "b", Resources: c.container}}},
			Status: corev1.PodStatus{NodeAllocatableResourceClaimStatuses: c.devices}}
		if got := CheckDeviceResources(pod); c.want == "" && got != "" || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
