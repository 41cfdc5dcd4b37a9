package controller_test

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func TestTTLAfterFinished(t *testing.T) {
	c := start(t)
	seconds := int32(1)
	job := must(c.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &seconds, Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{}))(t)
	now := metav1.NewTime(time.Now())
	job.Status.StartTime, job.Status.CompletionTime = &now, &now
	job.Status.Conditions = []batchv1.JobCondition{
		{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now, LastProbeTime: now},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now, LastProbeTime: now},
	}
	must(c.BatchV1().Jobs(ns).UpdateStatus(t.Context(), job, metav1.UpdateOptions{}))(t)
	c.until(batchv1.SchemeGroupVersion.WithResource("jobs"), ns, func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 0 })
}

// A claim that a pod uses outlives its deletion until the pod is gone.
func TestClaimProtection(t *testing.T) {
	c := start(t)
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	must(c.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}))(t)
	must(c.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "c", Image: "i"}}, Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
		}},
	}, metav1.CreateOptions{}))(t)
	c.until(claims, ns, func(objs map[string]*unstructured.Unstructured) bool {
		f := objs[ns+"/claim"].GetFinalizers()
		return len(f) == 1 && f[0] == "kubernetes.io/pvc-protection"
	})
	if err := c.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), "claim", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must(c.CoreV1().PersistentVolumeClaims(ns).Get(t.Context(), "claim", metav1.GetOptions{}))(t)
	now := int64(0)
	if err := c.CoreV1().Pods(ns).Delete(t.Context(), "pod", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	c.until(claims, ns, func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 0 })
}

// A volume that is bound outlives its deletion until it is released.
func TestVolumeProtection(t *testing.T) {
	c := start(t)
	volumes := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	api := c.CoreV1().PersistentVolumes()
	must(api.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "volume"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/v"}},
		},
	}, metav1.CreateOptions{}))(t)
	phase := func(p corev1.PersistentVolumePhase) {
		t.Helper()
		must(api.Patch(t.Context(), "volume", types.MergePatchType, []byte(`{"status":{"phase":"`+string(p)+`"}}`), metav1.PatchOptions{}, "status"))(t)
	}
	phase(corev1.VolumeBound)
	c.until(volumes, "", func(objs map[string]*unstructured.Unstructured) bool {
		f := objs["/volume"].GetFinalizers()
		return len(f) == 1 && f[0] == "kubernetes.io/pv-protection"
	})
	if err := api.Delete(t.Context(), "volume", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.swept()
	must(api.Get(t.Context(), "volume", metav1.GetOptions{}))(t)
	phase(corev1.VolumeReleased)
	c.until(volumes, "", func(objs map[string]*unstructured.Unstructured) bool { return len(objs) == 0 })
}
