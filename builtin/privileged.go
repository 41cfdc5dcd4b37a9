package builtin

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/apikeel/kelson/resource"
)

// denyPrivileged adds the rule that containers must not be privileged to all kinds with pod
// specs.
func denyPrivileged(g resource.Group) {
	rule := func(obj resource.Object, errs field.ErrorList) field.ErrorList {
		if spec, path := podSpec(obj); spec != nil {
			errs = append(errs, privileged(spec, path)...)
		}
		return errs
	}
	for i := range g.Resources {
		d := &g.Resources[i]
		wrap(&d.Strategy, rule)
		for _, sub := range d.Subresources {
			// Of the subresources only these change containers.
			if sub.Part != nil && (sub.Name == "ephemeralcontainers" || sub.Name == "resize") {
				wrap(sub.Part, rule)
			}
		}
	}
}

// podSpec returns the pod spec of a pod or of a pod template in an object, and its path.
func podSpec(obj resource.Object) (*corev1.PodSpec, *field.Path) {
	template := field.NewPath("spec", "template", "spec")
	switch obj := obj.(type) {
	case *corev1.Pod:
		return &obj.Spec, field.NewPath("spec")
	case *corev1.PodTemplate:
		return &obj.Template.Spec, field.NewPath("template", "spec")
	case *corev1.ReplicationController:
		if obj.Spec.Template != nil {
			return &obj.Spec.Template.Spec, template
		}
	case *appsv1.Deployment:
		return &obj.Spec.Template.Spec, template
	case *appsv1.ReplicaSet:
		return &obj.Spec.Template.Spec, template
	case *appsv1.StatefulSet:
		return &obj.Spec.Template.Spec, template
	case *appsv1.DaemonSet:
		return &obj.Spec.Template.Spec, template
	case *batchv1.Job:
		return &obj.Spec.Template.Spec, template
	case *batchv1.CronJob:
		return &obj.Spec.JobTemplate.Spec.Template.Spec, field.NewPath("spec", "jobTemplate", "spec", "template", "spec")
	}
	return nil, nil
}

func privileged(spec *corev1.PodSpec, path *field.Path) (errs field.ErrorList) {
	check := func(list string, i int, sc *corev1.SecurityContext) {
		if sc != nil && sc.Privileged != nil && *sc.Privileged {
			errs = append(errs, field.Forbidden(path.Child(list).Index(i).Child("securityContext", "privileged"), "disallowed by cluster policy"))
		}
	}
	for i := range spec.Containers {
		check("containers", i, spec.Containers[i].SecurityContext)
	}
	for i := range spec.InitContainers {
		check("initContainers", i, spec.InitContainers[i].SecurityContext)
	}
	for i := range spec.EphemeralContainers {
		check("ephemeralContainers", i, spec.EphemeralContainers[i].SecurityContext)
	}
	return errs
}
