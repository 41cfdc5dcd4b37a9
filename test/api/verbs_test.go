package api

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Every verb and every patch, on a kind that adds nothing of its own.
func TestVerbs(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, maps := t.Context(), c.CoreV1().ConfigMaps("default")
		start := must(maps.List(ctx, metav1.ListOptions{}))(t)
		w := must(maps.Watch(ctx, metav1.ListOptions{ResourceVersion: start.ResourceVersion}))(t)
		defer w.Stop()

		made := must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("a"), Data: map[string]string{"k": "1"}}, metav1.CreateOptions{}))(t)
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named("a")}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("a second create: %v", err)
		}
		change := made.DeepCopy()
		change.Data["k"] = "2"
		updated := must(maps.Update(ctx, change, metav1.UpdateOptions{}))(t)
		if _, err := maps.Update(ctx, change, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("an update of an old version: %v", err)
		}
		if updated.UID != made.UID || updated.ResourceVersion == made.ResourceVersion {
			t.Errorf("the update has uid %s and version %s", updated.UID, updated.ResourceVersion)
		}
		want := map[string]string{"k": "2"}
		for kind, patch := range map[types.PatchType]string{
			types.JSONPatchType:           `[{"op":"add","path":"/data/json","value":"x"}]`,
			types.MergePatchType:          `{"data":{"merge":"x"}}`,
			types.StrategicMergePatchType: `{"data":{"strategic":"x"}}`,
		} {
			must(maps.Patch(ctx, "a", kind, []byte(patch), metav1.PatchOptions{}))(t)
		}
		applied := must(maps.Apply(ctx, applycorev1.ConfigMap("a", "default").WithData(map[string]string{"apply": "x"}), metav1.ApplyOptions{FieldManager: "m"}))(t)
		want["json"], want["merge"], want["strategic"], want["apply"] = "x", "x", "x", "x"
		if fmt.Sprint(applied.Data) != fmt.Sprint(want) {
			t.Errorf("data is %v, want %v", applied.Data, want)
		}
		_, err := maps.Apply(ctx, applycorev1.ConfigMap("a", "default").WithData(map[string]string{"k": "3"}), metav1.ApplyOptions{FieldManager: "m"})
		if !apierrors.IsConflict(err) {
			t.Errorf("apply of another manager's field: %v", err)
		}
		got := must(maps.Get(ctx, "a", metav1.GetOptions{}))(t)
		if got.ResourceVersion != applied.ResourceVersion {
			t.Errorf("get has version %s after %s", got.ResourceVersion, applied.ResourceVersion)
		}
		ok(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}))
		if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get after delete: %v", err)
		}
		for i, want := range []watch.EventType{watch.Added, watch.Modified, watch.Modified, watch.Modified, watch.Modified, watch.Modified, watch.Deleted} {
			if e := next(t, w); e.Type != want {
				t.Errorf("event %d is %s, want %s", i, e.Type, want)
			}
		}
	})
}

// Pages belong together, whatever is written in between.
func TestPaging(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx, maps := t.Context(), c.CoreV1().ConfigMaps("default")
		const count, limit = 25, 10
		for i := range count {
			must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named(fmt.Sprintf("m-%02d", i))}, metav1.CreateOptions{}))(t)
		}
		opts, seen, version := metav1.ListOptions{Limit: limit}, 0, ""
		for page := 0; ; page++ {
			list := must(maps.List(ctx, opts))(t)
			for i := range list.Items {
				if want := fmt.Sprintf("m-%02d", seen); list.Items[i].Name != want {
					t.Errorf("object %d is %s", seen, list.Items[i].Name)
				}
				seen++
			}
			if version == "" {
				version = list.ResourceVersion
			} else if version != list.ResourceVersion {
				t.Errorf("page %d is of version %s, the first of %s", page, list.ResourceVersion, version)
			}
			if opts.Continue = list.Continue; opts.Continue == "" {
				break
			}
			if left := list.RemainingItemCount; left == nil || int(*left) != count-seen {
				t.Errorf("after %d of %d, %v are said to be left", seen, count, left)
			}
			ok(t, maps.Delete(ctx, fmt.Sprintf("m-%02d", count-1-page), metav1.DeleteOptions{}))
			must(maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: named(fmt.Sprintf("m-%02d-new", count-2-page))}, metav1.CreateOptions{}))(t)
		}
		if seen != count {
			t.Errorf("the pages have %d objects, there were %d", seen, count)
		}
		ok(t, maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app!=m-00"}))
		if left := must(maps.List(ctx, metav1.ListOptions{}))(t); len(left.Items) != 1 || left.Items[0].Name != "m-00" {
			t.Errorf("%d objects are left", len(left.Items))
		}
	})
}

// What each of some kinds does beyond the verbs.
func TestKinds(t *testing.T) {
	everywhere(t, func(t *testing.T, c kubernetes.Interface) {
		ctx := t.Context()
		must(c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: named("work")}, metav1.CreateOptions{}))(t)
		pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}

		t.Run("pod", func(t *testing.T) {
			pods := c.CoreV1().Pods("work")
			p := must(pods.Create(ctx, &corev1.Pod{ObjectMeta: named("p"), Spec: pod}, metav1.CreateOptions{}))(t)
			if p.Status.Phase != corev1.PodPending || p.Spec.RestartPolicy != corev1.RestartPolicyAlways {
				t.Errorf("phase %s, restart policy %s", p.Status.Phase, p.Spec.RestartPolicy)
			}
			ok(t, pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, metav1.CreateOptions{}))
			on := must(pods.List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n"}))(t)
			if len(on.Items) != 1 {
				t.Fatalf("%d pods are on the node", len(on.Items))
			}
			on.Items[0].Status.Phase = corev1.PodRunning
			must(pods.UpdateStatus(ctx, &on.Items[0], metav1.UpdateOptions{}))(t)
			ok(t, pods.Delete(ctx, "p", metav1.DeleteOptions{}))
			if p := must(pods.Get(ctx, "p", metav1.GetOptions{}))(t); p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 {
				t.Errorf("a running pod has deletion time %v", p.DeletionTimestamp)
			}
			now := int64(0)
			ok(t, pods.Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: &now}))
		})
		t.Run("service", func(t *testing.T) {
			s := must(c.CoreV1().Services("work").Create(ctx, &corev1.Service{ObjectMeta: named("s"), Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}},
			}}, metav1.CreateOptions{}))(t)
			if s.Spec.ClusterIP == "" || s.Spec.Ports[0].NodePort == 0 {
				t.Errorf("cluster IP %q, node port %d", s.Spec.ClusterIP, s.Spec.Ports[0].NodePort)
			}
			ok(t, c.CoreV1().Services("work").Delete(ctx, "s", metav1.DeleteOptions{}))
		})
		t.Run("deployment", func(t *testing.T) {
			deployments := c.AppsV1().Deployments("work")
			selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}}
			must(deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: named("d"), Spec: appsv1.DeploymentSpec{
				Selector: selector, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: selector.MatchLabels}, Spec: pod},
			}}, metav1.CreateOptions{}))(t)
			scale := must(deployments.GetScale(ctx, "d", metav1.GetOptions{}))(t)
			if scale.Spec.Replicas != 1 || scale.Status.Selector != "app=d" {
				t.Errorf("scale is %+v %+v", scale.Spec, scale.Status)
			}
			scale.Spec = autoscalingv1.ScaleSpec{Replicas: 3}
			must(deployments.UpdateScale(ctx, "d", scale, metav1.UpdateOptions{}))(t)
			if d := must(deployments.Get(ctx, "d", metav1.GetOptions{}))(t); *d.Spec.Replicas != 3 || d.Generation != 2 {
				t.Errorf("%d replicas at generation %d", *d.Spec.Replicas, d.Generation)
			}
		})
		t.Run("lease", func(t *testing.T) {
			leases, holder, now := c.CoordinationV1().Leases("work"), "me", metav1.NewMicroTime(time.Now())
			l := must(leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: named("l")}, metav1.CreateOptions{}))(t)
			l.Spec.HolderIdentity, l.Spec.RenewTime = &holder, &now
			l = must(leases.Update(ctx, l, metav1.UpdateOptions{}))(t)
			if got := l.Spec.RenewTime.Time; !got.Equal(now.Truncate(time.Microsecond)) {
				t.Errorf("renewed at %v, want %v", got, now)
			}
		})
		t.Run("event", func(t *testing.T) {
			e := must(c.EventsV1().Events("work").Create(ctx, &eventsv1.Event{
				ObjectMeta: named("e"), EventTime: metav1.NowMicro(), Type: "Normal", Reason: "R", Action: "A", Note: "text",
				ReportingController: "example.com/c", ReportingInstance: "i", Regarding: corev1.ObjectReference{Namespace: "work", Kind: "Pod", Name: "p"},
			}, metav1.CreateOptions{}))(t)
			old := must(c.CoreV1().Events("work").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p,reason=R"}))(t)
			if len(old.Items) != 1 || old.Items[0].Message != "text" || old.Items[0].UID != e.UID {
				t.Errorf("in the core group the events are %v", old.Items)
			}
		})
	})
}
