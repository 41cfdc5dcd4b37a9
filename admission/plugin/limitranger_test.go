package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
)

// amount makes a list of resources: cpu, 1, memory, 1Gi.
func amount(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = apiresource.MustParse(pairs[i+1])
	}
	return l
}

func needs(requests, limits corev1.ResourceList) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func TestLimitRanger(t *testing.T) {
	item := func(i corev1.LimitRangeItem) corev1.LimitRangeItem { return i }
	container, whole, claims := corev1.LimitTypeContainer, corev1.LimitTypePod, corev1.LimitTypePersistentVolumeClaim
	claim := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: meta("c"), Spec: corev1.PersistentVolumeClaimSpec{
			Resources: corev1.VolumeResourceRequirements{Requests: amount("storage", size)}}}
	}
	initial := func(requests, limits corev1.ResourceList) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}}
		}
	}
	for _, c := range []struct {
		name  string
		limit corev1.LimitRangeItem
		write write
		err   string
	}{
		{"max", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(nil, amount("cpu", "2")))}, "maximum cpu usage per Container is 1, but limit is 2"},
		{"max, none", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Create, resource: "pods", obj: newPod()}, "maximum cpu usage per Container is 1.  No limit is specified"},
		{"max, request", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(amount("cpu", "3"), amount("cpu", "1")))}, "but request is 3"},
		{"max, initial", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(nil, amount("cpu", "1")), initial(nil, amount("cpu", "5")))}, "but limit is 5"},
		{"min", item(corev1.LimitRangeItem{Type: container, Min: amount("memory", "1Gi")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(amount("memory", "1Mi"), nil))}, "minimum memory usage per Container is 1Gi, but request is 1Mi"},
		{"min, none", item(corev1.LimitRangeItem{Type: container, Min: amount("memory", "1Gi")}),
			write{op: admission.Create, resource: "pods", obj: newPod()}, "minimum memory usage per Container is 1Gi.  No request is specified"},
		{"ratio", item(corev1.LimitRangeItem{Type: container, MaxLimitRequestRatio: amount("cpu", "1500m")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(amount("cpu", "1"), amount("cpu", "2")))}, "cpu max limit to request ratio per Container is 1500m, but provided ratio is 2.000000"},
		{"ratio, fits", item(corev1.LimitRangeItem{Type: container, MaxLimitRequestRatio: amount("cpu", "2")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(amount("cpu", "1"), amount("cpu", "2")))}, ""},
		{"pod", item(corev1.LimitRangeItem{Type: whole, Max: amount("cpu", "1", "memory", "1Gi")}),
			write{op: admission.Create, resource: "pods", obj: newPod()}, "[maximum cpu usage per Pod is 1.  No limit is specified, maximum memory usage per Pod is 1Gi.  No limit is specified]"},
		{"pod as a whole", item(corev1.LimitRangeItem{Type: whole, Max: amount("cpu", "1")}),
			write{op: admission.Create, resource: "pods", obj: newPod(needs(nil, amount("cpu", "5")), func(p *corev1.Pod) {
				p.Spec.Resources = &corev1.ResourceRequirements{Limits: amount("cpu", "1")}
			})}, ""},
		{"update", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Update, resource: "pods", obj: newPod(), old: newPod()}, ""},
		{"resize", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Update, resource: "pods/resize", obj: newPod(needs(nil, amount("cpu", "2"))), old: newPod()}, "but limit is 2"},
		{"resize of one that goes", item(corev1.LimitRangeItem{Type: container, Max: amount("cpu", "1")}),
			write{op: admission.Update, resource: "pods/resize", obj: newPod(needs(nil, amount("cpu", "2"))), old: newPod(func(p *corev1.Pod) {
				p.DeletionTimestamp = &metav1.Time{}
			})}, ""},
		{"claim", item(corev1.LimitRangeItem{Type: claims, Max: amount("storage", "2Gi")}),
			write{op: admission.Create, resource: "persistentvolumeclaims", obj: claim("5Gi")}, `persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 5Gi`},
		{"claim grows", item(corev1.LimitRangeItem{Type: claims, Max: amount("storage", "2Gi")}),
			write{op: admission.Update, resource: "persistentvolumeclaims", obj: claim("5Gi"), old: claim("1Gi")}, "but request is 5Gi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := store("limitranges", &corev1.LimitRange{ObjectMeta: meta("lr"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{c.limit}}})
			_, err := try(t, only(t, "LimitRanger", Config{}, Deps{Objects: objects}), c.write)
			refuses(t, err, c.err)
		})
	}
}

func TestLimitRangerDefaults(t *testing.T) {
	limits := &corev1.LimitRange{ObjectMeta: meta("lr"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Default: amount("cpu", "2", "memory", "1Gi"), DefaultRequest: amount("cpu", "1")},
	}}}
	pod := newPod(needs(nil, amount("cpu", "3")), func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} })
	if _, err := try(t, only(t, "LimitRanger", Config{}, Deps{Objects: store("limitranges", limits)}), write{op: admission.Create, resource: "pods", obj: pod}); err != nil {
		t.Fatal(err)
	}
	const want = "LimitRanger plugin set: cpu request for container c; memory limit for container c; cpu request for init container i; cpu, memory limit for init container i"
	if got := pod.Annotations[limitRangerNote]; got != want {
		t.Errorf("the note is %q", got)
	}
	if got := pod.Spec.Containers[0].Resources.Limits.Cpu().String(); got != "3" {
		t.Errorf("the limit of the container is %s", got)
	}
}
