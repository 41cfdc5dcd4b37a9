package main

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/apikeel/kelson/test/bench/servers"
)

const (
	loadNamespace = "load"
	// lookInterval is how often the progress of a phase is looked at. A look is a list of
	// the deployments, or of one page of pods, so it costs little.
	lookInterval = 250 * time.Millisecond
	// writers is how many deployments are written at a time.
	writers = 8
)

// load is the deployments.
type load struct {
	client kubernetes.Interface
	of     size
}

func newLoad(v *servers.Server, of size) *load { return &load{newClient(v), of} }

func deploymentName(i int) string { return fmt.Sprintf("app-%03d", i) }

// start creates all deployments and waits until all their pods are available.
func (l *load) start(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: loadNamespace}}
	if _, err := l.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	if err := inParallel(ctx, writers, l.of.Deployments, func(ctx context.Context, i int) error {
		_, err := l.client.AppsV1().Deployments(loadNamespace).Create(ctx, newDeployment(deploymentName(i), l.of.Replicas), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return l.untilDone(ctx)
}

// roll changes the template of all deployments and waits until all pods are new.
func (l *load) roll(ctx context.Context) error {
	patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"example.com/round":"2"}}}}}`)
	if err := inParallel(ctx, writers, l.of.Deployments, func(ctx context.Context, i int) error {
		_, err := l.client.AppsV1().Deployments(loadNamespace).Patch(ctx, deploymentName(i), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}); err != nil {
		return err
	}
	return l.untilDone(ctx)
}

// remove deletes all deployments and waits until no pod is left.
func (l *load) remove(ctx context.Context) error {
	background := metav1.DeletePropagationBackground
	if err := inParallel(ctx, writers, l.of.Deployments, func(ctx context.Context, i int) error {
		return l.client.AppsV1().Deployments(loadNamespace).Delete(ctx, deploymentName(i), metav1.DeleteOptions{PropagationPolicy: &background})
	}); err != nil {
		return err
	}
	return l.until(ctx, func(ctx context.Context) (string, error) {
		pods, err := l.client.CoreV1().Pods(loadNamespace).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil || len(pods.Items) == 0 {
			return "", err
		}
		return "there is still " + pods.Items[0].Name, nil
	})
}

// quiet waits: only the nodes do something.
func (l *load) quiet(ctx context.Context) error { return servers.Wait(ctx, l.of.Quiet) }

// untilDone waits until all deployments are as they should be.
func (l *load) untilDone(ctx context.Context) error {
	return l.until(ctx, func(ctx context.Context) (string, error) {
		list, err := l.client.AppsV1().Deployments(loadNamespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for i := range list.Items {
			if d := &list.Items[i]; !isDone(d) {
				return fmt.Sprintf("%s has %d updated and %d available of %d pods", d.Name, d.Status.UpdatedReplicas, d.Status.AvailableReplicas, *d.Spec.Replicas), nil
			}
		}
		return "", nil
	})
}

// isDone reports whether all pods of a deployment are of its newest template and available.
func isDone(d *appsv1.Deployment) bool {
	want := *d.Spec.Replicas
	return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == want && d.Status.AvailableReplicas == want && d.Status.Replicas == want
}

// until looks again and again until nothing is left to be done.
func (l *load) until(ctx context.Context, left func(context.Context) (string, error)) error {
	last := ""
	for {
		what, err := left(ctx)
		if err != nil {
			return fmt.Errorf("%w (%s)", err, last)
		}
		if what == "" {
			return nil
		}
		last = what
		if err := servers.Wait(ctx, lookInterval); err != nil {
			return fmt.Errorf("%w: %s", err, last)
		}
	}
}

// newDeployment is a deployment whose pods are like those of usual applications: two
// containers with probes, resources and volumes.
func newDeployment(name string, replicas int) *appsv1.Deployment {
	n, no, labels := int32(replicas), false, map[string]string{"app": name}
	container := func(name string, port int32) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.com/shop/" + name + ":v1", Args: []string{"--config=/etc/app/server.conf"},
			Ports:        []corev1.ContainerPort{{Name: name, ContainerPort: port}},
			Env:          []corev1.EnvVar{{Name: "LEVEL", Value: "info"}, {Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources:    corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")}},
			VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/tmp"}},
		}
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"example.com/round": "1"}},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: &no, Containers: []corev1.Container{container("web", 8443), container("proxy", 9443)},
					Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
				},
			},
		},
	}
}
