package core

import (
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/resource"
)

// Pods defines pods. Most of a pod is immutable; what can change has its own subresources.
func Pods() resource.Definition {
	version := resource.VersionOf[corev1.Pod, corev1.PodList]("v1", defaultPod)
	version.FieldNames = map[string]string{"spec.host": "spec.nodeName"} // the name in old clients
	for _, f := range podFields() {
		version.FieldNames[f.Path] = f.Path
	}
	return resource.Definition{
		Resource:   "pods",
		Kind:       "Pod",
		ShortNames: []string{"po"},
		Categories: []string{"all"},
		Namespaced: true,
		Versions:   []resource.Version{version},
		Strategy: resource.Rules[*corev1.Pod]{
			NameOnUpdate:   true,
			PrepareCreate:  preparePod,
			PrepareUpdate:  preparePodUpdate,
			Validate:       validatePod,
			ValidateUpdate: validatePodUpdate,
			Warnings: func(_ context.Context, pod, old *corev1.Pod) []string {
				if old != nil {
					return nil // no warnings for updates, which controllers make
				}
				return podspec.CreateWarnings(pod)
			},
			Generation:    podGeneration,
			GracePeriod:   podGracePeriod,
			ReturnDeleted: true,
		}.Strategy(),
		Subresources: []resource.Subresource{
			{
				Name: "status",
				Part: new(resource.Rules[*corev1.Pod]{
					PrepareUpdate:  preparePodStatus,
					ValidateUpdate: validatePodStatus,
					Warnings:       func(_ context.Context, pod, _ *corev1.Pod) []string { return podStatusWarnings(pod) },
					Resets:         []string{"spec", "metadata.deletionTimestamp", "metadata.ownerReferences"},
				}.Strategy()),
			},
			{
				Name: "ephemeralcontainers", NoTable: true,
				Part: new(resource.Rules[*corev1.Pod]{
					NameOnUpdate:  true,
					PrepareUpdate: prepareEphemeralContainers,
					ValidateUpdate: func(ctx context.Context, pod, old *corev1.Pod) field.ErrorList {
						return validateEphemeralUpdate(ctx, pod, old)
					},
					Generation: podGeneration,
				}.Strategy()),
			},
			{
				Name: "resize", NoTable: true,
				Part: new(resource.Rules[*corev1.Pod]{
					PrepareUpdate:  preparePodResize,
					ValidateUpdate: validatePodResize,
					Generation:     podGeneration,
				}.Strategy()),
			},
			{
				Name:   "binding",
				Kind:   corev1.SchemeGroupVersion.WithKind("Binding"),
				New:    func() resource.Object { return &corev1.Binding{} },
				Action: bindPod, KeepsMeta: true,
			},
			{
				Name:   "eviction",
				Kind:   policyv1.SchemeGroupVersion.WithKind("Eviction"),
				Also:   []string{"v1beta1"},
				New:    func() resource.Object { return &policyv1.Eviction{} },
				Action: evictPod,
			},
		},
		Columns: podColumns(),
		Cells:   resource.CellsFunc(podCells),
		RowConditions: func(obj resource.Object) []metav1.TableRowCondition {
			return podRowConditions(obj.(*corev1.Pod))
		},
		Fields: podFields(),
	}
}

func podFields() []resource.Field {
	return []resource.Field{
		resource.FieldFunc("spec.nodeName", func(p *corev1.Pod) string { return p.Spec.NodeName }),
		resource.FieldFunc("spec.restartPolicy", func(p *corev1.Pod) string { return string(p.Spec.RestartPolicy) }),
		resource.FieldFunc("spec.schedulerName", func(p *corev1.Pod) string { return p.Spec.SchedulerName }),
		resource.FieldFunc("spec.serviceAccountName", func(p *corev1.Pod) string { return p.Spec.ServiceAccountName }),
		resource.FieldFunc("spec.hostNetwork", func(p *corev1.Pod) string { return strconv.FormatBool(p.Spec.HostNetwork) }),
		resource.FieldFunc("status.phase", func(p *corev1.Pod) string { return string(p.Status.Phase) }),
		resource.FieldFunc("status.podIP", func(p *corev1.Pod) string {
			if len(p.Status.PodIPs) == 0 {
				return ""
			}
			return p.Status.PodIPs[0].IP
		}),
		// Selectors may name the field, but its value is always empty.
		resource.FieldFunc("status.podIPs", func(*corev1.Pod) string { return "" }),
		resource.FieldFunc("status.nominatedNodeName", func(p *corev1.Pod) string { return p.Status.NominatedNodeName }),
	}
}

func podGeneration(pod, old *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(pod.Spec, old.Spec)
}

// podGracePeriod returns the grace period in which the kubelet stops the containers; 0 if the
// pod has no node or has finished.
func podGracePeriod(pod *corev1.Pod, asked *int64) int64 {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return 0
	}
	if asked == nil {
		asked = pod.Spec.TerminationGracePeriodSeconds
	}
	switch {
	case asked == nil:
		return 0
	case *asked < 0:
		return 1
	}
	return *asked
}

// prepareEphemeralContainers restores everything but the ephemeral containers.
func prepareEphemeralContainers(ctx context.Context, pod, old *corev1.Pod) {
	containers := pod.Spec.EphemeralContainers
	pod.Spec, pod.Status = old.Spec, old.Status
	pod.Spec.EphemeralContainers = containers
	metav1.ResetObjectMetaForStatus(&pod.ObjectMeta, &old.ObjectMeta)
	podspec.DropDisabledPodFields(ctx, pod, old)
}
