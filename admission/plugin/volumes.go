package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/apikeel/kelson/admission"
)

const storageGroup = "storage.k8s.io"

// newestDefault returns the newest of the classes that are annotated as default; found is
// false if there is none.
func newestDefault[T metav1.Object](classes []T, marks ...string) (class T, found bool) {
	classes = slices.DeleteFunc(slices.Clone(classes), func(c T) bool {
		return !slices.ContainsFunc(marks, func(mark string) bool { return c.GetAnnotations()[mark] == "true" })
	})
	if len(classes) == 0 {
		return class, false
	}
	return slices.MinFunc(classes, func(a, b T) int {
		if c := b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time); c != 0 {
			return c
		}
		return strings.Compare(a.GetName(), b.GetName())
	}), true
}

// defaultStorageClass is DefaultStorageClass: it sets the default class of claims.
type defaultStorageClass struct {
	base
	objects admission.Objects
}

func newDefaultStorageClass(b *builder) admission.Plugin {
	return &defaultStorageClass{base{"DefaultStorageClass", on("", "persistentvolumeclaims", admission.Create)}, b.Objects}
}

// Admit implements admission.Mutator.
func (d *defaultStorageClass) Admit(ctx context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || claim.Spec.StorageClassName != nil {
		return nil
	}
	if _, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return nil
	}
	classes, err := list[*storagev1.StorageClass](ctx, d.objects, storageGroup, "storageclasses", "")
	if err != nil {
		return a.Forbidden(err)
	}
	if class, ok := newestDefault(classes, "storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"); ok {
		claim.Spec.StorageClassName = new(class.Name)
	}
	return nil
}

// inUseProtection is StorageObjectInUseProtection: it adds the protection finalizer.
type inUseProtection struct{ base }

func newInUseProtection(b *builder) admission.Plugin {
	noClasses := b.Gates != nil && !b.Gates("VolumeAttributesClass")
	return inUseProtection{base{"StorageObjectInUseProtection", func(t admission.Target) bool {
		return t.Operation == admission.Create && t.Group != schedulingGroup && protection(t) != "" && !(noClasses && t.Group == storageGroup)
	}}}
}

// newGroupProtection makes the plugin PodGroupProtection.
func newGroupProtection(*builder) admission.Plugin {
	return inUseProtection{base{"PodGroupProtection", func(t admission.Target) bool {
		return t.Operation == admission.Create && t.Group == schedulingGroup && t.Resource == "podgroups" && t.Subresource == ""
	}}}
}

// protection returns the finalizer of a resource, "" if it has none.
func protection(t admission.Target) string {
	switch {
	case t.Subresource != "":
	case t.Group == "" && t.Resource == "persistentvolumes":
		return "kubernetes.io/pv-protection"
	case t.Group == "" && t.Resource == "persistentvolumeclaims":
		return "kubernetes.io/pvc-protection"
	case t.Group == storageGroup && t.Resource == "volumeattributesclasses":
		return "kubernetes.io/vac-protection"
	case t.Group == schedulingGroup && t.Resource == "podgroups":
		return "scheduling.k8s.io/podgroup-protection"
	}
	return ""
}

// Admit implements admission.Mutator.
func (inUseProtection) Admit(_ context.Context, a *admission.Attributes) error {
	obj, finalizer := a.Object.(metav1.Object), protection(a.Target())
	if finalizers := obj.GetFinalizers(); !slices.Contains(finalizers, finalizer) {
		obj.SetFinalizers(append(finalizers, finalizer))
	}
	return nil
}

// claimResize is PersistentVolumeClaimResize: a claim may grow only if its StorageClass
// allows expansion.
type claimResize struct {
	base
	objects admission.Objects
}

func newClaimResize(b *builder) admission.Plugin {
	return &claimResize{base{"PersistentVolumeClaimResize", on("", "persistentvolumeclaims", admission.Update)}, b.Objects}
}

// Validate implements admission.Validator.
func (c *claimResize) Validate(ctx context.Context, a *admission.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	old, was := a.Old.(*corev1.PersistentVolumeClaim)
	if !ok || !was {
		return nil
	}
	size, before := claim.Spec.Resources.Requests[corev1.ResourceStorage], old.Spec.Resources.Requests[corev1.ResourceStorage]
	if size.Cmp(before) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		//lint:ignore ST1005 the words that clients know
		return a.Forbidden(errors.New("Only bound persistent volume claims can be expanded"))
	}
	if name := storageClassOf(claim); name != "" && name == storageClassOf(old) {
		class, err := get[*storagev1.StorageClass](ctx, c.objects, storageGroup, "storageclasses", "", name)
		if err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion {
			return nil
		}
	}
	return a.Forbidden(errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
}

func storageClassOf(claim *corev1.PersistentVolumeClaim) string {
	if class, ok := claim.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}
