package apps

import (
	"maps"
	"math"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	appsv1beta1 "k8s.io/api/apps/v1beta1"
	appsv1beta2 "k8s.io/api/apps/v1beta2"
	corev1 "k8s.io/api/core/v1"
	extensionsv1beta1 "k8s.io/api/extensions/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/apikeel/kelson/builtin/podspec"
	"github.com/apikeel/kelson/builtin/rules"
	"github.com/apikeel/kelson/resource"
)

// Older versions. They differ from v1 in defaults, and in two fields that are annotations in
// v1: spec.rollbackTo of Deployments and spec.templateGeneration of DaemonSets.

func beta1(kind string) schema.GroupVersionKind {
	return appsv1beta1.SchemeGroupVersion.WithKind(kind)
}

func beta2(kind string) schema.GroupVersionKind {
	return appsv1beta2.SchemeGroupVersion.WithKind(kind)
}

func extensions(kind string) schema.GroupVersionKind {
	return extensionsv1beta1.SchemeGroupVersion.WithKind(kind)
}

// orphaning sets OrphanByDefault, which all these versions have.
func orphaning(versions ...resource.Version) []resource.Version {
	for i := range versions {
		versions[i].OrphanByDefault = true
	}
	return versions
}

func oldControllerRevisions() []resource.Version {
	return []resource.Version{
		resource.AlikeVersion[appsv1beta2.ControllerRevision, appsv1beta2.ControllerRevisionList, appsv1.ControllerRevision](beta2("ControllerRevision"), nil, nil, nil),
		resource.AlikeVersion[appsv1beta1.ControllerRevision, appsv1beta1.ControllerRevisionList, appsv1.ControllerRevision](beta1("ControllerRevision"), nil, nil, nil),
	}
}

func oldDaemonSets() []resource.Version {
	return orphaning(
		resource.AlikeVersion[appsv1beta2.DaemonSet, appsv1beta2.DaemonSetList](beta2("DaemonSet"), defaultDaemonSet, nil, nil),
		resource.AlikeVersion[extensionsv1beta1.DaemonSet, extensionsv1beta1.DaemonSetList](extensions("DaemonSet"),
			func(d *appsv1.DaemonSet) {
				labelsOfTemplate(&d.ObjectMeta, &d.Spec.Selector, &d.Spec.Template)
				rules.Default(&d.Spec.UpdateStrategy.Type, appsv1.OnDeleteDaemonSetStrategyType)
				defaultDaemonSet(d)
			},
			func(old *extensionsv1beta1.DaemonSet, d *appsv1.DaemonSet) {
				setTemplateGeneration(d, old.Spec.TemplateGeneration)
			},
			func(d *appsv1.DaemonSet, old *extensionsv1beta1.DaemonSet) {
				old.Spec.TemplateGeneration = templateGeneration(d)
				old.Annotations = without(d.Annotations, appsv1.DeprecatedTemplateGeneration)
			}),
	)
}

func oldDeployments() []resource.Version {
	return orphaning(
		resource.AlikeVersion[appsv1beta2.Deployment, appsv1beta2.DeploymentList](beta2("Deployment"), defaultDeployment, nil, nil),
		resource.AlikeVersion[appsv1beta1.Deployment, appsv1beta1.DeploymentList](beta1("Deployment"),
			func(d *appsv1.Deployment) {
				labelsOfTemplate(&d.ObjectMeta, &d.Spec.Selector, &d.Spec.Template)
				rules.DefaultPointer(&d.Spec.RevisionHistoryLimit, 2)
				defaultDeployment(d)
			},
			func(old *appsv1beta1.Deployment, d *appsv1.Deployment) {
				setRollback(d, old.Spec.RollbackTo != nil, deref(old.Spec.RollbackTo).Revision)
			},
			func(d *appsv1.Deployment, old *appsv1beta1.Deployment) {
				if revision, ok := rollback(d); ok {
					old.Spec.RollbackTo = &appsv1beta1.RollbackConfig{Revision: revision}
				}
				old.Annotations = without(d.Annotations, appsv1.DeprecatedRollbackTo)
			}),
		resource.AlikeVersion[extensionsv1beta1.Deployment, extensionsv1beta1.DeploymentList](extensions("Deployment"),
			defaultExtensionsDeployment,
			func(old *extensionsv1beta1.Deployment, d *appsv1.Deployment) {
				setRollback(d, old.Spec.RollbackTo != nil, deref(old.Spec.RollbackTo).Revision)
			},
			func(d *appsv1.Deployment, old *extensionsv1beta1.Deployment) {
				if revision, ok := rollback(d); ok {
					old.Spec.RollbackTo = &extensionsv1beta1.RollbackConfig{Revision: revision}
				}
				old.Annotations = without(d.Annotations, appsv1.DeprecatedRollbackTo)
			}),
	)
}

func oldReplicaSets() []resource.Version {
	return orphaning(
		resource.AlikeVersion[appsv1beta2.ReplicaSet, appsv1beta2.ReplicaSetList](beta2("ReplicaSet"), defaultReplicaSet, nil, nil),
		resource.AlikeVersion[extensionsv1beta1.ReplicaSet, extensionsv1beta1.ReplicaSetList](extensions("ReplicaSet"),
			func(r *appsv1.ReplicaSet) {
				labelsOfTemplate(&r.ObjectMeta, &r.Spec.Selector, &r.Spec.Template)
				defaultReplicaSet(r)
			}, nil, nil),
	)
}

func oldStatefulSets() []resource.Version {
	return orphaning(
		resource.AlikeVersion[appsv1beta2.StatefulSet, appsv1beta2.StatefulSetList](beta2("StatefulSet"), defaultStatefulSet, nil, nil),
		resource.AlikeVersion[appsv1beta1.StatefulSet, appsv1beta1.StatefulSetList](beta1("StatefulSet"),
			func(s *appsv1.StatefulSet) {
				labelsOfTemplate(&s.ObjectMeta, &s.Spec.Selector, &s.Spec.Template)
				rules.Default(&s.Spec.UpdateStrategy.Type, appsv1.OnDeleteStatefulSetStrategyType)
				defaultStatefulSet(s)
			}, nil, nil),
	)
}

// labelsOfTemplate defaults selector and labels to the labels of the template.
func labelsOfTemplate(meta *metav1.ObjectMeta, selector **metav1.LabelSelector, template *corev1.PodTemplateSpec) {
	if template.Labels == nil {
		return
	}
	rules.DefaultPointer(selector, metav1.LabelSelector{MatchLabels: template.Labels})
	if len(meta.Labels) == 0 {
		meta.Labels = template.Labels
	}
}

// defaultExtensionsDeployment is the defaulting of extensions/v1beta1: no limits, and one pod
// at a time.
func defaultExtensionsDeployment(d *appsv1.Deployment) {
	labelsOfTemplate(&d.ObjectMeta, &d.Spec.Selector, &d.Spec.Template)
	rules.DefaultPointer(&d.Spec.Replicas, 1)
	s := &d.Spec.Strategy
	rules.Default(&s.Type, appsv1.RollingUpdateDeploymentStrategyType)
	if s.Type == appsv1.RollingUpdateDeploymentStrategyType || s.RollingUpdate != nil {
		rules.DefaultPointer(&s.RollingUpdate, appsv1.RollingUpdateDeployment{})
		rules.DefaultPointer(&s.RollingUpdate.MaxUnavailable, intstr.FromInt32(1))
		rules.DefaultPointer(&s.RollingUpdate.MaxSurge, intstr.FromInt32(1))
	}
	rules.DefaultPointer(&d.Spec.ProgressDeadlineSeconds, math.MaxInt32)
	rules.DefaultPointer(&d.Spec.RevisionHistoryLimit, math.MaxInt32)
	podspec.DefaultTemplate(&d.Spec.Template)
}

// setRollback sets the rollback annotation.
func setRollback(d *appsv1.Deployment, wanted bool, revision int64) {
	d.Annotations = without(d.Annotations, appsv1.DeprecatedRollbackTo)
	if wanted {
		annotations := maps.Clone(d.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[appsv1.DeprecatedRollbackTo] = strconv.FormatInt(revision, 10)
		d.Annotations = annotations
	}
}

func rollback(d *appsv1.Deployment) (revision int64, wanted bool) {
	revision, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return revision, err == nil
}

// without returns a copy of annotations without one; the argument is not changed.
func without(annotations map[string]string, name string) map[string]string {
	if _, ok := annotations[name]; !ok {
		return annotations
	}
	annotations = maps.Clone(annotations)
	delete(annotations, name)
	return annotations
}
