package podspec

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestWarningsAreLinear: what a pod is warned of costs no more than its size. Pairs of equal
// ports were compared each with each: 3,000 of them took 51 s and 900 MB.
func TestWarningsAreLinear(t *testing.T) {
	const many = 50_000
	fill := func(add func(i int)) {
		for i := range many {
			add(i)
		}
	}
	for name, c := range map[string]struct {
		build func(spec *corev1.PodSpec)
		most  int
	}{
		"equal ports": {func(spec *corev1.PodSpec) {
			spec.Containers[0].Ports = make([]corev1.ContainerPort, many)
		}, maxPairs},
		"ports of a host": {func(spec *corev1.PodSpec) {
			fill(func(i int) {
				spec.Containers[0].Ports = append(spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 1, HostPort: int32(i + 1)})
			})
		}, 0},
		"ports of one name": {func(spec *corev1.PodSpec) {
			fill(func(i int) {
				spec.Containers[0].Ports = append(spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: int32(i + 1), Name: "a"})
			})
		}, many},
		"equal files": {func(spec *corev1.PodSpec) {
			items := make([]corev1.KeyToPath, many)
			for i := range items {
				items[i].Path = "a"
			}
			spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{Items: items}}}}
		}, maxPairs},
		"variables": {func(spec *corev1.PodSpec) {
			fill(func(i int) {
				spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint(i)})
			})
		}, 0},
		"addresses": {func(spec *corev1.PodSpec) {
			fill(func(i int) {
				spec.HostAliases = append(spec.HostAliases, corev1.HostAlias{IP: fmt.Sprintf("fd00::%x", i+1)})
			})
		}, 0},
		"secrets": {func(spec *corev1.PodSpec) {
			fill(func(i int) {
				spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: fmt.Sprint(i)})
			})
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}
			pod.Name = "a"
			c.build(&pod.Spec)
			if got := len(CreateWarnings(pod)); got > c.most {
				t.Errorf("%d warnings, %d are the most", got, c.most)
			}
		})
	}
}

// TestPortWarnings: pairs of ports are named in the order in which they are found.
func TestPortWarnings(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{ContainerPort: 1, Name: "a"}, {ContainerPort: 1, HostPort: 2}, {ContainerPort: 1}, {ContainerPort: 1, HostPort: 2, HostIP: "1.2.3.4", Name: "a"},
	}}}}}
	want := []string{
		"spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
		"spec.containers[0].ports[2]: duplicate port definition with spec.containers[0].ports[0]",
		"spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[1]",
		"spec.containers[0].ports[3]: overlapping port definition with spec.containers[0].ports[0]",
		"spec.containers[0].ports[3]: dangerously ambiguous port definition with spec.containers[0].ports[1]",
		"spec.containers[0].ports[3]: overlapping port definition with spec.containers[0].ports[2]",
		`spec.containers[0].ports[3]: duplicate port name "a" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]`,
	}
	if got := portWarnings(&pod.Spec, field.NewPath("spec")); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
