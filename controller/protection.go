package controller

import (
	"context"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	claimProtection  = "kubernetes.io/pvc-protection"
	volumeProtection = "kubernetes.io/pv-protection"
	groupProtection  = "scheduling.k8s.io/podgroup-protection"
)

// ClaimProtection keeps PersistentVolumeClaims as long as pods use them.
func ClaimProtection() Controller {
	return protection("persistentvolumeclaim-protection-controller", "pvc-protection", "pvc-protection-controller",
		"", "persistentvolumeclaims", claimProtection, func(ctx context.Context, env *Env, o *protected) (bool, error) {
			var pods corev1.PodList
			if err := env.List(ctx, env.Kind("v1", "Pod"), o.namespace, &pods); err != nil {
				return true, err
			}
			return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return usesClaim(&p, o.name, o.Owners) }), nil
		})
}

// usesClaim reports whether a pod uses a claim. A pod without a node does not: it will
// not be scheduled with a claim that is being deleted.
func usesClaim(pod *corev1.Pod, name string, owners []metav1.OwnerReference) bool {
	if pod.Spec.NodeName == "" {
		return false
	}
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name {
			return true
		}
		if v.Ephemeral != nil && !over && pod.Name+"-"+v.Name == name &&
			slices.ContainsFunc(owners, func(r metav1.OwnerReference) bool { return r.UID == pod.UID }) {
			return true
		}
	}
	return false
}

// VolumeProtection keeps PersistentVolumes as long as they are bound.
func VolumeProtection() Controller {
	return protection("persistentvolume-protection-controller", "pv-protection", "pv-protection-controller",
		"", "persistentvolumes", volumeProtection, func(ctx context.Context, env *Env, o *protected) (bool, error) {
			var volume corev1.PersistentVolume
			err := env.Get(ctx, o.kind, "", o.name, &volume)
			return err != nil || volume.Status.Phase == corev1.VolumeBound, ignoreNotFound(err)
		})
}

// GroupProtection keeps PodGroups as long as they have pods that have not finished.
func GroupProtection() Controller {
	return protection("podgroup-protection-controller", "podgroup-protection", "podgroup-protection-controller",
		schedulingv1beta1.GroupName, "podgroups", groupProtection, func(ctx context.Context, env *Env, o *protected) (bool, error) {
			var pods corev1.PodList
			if err := env.List(ctx, env.Kind("v1", "Pod"), o.namespace, &pods); err != nil {
				return true, err
			}
			return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
				g := p.Spec.SchedulingGroup
				return g != nil && g.PodGroupName != nil && *g.PodGroupName == o.name && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
			}), nil
		})
}

// protected is an object that is being deleted or lacks its finalizer.
type protected struct {
	kind            *Kind
	namespace, name string
	revision        int64
	Meta
}

// protection adds a finalizer to the objects of a resource, and removes it when an
// object is being deleted and not used.
func protection(name, alias, account, group, resource, finalizer string, used func(context.Context, *Env, *protected) (bool, error)) Controller {
	return Controller{Name: name, Alias: alias, Account: account, Start: func(env *Env) Observer {
		p := &protector{group: group, resource: resource, finalizer: finalizer, pods: resource != "persistentvolumes", objects: newLatest[named, *protected]()}
		p.queue = NewQueue(env, 2, func(ctx context.Context, key named) error {
			o := p.objects.get(key)
			if o == nil {
				return nil
			}
			finalizers := append(slices.Clone(o.Finalizers), finalizer)
			if o.Deleting {
				if is, err := used(ctx, env, o); is || err != nil {
					return err
				}
				finalizers = slices.DeleteFunc(slices.Clone(o.Finalizers), func(f string) bool { return f == finalizer })
			}
			_, err := env.Patch(ctx, o.kind, o.namespace, o.name, types.MergePatchType, map[string]any{"metadata": map[string]any{
				"uid": o.UID, "resourceVersion": strconv.FormatInt(o.revision, 10), "finalizers": finalizers,
			}})
			return mapOutdated(err)
		})
		return p
	}}
}

type protector struct {
	queue                      *Queue[named]
	group, resource, finalizer string
	pods                       bool // a change of a pod can end the use of an object
	objects                    *latest[named, *protected]
}

// Observe implements Observer.
func (p *protector) Observe(changes []Change) {
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Kind.Is(p.group, p.resource):
			key := named{c.Namespace, c.Name}
			// The finalizer of PodGroups is set by others.
			if c.Gone || c.Deleting != c.Has(p.finalizer) || p.finalizer == groupProtection && !c.Deleting {
				p.objects.remove(key)
				continue
			}
			p.objects.set(key, &protected{c.Kind, c.Namespace, c.Name, c.Revision, c.Meta})
			p.queue.Add(key)
		case p.pods && c.Kind.Is("", "pods"):
			p.objects.each(func(key named) {
				if key.namespace == c.Namespace {
					p.queue.Add(key)
				}
			})
		}
	}
}
