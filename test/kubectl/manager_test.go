package kubectl

import (
	"context"
	"testing"
	"time"

	"github.com/apikeel/kelson/kelsontest"
	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A manager with a reconciler that makes a replica set for every deployment.
func TestManager(t *testing.T) {
	server := kelsontest.Start(t)
	ctrl.SetLogger(logr.Discard())
	mgr, err := ctrl.NewManager(server.Config(), ctrl.Options{
		Scheme: scheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "test", LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := mgr.GetClient()
	err = ctrl.NewControllerManagedBy(mgr).For(&appsv1.Deployment{}).Owns(&appsv1.ReplicaSet{}).Complete(
		reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			var d appsv1.Deployment
			if err := c.Get(ctx, req.NamespacedName, &d); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, Labels: d.Spec.Selector.MatchLabels}}
			_, err := ctrl.CreateOrUpdate(ctx, c, rs, func() error {
				rs.Spec = appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template}
				return ctrl.SetControllerReference(&d, rs, mgr.GetScheme())
			})
			if err != nil {
				return reconcile.Result{}, err
			}
			d.Status.Replicas, d.Status.ObservedGeneration = *rs.Spec.Replicas, d.Generation
			return reconcile.Result{}, c.Status().Update(ctx, &d)
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("manager: %v", err)
		}
	}()

	labels := map[string]string{"app": "web"}
	replicas := int32(3)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
	if err := c.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for d.Status.Replicas != replicas || d.Status.ObservedGeneration != d.Generation {
		select {
		case <-ctx.Done():
			t.Fatalf("the status is %+v", d.Status)
		case <-tick.C:
		}
		if err := mgr.GetAPIReader().Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			t.Fatal(err)
		}
	}
	var rs appsv1.ReplicaSet
	if err := mgr.GetAPIReader().Get(ctx, client.ObjectKeyFromObject(d), &rs); err != nil {
		t.Fatal(err)
	}
	if !metav1.IsControlledBy(&rs, d) {
		t.Errorf("owners are %v", rs.OwnerReferences)
	}
}
