package podspec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/builtin/rules"
)

// BenchmarkCreate is what a pod with two containers passes before it is stored: fields of
// features that are off, validation, warnings.
func BenchmarkCreate(b *testing.B) {
	container := func(name string, port int32) corev1.Container {
		amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
		return corev1.Container{
			Name: name, Image: "registry.example.com/app:v1.2.3",
			Env:            []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Ports:          []corev1.ContainerPort{{Name: name, ContainerPort: port}},
			Resources:      corev1.ResourceRequirements{Requests: amounts, Limits: amounts},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(port)}}},
			VolumeMounts:   []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "config", MountPath: "/etc/app", ReadOnly: true}},
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{container("web", 8080), container("metrics", 9090)},
		Volumes: []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}}},
		},
		Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
	}}
	Default(&pod.Spec)
	b.ReportAllocs()
	for b.Loop() {
		DropDisabledPodFields(b.Context(), pod, nil)
		var errs rules.Errors
		if CheckPod(&errs, pod, PodAllowances(b.Context(), nil)); len(errs) > 0 {
			b.Fatal(errs)
		}
		if w := CreateWarnings(pod); len(w) > 0 {
			b.Fatal(w)
		}
	}
}
