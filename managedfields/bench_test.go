//go:build unix

package managedfields

import (
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/apikeel/kelson/resource"
)

func load(t testing.TB, obj any, files ...string) {
	t.Helper()
	for _, file := range files {
		data, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, obj); err != nil {
			t.Fatal(err)
		}
	}
}

// scene is a write that is measured: live is nil for a create, patch is set for
// an apply.
type scene struct {
	name    string
	opts    Options
	live    resource.Object
	new     resource.Object
	patch   *unstructured.Unstructured
	manager string
}

// scenes are the writes that a cluster consists of, on a realistic pod and
// deployment.
func scenes(t testing.TB) []scene {
	main := goOptions(podKind)
	main.Scope.Except = []string{"status"}
	status := goOptions(podKind)
	status.Types, status.Subresource = main.Types, "status"
	status.Scope.Except = []string{"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"}
	deployments := goOptions(deploymentKind)
	deployments.Scope.Except = []string{"status"}
	for _, o := range []*Options{&main, &status, &deployments} {
		o.Cache = &Cache{}
	}
	track := func(o Options, live, obj resource.Object, manager string) resource.Object {
		m, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		obj, err = m.Update(live, obj.DeepCopyObject().(resource.Object), manager, oldTime.Time)
		if err != nil {
			t.Fatal(err)
		}
		obj.SetUID("u")
		return obj
	}
	apply := func(o Options, live resource.Object, patch *unstructured.Unstructured) resource.Object {
		m, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := m.Apply(live, patch, "gitops", false, oldTime.Time)
		if err != nil {
			t.Fatal(err)
		}
		obj.SetUID("u")
		return obj
	}
	patchOf := func(obj runtime.Object, kind schema.GroupVersionKind) *unstructured.Unstructured {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			t.Fatal(err)
		}
		patch := &unstructured.Unstructured{Object: fields}
		patch.SetGroupVersionKind(kind)
		delete(fields, "status")
		return patch
	}

	pod, running, deployment := &corev1.Pod{}, &corev1.Pod{}, &appsv1.Deployment{}
	load(t, pod, "pod.yaml")
	load(t, running, "pod.yaml", "podstatus.yaml")
	load(t, deployment, "deployment.yaml")
	created := track(main, nil, pod, "kube-controller-manager")
	live := created.DeepCopyObject().(*corev1.Pod)
	live.Status = running.Status
	live = track(status, created, live, "kubelet").(*corev1.Pod)

	notReady := live.DeepCopy()
	notReady.Status.Conditions[2].Status, notReady.Status.ContainerStatuses[1].Ready = "False", false
	notReady.Status.ContainerStatuses[1].RestartCount = 4
	labelled := live.DeepCopy()
	labelled.Labels["tier"] = "front"
	image := live.DeepCopy()
	image.Spec.Containers[0].Image = "registry.example.com/shop/web:1.28.0"

	liveDeployment := track(deployments, nil, deployment, "kubectl-create")
	scaled := liveDeployment.DeepCopyObject().(*appsv1.Deployment)
	scaled.Spec.Replicas = new(int32)
	podPatch, deploymentPatch := patchOf(pod, podKind), patchOf(deployment, deploymentKind)
	appliedPod, appliedDeployment := apply(main, nil, podPatch), apply(deployments, nil, deploymentPatch)
	podChange, podRemove, deploymentChange := podPatch.DeepCopy(), podPatch.DeepCopy(), deploymentPatch.DeepCopy()
	podRemove.SetLabels(map[string]string{"app.kubernetes.io/name": "web"})
	labels := podChange.GetLabels()
	labels["tier"] = "front"
	podChange.SetLabels(labels)
	if err := unstructured.SetNestedField(deploymentChange.Object, int64(5), "spec", "replicas"); err != nil {
		t.Fatal(err)
	}
	return []scene{
		{name: "pod-create", opts: main, new: pod, manager: "kube-controller-manager"},
		{name: "pod-no-op", opts: main, live: live, new: live.DeepCopy(), manager: "kube-controller-manager"},
		{name: "pod-status", opts: status, live: live, new: notReady, manager: "kubelet"},
		{name: "pod-label-other-manager", opts: main, live: live, new: labelled, manager: "kubectl-label"},
		{name: "pod-image-same-manager", opts: main, live: live, new: image, manager: "kube-controller-manager"},
		{name: "deployment-create", opts: deployments, new: deployment, manager: "kubectl-create"},
		{name: "deployment-scale", opts: deployments, live: liveDeployment, new: scaled, manager: "kubectl"},
		{name: "pod-apply-no-op", opts: main, live: appliedPod, patch: podPatch, manager: "gitops"},
		{name: "pod-apply-change", opts: main, live: appliedPod, patch: podChange, manager: "gitops"},
		{name: "pod-apply-remove", opts: main, live: appliedPod, patch: podRemove, manager: "gitops"},
		{name: "deployment-apply-create", opts: deployments, patch: deploymentPatch, manager: "gitops"},
		{name: "deployment-apply-no-op", opts: deployments, live: appliedDeployment, patch: deploymentPatch, manager: "gitops"},
		{name: "deployment-apply-change", opts: deployments, live: appliedDeployment, patch: deploymentChange, manager: "gitops"},
	}
}

// measureCPU reports the CPU time an operation, which other work on the machine
// does not change as it changes the time on the clock.
func measureCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric(float64((used()-start).Nanoseconds())/float64(b.N), "cpu-ns/op") }
}

// BenchmarkManager measures the scenes here and in apimachinery. Every round
// has the object's metadata restored, since a manager changes the new object.
func BenchmarkManager(b *testing.B) {
	for _, s := range scenes(b) {
		ours, err := New(s.opts)
		if err != nil {
			b.Fatal(err)
		}
		theirs := stockManager(b, s.opts)
		empty := s.opts.New()
		b.Run(s.name+"/kelson", func(b *testing.B) {
			b.ReportAllocs()
			defer measureCPU(b)()
			now := time.Now()
			for b.Loop() {
				if s.patch != nil {
					if _, err := ours.Apply(s.live, s.patch, s.manager, false, now); err != nil {
						b.Fatal(err)
					}
					continue
				}
				s.new.SetManagedFields(nil)
				if _, err := ours.Update(s.live, s.new, s.manager, now); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/stock", func(b *testing.B) {
			b.ReportAllocs()
			defer measureCPU(b)()
			live := runtime.Object(empty)
			if s.live != nil {
				live = s.live
			}
			live.GetObjectKind().SetGroupVersionKind(s.opts.Kind)
			for b.Loop() {
				var err error
				if s.patch != nil {
					_, err = theirs.Apply(live, s.patch, s.manager, false)
				} else {
					s.new.SetManagedFields(nil)
					s.new.GetObjectKind().SetGroupVersionKind(s.opts.Kind)
					_, err = theirs.Update(live, s.new, s.manager)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFirstUse measures what the first write of a kind costs once in the
// life of a server.
func BenchmarkFirstUse(b *testing.B) {
	pod := &corev1.Pod{}
	load(b, pod, "pod.yaml", "podstatus.yaml")
	defer measureCPU(b)()
	for b.Loop() {
		m, err := New(goOptions(podKind))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := m.Update(nil, pod, "m", time.Time{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestScenes compares the scenes with apimachinery, so that the benchmark is
// about equal work.
func TestScenes(t *testing.T) {
	for i, s := range scenes(t) {
		t.Run(strconv.Itoa(i)+"-"+s.name, func(t *testing.T) {
			m, err := New(s.opts)
			if err != nil {
				t.Fatal(err)
			}
			if s.live != nil {
				s.live.GetObjectKind().SetGroupVersionKind(s.opts.Kind)
			}
			if s.patch != nil {
				if _, err := bothApply(t, m, stockManager(t, s.opts), s.live, s.patch, s.manager, false); err != nil {
					t.Fatal(err)
				}
				return
			}
			next := s.new.DeepCopyObject().(resource.Object)
			next.GetObjectKind().SetGroupVersionKind(s.opts.Kind)
			both(t, m, stockManager(t, s.opts), s.live, next, s.manager)
		})
	}
}
